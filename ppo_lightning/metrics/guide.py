"""What each metric should look like and what to do when it does not, by section of the reference. Torch-free.

Ranges are rules of thumb from training language models of 0.1 to 70 billion parameters: they tell where to look first.
"""

from fnmatch import fnmatchcase

from ppo_lightning.metrics.guide_step import COUNTERS, ENGINE, LENGTHS, SCORES, SECONDS
from ppo_lightning.metrics.guide_update import CORRECTION, CRITIC, POLICY
from ppo_lightning.metrics.spec import Guide

VALIDATION = (
    Guide(
        ("val-*/mean@<N>",),
        "Mean of the variable over the prompt's N samples, then over prompts: the number to compare runs by.",
        "Rises; differences smaller than `ci95@<N>` are chance.",
        "Flat while the training score rises: overfitting or a gamed reward; read rollouts/validation_*.jsonl.",
    ),
    Guide(
        ("val-*/best@<k>/*", "val-*/pass@<k>"),
        "Best of k samples: by bootstrap as verl does it (biased low), and unbiased as `pass@<k>`.",
        "Above the mean, and not falling while the mean rises.",
        "Falling with a rising mean: the policy narrows to what it knew; keep the entropy up, or use `grpo_passk`. "
        "Quote `pass@<k>`.",
    ),
    Guide(
        ("val-*/maj@<k>/*", "val-*/maj_norm@<k>/*"),
        "Value of the answer that most of k samples give, as written, and after reading answers as numbers.",
        "Above the mean.",
        "If only `maj_norm` is, the answers differ in form alone: compare by `maj_norm`.",
    ),
    Guide(
        ("val-*/std@<N>", "val-*/worst@<k>/*"),
        "Spread of a prompt's samples, and the worst of k.",
        "The spread falls as the policy settles; the worst rises last.",
        "A wide spread with a good mean: sample more, vote, or train on.",
    ),
    Guide(
        ("val-*/ci95@<N>",),
        "Half the width of the 95 % interval of the mean over prompts.",
        "Smaller than the gain that you want to see.",
        "More validation prompts: it falls with their square root. More samples per prompt help less.",
    ),
    Guide(
        ("val-*/num_prompts", "val-*/num_samples"),
        "How many prompts and samples the numbers of this data source come from.",
        "Your validation set, and that times `validation.samples_per_prompt`.",
        "Fewer: rewards failed and were dropped, or prompts were too long (the start says so).",
    ),
)

SECTIONS: dict[str, tuple[Guide, ...]] = {
    "Scores and rewards": SCORES,
    "Lengths": LENGTHS,
    "The policy": POLICY,
    "The critic": CRITIC,
    "Engine against trainer": ENGINE,
    "Rollout correction": CORRECTION,
    "Validation": VALIDATION,
    "Counters": COUNTERS,
    "Time, throughput, variance": SECONDS,
}


def guide_to(key: str) -> list[Guide]:
    """Return the entries about a key or family as the registry declares it: one, if the table is whole."""
    return [one for section in SECTIONS.values() for one in section if matches(one, key)]


def matches(guide: Guide, key: str) -> bool:
    """Return whether an entry speaks of a declared key."""
    return any(fnmatchcase(key, pattern) for pattern in guide.keys)

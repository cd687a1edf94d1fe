"""Built-in rule rewards: two visible tables, by name and by data source. Imports nothing but the error tree.

A scorer is `fn(solution_str, ground_truth, ...)`; it returns a number or a dict with `score`, `acc` and `pred` (the
answer it read). It may name any of data_source, extra_info, prompt, response_ids; its options are keywords.
"""

from ppo_lightning.errors import RewardError

_HERE = "ppo_lightning.rewards.scorers"

SCORERS = {
    "gsm8k": f"{_HERE}.gsm8k:gsm8k",
    "gsm8k_strict": f"{_HERE}.gsm8k:gsm8k_strict",
    "gsm8k_flexible": f"{_HERE}.gsm8k:gsm8k_flexible",
    "gsm8k_format": f"{_HERE}.gsm8k:gsm8k_format",
    "numeric": f"{_HERE}.match:numeric",
    "exact": f"{_HERE}.match:exact",
    "regex": f"{_HERE}.match:regex",
    "choice": f"{_HERE}.match:choice",
    "math": f"{_HERE}.math:math",
    "format": f"{_HERE}.shape:format_reward",
    "length": f"{_HERE}.shape:length_penalty",
    "repetition": f"{_HERE}.shape:repetition_penalty",
    "reasoning_gym": f"{_HERE}.reasoning_gym:reasoning_gym",
    "code_sandbox": f"{_HERE}.code_sandbox:code_sandbox",
}
"""name -> module:function."""

SCORER_OF_SOURCE = {
    "gsm8k": "gsm8k",
    "openai/gsm8k": "gsm8k",
    "arithmetic": "numeric",
    "math": "math",
    "DigitalLearningGmbH/MATH-lighteval": "math",
    "lighteval/MATH": "math",
    "HuggingFaceH4/MATH-500": "math",
    "math_dapo": "math",
    "aime24": "math",
    "aime25": "math",
}
"""data source -> scorer, for reward.scorer=auto; `reasoning_gym/<task>` belongs to reasoning_gym."""


def scorer_of_source(source: str) -> str:
    """Return the scorer of a data source.

    Raises:
        RewardError: none belongs to it.
    """
    if source in SCORER_OF_SOURCE:
        return SCORER_OF_SOURCE[source]
    if source.startswith("reasoning_gym/"):
        return "reasoning_gym"
    raise RewardError(
        f"no built-in scorer belongs to data_source {source!r}: set reward.scorer to one of {', '.join(SCORERS)}, "
        f"or reward.path to your own function (known sources: {', '.join(SCORER_OF_SOURCE)}, reasoning_gym/<task>)"
    )

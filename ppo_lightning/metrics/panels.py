"""Which metrics are looked at together: sections of charts for the W&B workspace and the report. Torch-free."""

from collections.abc import Iterable
from dataclasses import dataclass

from ppo_lightning.metrics.registry import METRICS


@dataclass(frozen=True)
class Panel:
    """One chart.

    Attributes:
        title: said above it.
        keys: of its lines, as `metrics/registry` declares them; `<...>` stands for every logged key of the family.
    """

    title: str
    keys: tuple[str, ...]

    def among(self, logged: Iterable[str]) -> list[str]:
        """Return the logged keys that the chart shows, in the order of `keys`; empty: the run has nothing to show."""
        names = sorted(logged)
        found = [name for key in self.keys for name in names if METRICS[key].matches(name)]
        return list(dict.fromkeys(found))


def _spread(title: str, key: str) -> Panel:
    return Panel(title, tuple(f"{key}/{how}" for how in ("mean", "max", "min")))


PANELS: dict[str, tuple[Panel, ...]] = {
    "training": (
        Panel("policy loss", ("actor/pg_loss",)),
        Panel("value loss", ("critic/vf_loss",)),
        Panel("learning rate", ("actor/lr", "critic/lr")),
        Panel("entropy", ("actor/entropy",)),
    ),
    "reward": (
        _spread("score", "critic/score"),
        Panel("reward after KL", ("critic/rewards/mean",)),
        _spread("advantages", "critic/advantages"),
        Panel("parts and columns of the scorer", ("reward/<column>/mean",)),
        Panel("groups without a difference", ("training/equal_score_groups",)),
        Panel("samples that could not be scored", tuple(key for key in METRICS if METRICS[key].stage == "score"
                                                        and METRICS[key].unit == "samples")),
    ),
    "lengths": (
        _spread("response length", "response_length"),
        Panel("cut off or empty", ("response_length/clip_ratio", "response/aborted_ratio")),
        _spread("prompt length", "prompt_length"),
    ),
    "stability": (
        Panel("gradient norm", ("actor/grad_norm", "critic/grad_norm")),
        Panel("KL of the update", ("actor/ppo_kl",)),
        Panel("KL to the reference", ("actor/kl_loss", "actor/reward_kl_penalty")),
        Panel("clipped tokens", ("actor/pg_clipfrac", "actor/pg_clipfrac_lower")),
        Panel("explained variance", ("critic/vf_explained_var",)),
        Panel("warnings", ("training/warnings", "training/records_lost")),
        Panel("steps left out", ("training/skipped_steps", "training/empty_minibatches", "training/nonfinite_values")),
    ),
    "engine gap": (
        Panel("probability gap", ("training/rollout_probs_diff_mean", "training/rollout_probs_diff_max")),
        Panel("correlation", ("training/rollout_actor_probs_pearson_corr",)),
        Panel("KL engine to trainer", ("rollout_corr/kl", "rollout_corr/k3_kl")),
    ),
    "performance": (
        Panel("throughput", ("perf/throughput",)),
        Panel("seconds", ("timing_s/step", "timing_s/gen", "timing_s/update", "timing_s/reward")),
        Panel("tokens", ("perf/total_num_tokens",)),
        Panel("utilisation", ("perf/mfu/actor", "perf/mfu/critic", "perf/mfu/actor_infer")),
    ),
    "validation": (
        Panel("mean", ("val-core/<data_source>/<variable>/mean@<N>",)),
        Panel("best and majority", ("val-core/<data_source>/<variable>/best@<k>/mean",
                                    "val-core/<data_source>/<variable>/maj@<k>/mean")),
        Panel("pass@k", ("val-aux/<data_source>/<variable>/pass@<k>",)),
    ),
}  # fmt: skip
"""Sections in the order they are shown."""

"""How far the engine's probabilities are from the trainer's: the alarm for stale weights and wrong precision.

Stage old_log_prob, once both log-probs are there. Legend: B rows on this rank, R response width.
"""

import torch
from torch import Tensor

from ppo_lightning.metrics.moments import PearsonValue, StdValue
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import without_padding

PREFIX = "training/rollout_probs_diff"
SAFETY_BOUND = 20.0  # largest absolute log-ratio that is exponentiated for chi-squared, as in verl


def mismatch_metrics(batch: DataProto, book: MetricBook) -> None:
    """Write training/rollout_probs_diff_{valid,max,mean,std} and training/rollout_actor_probs_pearson_corr.

    Reads: rollout_log_probs, old_log_probs, response_mask (B, R). Over valid response tokens of all ranks. Without any,
    `valid` is 0 and the others are absent; the deviation needs two tokens, the correlation two that differ.
    """
    tensors = without_padding(batch).tensors()
    mask = tensors["response_mask"].bool()
    engine, trainer = (tensors[field].float().exp() for field in ("rollout_log_probs", "old_log_probs"))
    diff = (trainer - engine).abs()
    book.max(f"{PREFIX}_valid", mask.any().double())
    book.max(f"{PREFIX}_max", diff, mask)
    book.masked_mean(f"{PREFIX}_mean", diff, mask)
    book.add(f"{PREFIX}_std", StdValue, StdValue.row(diff, mask))
    book.add("training/rollout_actor_probs_pearson_corr", PearsonValue, PearsonValue.row(trainer, engine, mask))


def divergence_metrics(batch: DataProto, book: MetricBook) -> None:
    """Write the rollout_corr/* distances between engine and trainer that do not depend on any correction.

    Reads: rollout_log_probs, old_log_probs, response_mask (B, R). Token means are over valid tokens; sequence means are
    over rows with at least one valid token. KL is KL(engine || trainer) at the sampled tokens: `kl` is k1, `k3_kl` is
    k3 (http://joschu.net/blog/kl-approx.html).
    """
    tensors = without_padding(batch).tensors()
    mask = tensors["response_mask"].bool()
    engine, trainer = (
        torch.where(mask, tensors[field].double(), 0.0) for field in ("rollout_log_probs", "old_log_probs")
    )
    _token_distances(trainer - engine, mask, book)
    rows = mask.any(-1)
    count = mask.sum(-1).clamp(min=1)
    trainer_mean, engine_mean = trainer.sum(-1) / count, engine.sum(-1) / count
    _perplexities("training", trainer_mean, rows, book)
    _perplexities("rollout", engine_mean, rows, book)
    gap = engine_mean - trainer_mean
    book.masked_mean("rollout_corr/log_ppl_diff", gap, rows)
    book.masked_mean("rollout_corr/log_ppl_abs_diff", gap.abs(), rows)
    book.max("rollout_corr/log_ppl_diff_max", gap, rows)
    book.min("rollout_corr/log_ppl_diff_min", gap, rows)
    book.masked_mean("rollout_corr/ppl_ratio", gap.exp(), rows)
    whole = (trainer - engine).sum(-1).clamp(-SAFETY_BOUND, SAFETY_BOUND)
    book.masked_mean("rollout_corr/chi2_seq", (2.0 * whole).exp() - 1.0, rows)


def _token_distances(log_ratio: Tensor, mask: Tensor, book: MetricBook) -> None:
    book.masked_mean("rollout_corr/kl", -log_ratio, mask)
    book.masked_mean("rollout_corr/k3_kl", log_ratio.exp() - log_ratio - 1.0, mask)
    bounded = log_ratio.clamp(-SAFETY_BOUND, SAFETY_BOUND)
    book.masked_mean("rollout_corr/chi2_token", (2.0 * bounded).exp() - 1.0, mask)


def _perplexities(who: str, mean_log_prob: Tensor, rows: Tensor, book: MetricBook) -> None:
    book.masked_mean(f"rollout_corr/{who}_ppl", (-mean_log_prob).exp(), rows)
    book.masked_mean(f"rollout_corr/{who}_log_ppl", -mean_log_prob, rows)

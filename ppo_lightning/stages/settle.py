"""Stage 9: what the whole batch says: data, timing, throughput and mismatch metrics."""

import time

import torch

from ppo_lightning.metrics.data import column_metrics, data_metrics
from ppo_lightning.metrics.flops import dense_shape, device_peak
from ppo_lightning.metrics.groups import group_metrics
from ppo_lightning.metrics.mismatch import mismatch_metrics
from ppo_lightning.metrics.throughput import mfu_metric, throughput_metrics
from ppo_lightning.metrics.timing import timing_metrics
from ppo_lightning.metrics.variance import variance_metrics
from ppo_lightning.models.lora import adapter_size
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.samples import DATA_COLUMNS
from ppo_lightning.stages import corrects_rollout
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.correction import measure_distance


def settle(batch: DataProto, context: StepContext) -> None:
    """Write the metrics of the finished step into the book.

    Reads: everything that earlier stages wrote.
    """
    book, config = context.book, context.config
    widths = (config.data.max_prompt_tokens, config.rollout.response_tokens)
    data_metrics(batch, book, context.critic is not None, *widths)
    group_metrics(batch, book)
    if not config.rollout_correction.bypass_mode:  # there old_log_probs are the engine's
        mismatch_metrics(batch, book)
        if not corrects_rollout(config):
            measure_distance(batch, context)
    norms = context.gradient_norms.get("actor", [])
    variance_metrics(batch, book, sum(norms) / len(norms) if norms else None)
    column_metrics(batch, book, [name for name in batch.non_tensor_batch if name not in DATA_COLUMNS])
    for name, optimizer in context.optimizers.items():
        book.mean(f"{name}/lr", optimizer.param_groups[0]["lr"])
    book.mean("training/global_step", context.step)
    book.mean("training/epoch", context.epoch)
    context.seconds["step"] = time.perf_counter() - context.started
    timing_metrics(batch, context.seconds, book, context.ranks.size)
    throughput_metrics(batch, context.seconds["step"], book)
    _utilisation(batch, context)


def _utilisation(batch: DataProto, context: StepContext) -> None:
    """Write perf/mfu/*: of the stages that ran, where the device's peak and the model's family are known."""
    weight = next(context.actor.parameters())
    if weight.device.type != "cuda":
        return
    peak = device_peak(torch.cuda.get_device_name(weight.device), str(weight.dtype).removeprefix("torch."))
    epochs = context.config.update.ppo_epochs
    actor = dense_shape(context.actor.config, adapter_weights=adapter_size(context.actor))
    stages = [("actor_infer", "old_log_prob", actor, 1), ("actor", "update_actor", actor, epochs)]
    if context.critic is not None:
        critic = dense_shape(context.critic.decoder.config, 1, adapter_size(context.critic))
        stages.append(("critic", "update_critic", critic, epochs))
    for name, timer, shape, passes in stages:
        if timer in context.seconds:
            rows, of_rows = map(sum, zip(*context.trained.get(name, [(0, 1)]), strict=True))
            mfu_metric(batch, name, context.seconds[timer], context.book, shape, peak, passes, rows / of_rows)

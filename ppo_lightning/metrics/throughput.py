"""Tokens per second and model FLOPs utilisation, exact over ranks. Stage settle."""

from ppo_lightning.metrics.data import lengths
from ppo_lightning.metrics.flops import DenseShape, forward_flops, training_flops
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import without_padding


def throughput_metrics(batch: DataProto, step_seconds: float, book: MetricBook, devices: int = 1) -> None:
    """Write perf/total_num_tokens, perf/time_per_step and perf/throughput (tokens per second and device).

    Reads: responses, attention_mask. Padding tokens and padding rows are no tokens; the total over ranks equals the sum
    of `global_token_num`. Throughput is the tokens of all ranks over the device-seconds of all ranks.

    Args:
        batch: this rank's rows.
        step_seconds: wall seconds of the step on this rank.
        book: taken the numbers into.
        devices: devices that this rank uses.
    """
    prompt, response = lengths(without_padding(batch))
    tokens = prompt.sum() + response.sum()
    book.sum("perf/total_num_tokens", tokens)
    book.mean("perf/time_per_step", step_seconds)
    book.mean("perf/throughput", tokens, step_seconds * devices)


def mfu_metric(
    batch: DataProto,
    name: str,
    seconds: float,
    book: MetricBook,
    shape: DenseShape | None,
    peak: float | None,
    passes: float = 1.0,
    trained: float = 1.0,
) -> None:
    """Write perf/mfu/<name>: the model's operations over what the devices could have done in these seconds.

    Absent where the model's family or the device's peak is not known. `actor_infer` counts a forward pass, any other
    name a forward and a backward; logits (or values) are counted at response tokens only.

    Args:
        batch: this rank's rows.
        name: actor, critic or actor_infer.
        seconds: wall seconds of the stage on this rank.
        book: taken the numbers into.
        shape: of the model, from `flops.dense_shape`.
        peak: FLOP/s of all devices of this rank, from `flops.device_peak`.
        passes: how often the stage went over the batch (PPO epochs).
        trained: share of the rows that had a backward pass.
    """
    if shape is None or peak is None:
        return
    prompt, response = lengths(without_padding(batch))
    rows, scored = (prompt + response).tolist(), int(response.sum())
    once = forward_flops(shape, rows, scored)
    if name != "actor_infer":
        once += trained * (training_flops(shape, rows, scored, frozen=shape.adapter_weights > 0) - once)
    book.mean(f"perf/mfu/{name}", once * passes, seconds * peak)

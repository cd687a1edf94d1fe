"""Metrics of a step's batch: scores, rewards, advantages, values and lengths. Stage settle, after all else.

Legend: B rows on this rank, P prompt width, R response width, L_i valid response tokens of row i.
"""

from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ppo_lightning.metrics.entries import Entries, row_sum
from ppo_lightning.metrics.moments import ExplainedVarianceValue
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import without_padding


def lengths(batch: DataProto) -> tuple[Tensor, Tensor]:
    """Return the tokens of each prompt (B,) and of each response (B,), int64, from the attention mask.

    Not from `response_mask`: tokens that are masked out of the loss later were generated all the same.
    """
    mask = batch.tensors()["attention_mask"]
    width = batch.tensors()["responses"].shape[-1]
    return mask[:, : mask.shape[-1] - width].sum(-1), mask[:, mask.shape[-1] - width :].sum(-1)


def data_metrics(
    batch: DataProto,
    book: MetricBook,
    use_critic: bool,
    prompt_width: int | None = None,
    response_width: int | None = None,
) -> None:
    """Write the metrics of SPEC 5.2 that describe the batch; rows that are padding count nowhere.

    Reads: prompts, responses, attention_mask, response_mask, token_level_scores, token_level_rewards, advantages,
    returns, and values with a critic.

    Args:
        batch: this rank's rows.
        book: taken all numbers into; whatever nothing was counted for (all rows aborted) is absent.
        use_critic: whether there are values.
        prompt_width: longest prompt allowed, for the clip ratio; None: the width of `prompts`.
        response_width: longest response allowed; None: the width of `responses`.
    """
    batch = without_padding(batch)
    tensors = batch.tensors()
    prompt, response = lengths(batch)
    given = response > 0
    scores, rewards = tensors["token_level_scores"], tensors["token_level_rewards"]
    totals = row_sum(scores)
    book.spread("critic/score", totals, given)
    book.spread("critic/rewards", totals if rewards is scores else row_sum(rewards), given)
    mask = tensors["response_mask"].bool()
    fields = ("advantages", "returns", "values") if use_critic else ("advantages", "returns")
    entries = {field: Entries(tensors[field], mask) for field in fields if field != "returns"}
    # Estimators of one number a row return one tensor as both.
    alike = tensors["returns"] is tensors["advantages"]
    entries["returns"] = entries["advantages"] if alike else Entries(tensors["returns"], mask)
    for field in fields:
        book.spread(f"critic/{field}", entries[field])
    if use_critic:
        row = ExplainedVarianceValue.row(entries["returns"], entries["values"])
        book.add("critic/vf_explained_var", ExplainedVarianceValue, row)
    every = torch.ones_like(given)
    response_width = tensors["responses"].shape[-1] if response_width is None else response_width
    prompt_width = tensors["prompts"].shape[-1] if prompt_width is None else prompt_width
    _length_metrics("response_length", response, every, response_width, book)
    _length_metrics("response_length_non_aborted", response, given, response_width, book)
    _length_metrics("prompt_length", prompt, every, prompt_width, book)
    book.masked_mean("response/aborted_ratio", (~given).double(), every)


def column_metrics(batch: DataProto, book: MetricBook, names: list[str], prefix: str = "reward") -> None:
    """Write `prefix`/<name>/{mean,max,min} of per-sample columns, each over the rows that have a number there.

    A row without the key (None) and text are left out; 0 and False are numbers.
    """
    batch = without_padding(batch)
    for name in names:
        numbers = [float(value) for value in batch.non_tensor_batch[name] if is_number(value)]
        if numbers:
            book.spread(f"{prefix}/{name}", torch.tensor(numbers, dtype=torch.float64))


def is_number(value: Any) -> bool:
    """Return whether a per-sample value is a real number (bool included)."""
    return isinstance(value, Real | np.bool_)


def _length_metrics(key: str, tokens: Tensor, rows: Tensor, width: int, book: MetricBook) -> None:
    book.spread(key, tokens, rows)
    book.masked_mean(f"{key}/clip_ratio", (tokens == width).double(), rows)

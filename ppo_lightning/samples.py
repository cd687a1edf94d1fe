"""Rows of a batch in words: what is written to rollouts/ and shown on the console."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ppo_lightning.protocol.data_proto import DataProto

DATA_COLUMNS = frozenset(
    {"raw_prompt", "raw_prompt_ids", "data_source", "reward_model", "extra_info", "uid", "finish_reason"}
)


@dataclass(frozen=True)
class Shown:
    """One completion of a group."""

    prompt: str
    response: str
    ground_truth: Any
    score: float


def rollout_rows(batch: DataProto, tokenizer: Any) -> list[dict[str, Any]]:
    """Return one plain dict per row; the keys of verl's dumps (input, output, gts, score, step) and ours.

    The score is None where the reward failed and the row was dropped; `reward_fault` and `reward_detail` say why.
    """
    tensors, columns = batch.tensors(), batch.non_tensor_batch
    width = tensors["responses"].shape[1]
    lengths = tensors["attention_mask"][:, -width:].sum(-1).tolist()
    scores = tensors["rm_scores"].sum(-1).tolist()
    advantages = _row_means(batch)
    dropped = tensors["is_padding"].tolist() if "is_padding" in tensors else [False] * len(lengths)
    extra = [name for name in columns if name not in DATA_COLUMNS]
    rows = []
    for row, length in enumerate(lengths):
        beside = {name: _plain(columns[name][row]) for name in extra if columns[name][row] is not None}
        own = {
            "input": columns["raw_prompt"][row],
            "output": tokenizer.decode(tensors["responses"][row, :length].tolist(), skip_special_tokens=True),
            "gts": columns["reward_model"][row]["ground_truth"],
            "score": None if dropped[row] else scores[row],
            "step": batch.meta_info["global_steps"],
            "uid": columns["uid"][row],
            "data_source": columns["data_source"][row],
            "extra_info": columns["extra_info"][row],
            "response_length": length,
            "finish_reason": columns["finish_reason"][row],
        }
        own |= {"advantage": advantages[row]} if advantages else {}
        rows.append(own | {name: value for name, value in beside.items() if name not in own})
    return rows


def numbered(batch: DataProto, rows: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Put its number among the rows of all ranks before what was made of each row."""
    return list(zip(batch.tensors()["global_row"].tolist(), rows, strict=True))


def in_order(parts: Iterable[list[tuple[int, dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Join the numbered rows of all ranks in the order that they belong in."""
    return [row for _, row in sorted((pair for part in parts for pair in part), key=lambda pair: pair[0])]


def best_and_worst(batch: DataProto, tokenizer: Any, groups: int) -> list[tuple[Shown, Shown]]:
    """Return the best and the worst completion of the first groups whose scores differ, else of the first groups."""
    scores = batch.tensors()["rm_scores"].sum(-1).tolist()
    members: dict[str, list[int]] = {}
    for row, uid in enumerate(batch.non_tensor_batch["uid"]):
        members.setdefault(uid, []).append(row)
    ordered = sorted(members.values(), key=lambda rows: len({scores[r] for r in rows}) == 1)
    pairs = [
        (max(rows, key=scores.__getitem__), min(reversed(rows), key=scores.__getitem__)) for rows in ordered[:groups]
    ]
    dumped = rollout_rows(batch.select_idxs([r for pair in pairs for r in pair]), tokenizer) if pairs else []
    shown = [Shown(r["input"][-1]["content"], r["output"], r["gts"], r["score"]) for r in dumped]
    return list(zip(shown[::2], shown[1::2], strict=True))


def _row_means(batch: DataProto) -> list[float]:
    tensors = batch.tensors()
    if "advantages" not in tensors:
        return []
    mask = tensors["response_mask"]
    return ((tensors["advantages"] * mask).sum(-1) / mask.sum(-1).clamp(min=1)).tolist()


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value

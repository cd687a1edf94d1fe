"""Rows of a batch in words: what is written to rollouts/ and shown on the console."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ppo_lightning.protocol.data_proto import DataProto

DATA_COLUMNS = frozenset(
    {"raw_prompt", "raw_prompt_ids", "data_source", "reward_model", "extra_info", "uid", "finish_reason"}
)
TOKENS_PER_STEP = 16384
"""Response tokens of a step whose values are dumped, in whole rows from the first on: about 0.5 MB of text."""
UNKNOWN = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Shown:
    """One completion of a group."""

    prompt: str
    response: str
    ground_truth: Any
    score: float | None


def rollout_rows(batch: DataProto, tokenizer: Any, token_budget: int = 0) -> list[dict[str, Any]]:
    """Return one plain dict per row; the keys of verl's dumps (input, output, gts, score, step) and ours.

    The score is None where the reward failed and the row was dropped; `reward_fault` and `reward_detail` say why.

    Args:
        batch: rows of a finished step, or of a validation.
        tokenizer: decodes responses.
        token_budget: the first rows, up to so many response tokens, also get `tokens` (see `token_values`).
    """
    tensors, columns = batch.tensors(), batch.non_tensor_batch
    width = tensors["responses"].shape[1]
    lengths = tensors["attention_mask"][:, -width:].sum(-1).tolist()
    prompts = tensors["attention_mask"][:, :-width].sum(-1).tolist()
    trained = tensors["response_mask"].sum(-1).tolist()
    scores = tensors["rm_scores"].sum(-1).tolist()
    advantages = _row_means(batch)
    dropped = tensors["is_padding"].tolist() if "is_padding" in tensors else [False] * len(lengths)
    extra = [name for name in columns if name not in DATA_COLUMNS]
    rows, spent, pieces = [], 0, Pieces(tokenizer)
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
            "prompt_length": prompts[row],
            "response_length": length,
            "trained_tokens": trained[row],
            "finish_reason": columns["finish_reason"][row],
        }
        own |= {"advantage": advantages[row]} if advantages else {}
        spent += length
        if spent <= token_budget:
            own["tokens"] = token_values(tensors, row, length, pieces)
        rows.append(own | {name: value for name, value in beside.items() if name not in own})
    return rows


def numbered(batch: DataProto, rows: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Put its number among the rows of all ranks before what was made of each row."""
    return list(zip(batch.tensors()["global_row"].tolist(), rows, strict=True))


def in_order(parts: Iterable[list[tuple[int, dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Join the numbered rows of all ranks in the order that they belong in."""
    return [row for _, row in sorted((pair for part in parts for pair in part), key=lambda pair: pair[0])]


def within_budget(rows: list[dict[str, Any]], token_budget: int) -> list[dict[str, Any]]:
    """Take `tokens` off all but the first rows, up to so many response tokens: ranks have kept more together."""
    spent = 0
    for row in rows:
        spent += row["response_length"]
        if spent > token_budget:
            row.pop("tokens", None)
    return rows


class Pieces:
    """The text of single tokens, decoded once each; a character of several tokens belongs to the last of them."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.known: dict[int, str] = {}

    def __call__(self, ids: list[int]) -> list[str]:
        """Return one text per token id."""
        texts: list[str] = []
        open_ids: list[int] = []
        for token in ids:
            open_ids.append(token)
            text = self._one(token) if len(open_ids) == 1 else self.tokenizer.decode(open_ids)
            whole = UNKNOWN not in text
            texts.append(text if whole or len(open_ids) == 4 else "")
            if whole or len(open_ids) == 4:
                open_ids = []
        if open_ids and texts:
            texts[-1] = self.tokenizer.decode(open_ids)
        return texts

    def _one(self, token: int) -> str:
        if token not in self.known:
            text = self.tokenizer.decode([token])
            spaced = str(self.tokenizer.convert_ids_to_tokens(token)).startswith("\u2581") and text[:1] != " "
            self.known[token] = f" {text}" if spaced else text
        return self.known[token]


def token_values(tensors: dict[str, Tensor], row: int, length: int, pieces: Pieces) -> dict[str, Any]:
    """Return what is known of each valid response token of a row, rounded: lists of `length` entries.

    Keys: `text`; `log_prob` (the trainer's, before the update); `gap` (that less the engine's); `advantage` (one number
    where all are equal); `mask` (a string of 0 and 1, where a token is left out of the loss). What a batch does not
    hold is absent, what is not finite is None.
    """
    found: dict[str, Any] = {"text": pieces(tensors["responses"][row, :length].tolist())}
    known = {
        key: tensors[key][row, :length].double()
        for key in ("old_log_probs", "rollout_log_probs", "advantages")
        if key in tensors
    }
    if "old_log_probs" in known:
        found["log_prob"] = _rounded(known["old_log_probs"], 3)
        gaps = (known["old_log_probs"] - known["rollout_log_probs"]).tolist()
        # From 1e-7 to 1: fixed digits would lose the small ones.
        found["gap"] = [float(f"{gap:.2g}") if math.isfinite(gap) else None for gap in gaps]
    if "advantages" in known and length:
        values = _rounded(known["advantages"], 3)
        found["advantage"] = values[0] if values.count(values[0]) == length else values
    mask = "".join(str(kept) for kept in tensors["response_mask"][row, :length].int().tolist())
    return found | ({"mask": mask} if "0" in mask else {})


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


def _rounded(values: Tensor, digits: int) -> list[float | None]:
    return [round(value, digits) if math.isfinite(value) else None for value in values.tolist()]


def _row_means(batch: DataProto) -> list[float]:
    tensors = batch.tensors()
    if "advantages" not in tensors:
        return []
    mask = tensors["response_mask"]
    return ((tensors["advantages"] * mask).sum(-1) / mask.sum(-1).clamp(min=1)).tolist()


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value

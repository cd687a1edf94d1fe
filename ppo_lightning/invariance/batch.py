"""The rows that the splits are compared on: a batch file, a run's rollout dump, or a small rollout of the recipe."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ppo_lightning.algorithms.tables import PARTS_KEY
from ppo_lightning.config.schema import Config, RewardConfig
from ppo_lightning.config.validate import sequences_per_minibatch, sequences_per_step
from ppo_lightning.data.datamodule import PromptDataModule
from ppo_lightning.data.prompts import render
from ppo_lightning.engines.base import Request, Sampling
from ppo_lightning.engines.transformers import TransformersEngine
from ppo_lightning.errors import DataError
from ppo_lightning.module import PPOModule
from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import pad_left, pad_right
from ppo_lightning.stages import ROLLED_OUT, estimator_reads

NO_CLIPPING = 1e30
"""Gradients are compared as they are."""

KEPT = {*ROLLED_OUT, "response_mask", "rm_scores", "dataset_index", "sample_index", "reward_baselines"}
"""What a rollout writes; later stages' keys are theirs to write again."""

PROMPTS, ROLLOUTS, RESPONSE_TOKENS, MAX_ROWS = 4, 2, 12, 32
"""Size of a batch that is made here, and the most rows taken from a recorded one."""


def batch_for(path: str | None, module: PPOModule, config: Config, say: Callable[[str], None]) -> DataProto:
    """Return scored rows, whole groups, with token counts as uneven as they come.

    Args:
        path: a file of DataProto.save, a rollouts/step_N.jsonl, or None to make rows.
        module: the recipe's models.
        config: the recipe, cut by `small`.
        say: told where the rows and their scores come from.

    Raises:
        DataError: the file is neither, or holds fewer than two rows.
    """
    if path is None:
        rows, where = _rolled_out(module, config), "one small rollout of the recipe's model on its own prompts"
    elif Path(path).suffix == ".jsonl":
        rows, where = _from_dump(Path(path), module), f"{path}, tokenised anew"
    else:
        rows, where = _first_groups(DataProto.load(Path(path))), path
    if len(rows) < 2:
        raise DataError(f"--batch {path}: holds {len(rows)} row(s); two can be split, one cannot")
    tokens = rows.batch["response_mask"].sum(-1)
    say(f"rows: {len(rows)} of {len(set(rows.non_tensor_batch['uid']))} prompts, from {where}")
    say(f"response tokens per row: {', '.join(str(n) for n in tokens.tolist())}")
    _score(rows, say)
    _add_what_estimators_read(rows, config)
    return rows.select([key for key in rows.tensors() if key in KEPT])


def small(config: Config, batch: DataProto | None = None) -> Config:
    """Return the recipe with a step of the batch's size (or of one made here), two mini-batches and epochs at most."""
    if batch is None:
        n = min(config.rollout.rollouts_per_prompt, ROLLOUTS)
        prompts, response = (PROMPTS if n > 1 else 2 * PROMPTS), min(config.rollout.response_tokens, RESPONSE_TOKENS)
        prompt_width = config.data.max_prompt_tokens
    else:
        prompts = len(set(batch.non_tensor_batch["uid"]))
        n, response = len(batch) // prompts, batch.batch["responses"].shape[1]
        prompt_width = batch.batch["input_ids"].shape[1] - response
    halves = sequences_per_minibatch(config) < sequences_per_step(config) and prompts % 2 == 0
    return replace(
        config,
        data=replace(
            config.data,
            prompts_per_step=prompts,
            max_prompt_tokens=prompt_width,
            max_train_rows=max(64, prompts) if batch is None else config.data.max_train_rows,
            val=None,
            workers=0,
        ),
        rollout=replace(config.rollout, rollouts_per_prompt=n, response_tokens=response),
        reward=RewardConfig(),
        actor=replace(config.actor, grad_clip=NO_CLIPPING),
        critic=replace(config.critic, grad_clip=NO_CLIPPING),
        algorithm=replace(config.algorithm, filter_groups=False),
        update=replace(
            config.update,
            sequences_per_minibatch=prompts * n // 2 if halves else None,
            ppo_epochs=min(config.update.ppo_epochs, 2),
        ),
    )


def _rolled_out(module: PPOModule, config: Config) -> DataProto:
    data = PromptDataModule(config, module.tokenizer, lambda text: None)
    rows = module.open_rows(data.draw(0), training=True)
    requests = [Request(i, tuple(ids), (1, i)) for i, ids in enumerate(rows.non_tensor_batch["raw_prompt_ids"])]
    actor: Any = module.actor
    engine = TransformersEngine(actor, module.tokenizer.pad_token_id, len(requests), 2**31)
    width = config.rollout.response_tokens
    # Budgets of uneven length, so that a wrong denominator shows whatever the model says.
    done = engine.generate(requests, Sampling(1.0, width, stop_ids=module.stop_ids))
    responses = [c.token_ids[: max(1, width - (5 * i) % width)] for i, c in enumerate(done)]
    laid = _laid_out(rows.non_tensor_batch["raw_prompt_ids"].tolist(), responses, module, config.data.max_prompt_tokens)
    laid.non_tensor_batch["finish_reason"] = as_column([c.finish_reason for c in done])
    return rows.union(laid)


def _from_dump(path: Path, module: PPOModule) -> DataProto:
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        kept = _whole_groups([line["uid"] for line in lines])
        lines = [lines[row] for row in kept]
        prompts = [render(module.tokenizer, line["input"]) for line in lines]
        responses = [module.tokenizer.encode(line["output"], add_special_tokens=False) for line in lines]
        scores = [float(line["score"] or 0.0) for line in lines]
        reasons = [line["finish_reason"] for line in lines]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"--batch {path}: must be a run's rollouts/step_N.jsonl: {error!r}") from None
    rows = _laid_out(prompts, responses, module, max(len(p) for p in prompts))
    uids = [line["uid"] for line in lines]
    places = {uid: place for place, uid in enumerate(dict.fromkeys(uids))}
    rows.non_tensor_batch |= {"uid": as_column(uids), "finish_reason": as_column(reasons)}
    rows.batch["dataset_index"] = torch.tensor([places[uid] for uid in uids])
    rows.batch["sample_index"] = torch.tensor([uids[:row].count(uid) for row, uid in enumerate(uids)])
    rows.batch["rm_scores"] = torch.zeros(rows.batch["responses"].shape)
    _write_scores(rows, torch.tensor(scores))
    return rows


def _laid_out(prompts: list[Any], responses: list[list[int]], module: PPOModule, width: int) -> DataProto:
    pad = module.tokenizer.pad_token_id
    prompt_ids, prompt_mask = pad_left(prompts, width, pad)
    response_ids, mask = pad_right(responses, max(1, max(map(len, responses))), pad)
    attention = torch.cat([prompt_mask, mask], 1)
    tensors = {
        "prompts": prompt_ids,
        "responses": response_ids,
        "input_ids": torch.cat([prompt_ids, response_ids], 1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(-1) - 1).clamp(min=0),
        "response_mask": mask,
    }
    meta = {"temperature": module.config.rollout.temperature, "global_steps": 1, "pad_token_id": pad, "validate": False}
    return DataProto.from_dict(tensors, None, meta)


def _first_groups(batch: DataProto) -> DataProto:
    return batch.select_idxs(_whole_groups(batch.non_tensor_batch["uid"].tolist()))


def _whole_groups(uids: list[str]) -> list[int]:
    """Return the rows of the first groups, equally large, that fit into MAX_ROWS."""
    members: dict[str, list[int]] = {}
    for row, uid in enumerate(uids):
        members.setdefault(uid, []).append(row)
    size = min(map(len, members.values()), default=0)
    groups = [rows[:size] for rows in members.values()][: max(1, MAX_ROWS // max(1, size))]
    return [row for rows in groups for row in rows]


def _score(rows: DataProto, say: Callable[[str], None]) -> None:
    """Draw scores where there are none, or where they are equal within every group: no advantage would be left."""
    if "rm_scores" in rows.tensors():
        scores, uids = rows.batch["rm_scores"].sum(-1), rows.non_tensor_batch["uid"]
        if any(float(scores[uids == uid].std(correction=0)) > 0 for uid in set(uids)) or scores.unique().numel() > 1:
            say("scores: as recorded")
            return
        rows.pop(["rm_scores"])
    rows.batch["rm_scores"] = torch.zeros(rows.batch["responses"].shape)
    _write_scores(rows, torch.randn(len(rows), generator=torch.Generator().manual_seed(1)))
    say("scores: drawn at random, so that advantages are not all zero")


def _add_what_estimators_read(rows: DataProto, config: Config) -> None:
    """Draw the columns that only a whole rollout brings: the baseline of a greedy response, parts of the reward."""
    generator = torch.Generator().manual_seed(3)
    if "reward_baselines" in estimator_reads(config):
        uids = list(dict.fromkeys(rows.non_tensor_batch["uid"]))
        drawn = torch.randn(len(uids), generator=generator)
        rows.batch["reward_baselines"] = drawn[[uids.index(uid) for uid in rows.non_tensor_batch["uid"]]]
    options = config.algorithm.adv_options
    for name in options.get(PARTS_KEY, ()):  # names that the user gave
        rows.non_tensor_batch[name] = as_column(torch.randn(len(rows), generator=generator).tolist())


def _write_scores(rows: DataProto, scores: torch.Tensor) -> None:
    last = rows.batch["attention_mask"][:, -rows.batch["responses"].shape[1] :].sum(-1) - 1
    rows.batch["rm_scores"][torch.arange(len(rows)), last] = scores

"""Stage 1: sample one response per row and score each as soon as it is finished."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ppo_lightning.engines.base import Completion, Engine, Request, Sampling
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import pad_left, pad_right, position_ids_from_mask
from ppo_lightning.rewards.streaming import RuleRewards
from ppo_lightning.stages import estimator_reads
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.dynamic_sampling import refill
from ppo_lightning.stages.greedy_baseline import greedy_baseline

TRAINING, VALIDATION = 0, 1
"""Random streams: what one samples never depends on the other."""


def rollout(batch: DataProto, context: StepContext) -> None:
    """Generate the responses of a training batch and join them to its rows.

    Reads: raw_prompt_ids, dataset_index, sample_index.
    Writes: prompts, responses, input_ids, attention_mask, position_ids, response_mask, rollout_log_probs, (rm_scores),
        (reward_baselines); every row anew with algorithm.filter_groups.
    """
    assert context.roller is not None, "RolloutCallback must be among the callbacks: it owns the engine"
    context.roller.fill(batch, context.seconds, context.book)
    if context.config.algorithm.filter_groups:
        refill(batch, context)
    if "reward_baselines" in estimator_reads(context.config):
        greedy_baseline(batch, context)


class Roller:
    """Fills batches with responses.

    Args:
        engine: what generates.
        tokenizer: decodes responses for the reward.
        rewards: takes finished responses during the rollout, or None (a reward model alone scores, later).
        seed: of the run.
        prompt_width: P.
        train, validation: how to sample.
        heartbeat: called with (finished, all) as responses finish.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        rewards: RuleRewards | None,
        *,
        seed: int,
        prompt_width: int,
        train: Sampling,
        validation: Sampling,
        heartbeat: Callable[[int, int], None] = lambda finished, total: None,
    ) -> None:
        self.engine, self.tokenizer, self.rewards = engine, tokenizer, rewards
        self.seed, self.prompt_width = seed, prompt_width
        self.train, self.validation, self.heartbeat = train, validation, heartbeat

    def fill(self, batch: DataProto, seconds: dict[str, float], book: MetricBook, greedy: bool = False) -> None:
        """Generate, score and join; waiting for late rewards goes to timer `reward`, not to `gen`."""
        sampling = self.validation if batch.meta_info["validate"] else self.train
        if greedy:
            sampling = replace(sampling, temperature=0.0, top_p=1.0, top_k=-1, min_p=0.0)
        finished = 0

        def on_finish(completion: Completion) -> None:
            nonlocal finished
            finished += 1
            self.heartbeat(finished, len(batch))
            if self.rewards is not None:
                text = self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)
                self.rewards.submit(batch, completion, text)

        self.engine.wake()
        completions = self.engine.generate(self._requests(batch), sampling, on_finish)
        self.engine.sleep()
        for key, number in self.engine.counts.items():
            book.sum(key, number)
        self.engine.counts.clear()
        filled = self._assemble(batch, completions, sampling)
        start = time.perf_counter()
        if self.rewards is not None:
            lengths = torch.tensor([len(completion.token_ids) for completion in completions])
            self.rewards.finish(filled, lengths, sampling.max_tokens, book)
        waited = time.perf_counter() - start
        seconds["reward"] = seconds.get("reward", 0.0) + waited
        seconds["gen"] = seconds.get("gen", 0.0) - waited
        batch.union(filled)

    def _requests(self, batch: DataProto) -> list[Request]:
        stream = VALIDATION if batch.meta_info["validate"] else TRAINING
        step = 0 if stream == VALIDATION else batch.meta_info["global_steps"]
        rows = zip(batch.batch["dataset_index"].tolist(), batch.batch["sample_index"].tolist(), strict=True)
        prompts = batch.non_tensor_batch["raw_prompt_ids"]
        return [
            Request(row, tuple(prompts[row]), (self.seed, stream, step, index, sample))
            for row, (index, sample) in enumerate(rows)
        ]

    def _assemble(self, batch: DataProto, completions: list[Completion], sampling: Sampling) -> DataProto:
        """Lay prompts left-padded and responses right-padded; the mask comes from the lengths, never from ids."""
        pad = batch.meta_info["pad_token_id"]
        prompts, prompt_mask = pad_left(batch.non_tensor_batch["raw_prompt_ids"].tolist(), self.prompt_width, pad)
        responses, mask = pad_right([c.token_ids for c in completions], sampling.max_tokens, pad)
        attention = torch.cat([prompt_mask, mask], 1)
        log_probs = torch.zeros(mask.shape, dtype=torch.float32)
        log_probs[mask.bool()] = torch.tensor([lp for c in completions for lp in c.log_probs], dtype=torch.float32)
        device = batch.batch.device or batch.batch["dataset_index"].device
        return DataProto.from_dict(
            tensors={
                "prompts": prompts.to(device),
                "responses": responses.to(device),
                "input_ids": torch.cat([prompts, responses], 1).to(device),
                "attention_mask": attention.to(device),
                "position_ids": position_ids_from_mask(attention).to(device),
                "response_mask": mask.to(device),
                "rollout_log_probs": log_probs.to(device),
            },
            non_tensors={"finish_reason": as_column([c.finish_reason for c in completions])},
            meta_info={"temperature": sampling.temperature},
        )

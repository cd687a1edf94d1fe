"""The embedded engine: decodes with the policy itself, so its weights are the current ones by construction.

Prompts of a group are prefilled once and shared; rows that finish leave the batch; keys and values are written in
place. Tokens depend on each request's key only (engines/sampling.py).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ppo_lightning.config.schema import Config
from ppo_lightning.engines.base import Completion, Interruptible, OnFinish, Request, Sampling, check_prompts
from ppo_lightning.engines.checksum import checksum
from ppo_lightning.engines.kv_cache import PlainCache, SharedCache, cache_for
from ppo_lightning.engines.packed_linear import packed_linears
from ppo_lightning.engines.sampling import draw, stream, uniforms
from ppo_lightning.models.attention import use_attention
from ppo_lightning.models.load import load_causal_lm
from ppo_lightning.models.lora import named_weights
from ppo_lightning.models.token_log_probs import head_logits

COMPACT_BELOW = 0.8
"""Rows are compacted when fewer than this share of the batch is still generating."""


@dataclass
class Decoding:
    """The state of one batch being decoded; row i of every array belongs to requests[i]."""

    requests: list[Request]
    streams: np.ndarray
    budget: np.ndarray
    alive: np.ndarray
    tokens: list[list[int]] = field(default_factory=list)
    log_probs: list[list[float]] = field(default_factory=list)


class TransformersEngine(Interruptible):
    """Generates with a transformers model.

    Args:
        model: the policy itself, or a copy in another dtype.
        pad_id: token that fills the left of shorter prompts.
        sequences_per_batch: rows decoded at once.
        context: longest sequence the model takes.
        shared: whether the model is the policy itself, so that it always has the policy's weights.
    """

    name = "transformers"

    def __init__(
        self, model: PreTrainedModel, pad_id: int, sequences_per_batch: int, context: int, shared: bool = False
    ) -> None:
        super().__init__()
        self.shared = shared
        self.model, self.pad_id = model, pad_id
        self.sequences_per_batch, self.context = sequences_per_batch, context
        self.version = 0
        self.counts: dict[str, float] = {}
        use_attention(model)
        self.cache = cache_for(model)
        # Logits rounded to bfloat16 are another distribution than the trainer's, which has them in float32.
        self.head = model.get_output_embeddings() if self.dtype.itemsize < torch.float32.itemsize else None

    def sync_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy the weights where the engine has its own (another dtype); shared ones need only the version."""
        self.version = version
        if self.shared:
            return
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in weights:
                if own[name] is not tensor:
                    own[name].copy_(tensor)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return next(self.model.parameters()).dtype

    def checksum(self) -> float:
        """Return the checksum of the model's weights."""
        return checksum(self.model.named_parameters())

    def expected_checksum(self, policy: nn.Module) -> float | None:
        """Return None when the policy's own tensors are used, else what a copy must add up to."""
        return None if policy is self.model else checksum((n, p.to(self.dtype)) for n, p in named_weights(policy))

    def generate(
        self, requests: list[Request], sampling: Sampling, on_finish: OnFinish | None = None
    ) -> list[Completion]:
        """Sample one response per request.

        Raises:
            EngineError: a prompt is empty or leaves no room in the model's context.
        """
        done: dict[int, Completion] = {}
        training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode(), packed_linears(self.model):
                for batch in self._batches(requests):
                    for completion in self._decode(batch, sampling):
                        done[completion.row] = completion
                        if on_finish:
                            on_finish(completion)
                            self.go_on()
        finally:
            self.model.train(training)
        return [done[request.row] for request in requests]

    def sleep(self) -> None:
        """Nothing is held between rollouts."""

    def wake(self) -> None:
        """Nothing to take."""

    def close(self) -> None:
        """Nothing to end."""

    def _batches(self, requests: list[Request]) -> Iterator[list[Request]]:
        """Cut into batches of similar prompt length, the requests of one prompt side by side."""
        check_prompts(requests, self.context)
        ordered = sorted(requests, key=lambda r: (len(r.prompt_ids), r.prompt_ids, r.key))
        for start in range(0, len(ordered), self.sequences_per_batch):
            yield ordered[start : start + self.sequences_per_batch]

    def _decode(self, requests: list[Request], sampling: Sampling) -> Iterator[Completion]:
        budget = np.array([min(sampling.max_tokens, self.context - len(r.prompt_ids)) for r in requests])
        state = Decoding(requests, stream([r.key for r in requests]), budget, np.ones(len(requests), dtype=bool))
        state.tokens, state.log_probs = [[] for _ in requests], [[] for _ in requests]
        logits, position, cache = self._prefill(requests, int(budget.max()))
        step = 0
        while True:
            self.go_on()
            uniform = torch.from_numpy(uniforms(state.streams, np.full(len(state.streams), step)))
            token, log_prob = draw(logits, sampling, uniform)
            step += 1
            yield from self._record(state, token.tolist(), log_prob.tolist(), sampling)
            if not state.alive.any():
                return
            if state.alive.mean() < COMPACT_BELOW:
                keep = torch.from_numpy(state.alive.nonzero()[0]).to(token.device)
                state = _select(state, keep.tolist())
                token, position = token[keep], position[keep]
                cache.keep(keep)
            logits = self._forward(token.unsqueeze(-1), position, **cache.inputs())
            position = position + 1

    def _prefill(self, requests: list[Request], room: int) -> tuple[Tensor, Tensor, SharedCache | PlainCache]:
        """Run every different prompt once; return logits (B, V), the next position (B, 1) and the cache."""
        unique: dict[tuple[int, ...], int] = {}
        owner = [unique.setdefault(r.prompt_ids, len(unique)) for r in requests]
        width = max(len(ids) for ids in unique)
        device = next(self.model.parameters()).device
        ids = torch.full((len(unique), width), self.pad_id)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(unique):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        ids, mask = ids.to(device), mask.to(device)
        cache = self.cache(self.model, mask, room)
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        logits = self._forward(ids, places, attention_mask=mask, past_key_values=cache)
        rows = torch.tensor(owner, device=device)
        cache.start(rows)
        return logits[rows], mask.sum(-1, keepdim=True)[rows], cache

    def _forward(self, ids: Tensor, position_ids: Tensor, **known: Any) -> Tensor:
        known |= {"position_ids": position_ids, "use_cache": True}
        if self.head is None:
            return self.model(input_ids=ids, logits_to_keep=1, **known).logits[:, -1]
        return head_logits(self.model.get_decoder()(input_ids=ids, **known).last_hidden_state[:, -1], self.head.weight)

    @staticmethod
    def _record(state: Decoding, token: list[int], log_prob: list[float], sampling: Sampling) -> Iterator[Completion]:
        """Append the drawn tokens of rows still generating; yield those that end here."""
        for row in state.alive.nonzero()[0]:
            state.tokens[row].append(token[row])
            state.log_probs[row].append(log_prob[row])
            stopped = token[row] in sampling.stop_ids and not sampling.ignore_eos
            if stopped or len(state.tokens[row]) >= state.budget[row]:
                state.alive[row] = False
                reason = "stop" if stopped else "length"
                yield Completion(state.requests[row].row, state.tokens[row], state.log_probs[row], reason)


def _select(state: Decoding, rows: list[int]) -> Decoding:
    return Decoding(
        [state.requests[r] for r in rows],
        state.streams[rows],
        state.budget[rows],
        state.alive[rows],
        [state.tokens[r] for r in rows],
        [state.log_probs[r] for r in rows],
    )


def build_transformers(config: Config, module: Any) -> TransformersEngine:
    """Decode with the policy itself, or with a copy where it is sharded or `rollout.dtype` asks for another type."""
    rollout, policy = config.rollout, module.actor
    dtype = config.model.dtype if rollout.dtype == "model" else rollout.dtype
    if dtype != config.model.dtype or module.ranks.sharded:  # a sharded policy cannot decode by itself
        policy = load_causal_lm(replace(config.model, dtype=dtype))
        policy.requires_grad_(requires_grad=False).to(module.device)
    context = getattr(policy.config, "max_position_embeddings", None) or 2**31
    pad, shared = module.tokenizer.pad_token_id, policy is module.actor
    return TransformersEngine(policy, pad, rollout.sequences_per_batch, context, shared)

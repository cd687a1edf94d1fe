"""What a rollout engine must do, whatever generates."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from ppo_lightning.config.schema import Config
from ppo_lightning.errors import EngineError
from ppo_lightning.signals import BrokenOffError


@dataclass(frozen=True)
class Request:
    """One response to sample.

    Attributes:
        row: the caller's number of this request; completions carry it back.
        prompt_ids: the rendered prompt's token ids.
        key: what the random stream of this response depends on, such as (seed, stream, step, dataset row, sample).
    """

    row: int
    prompt_ids: tuple[int, ...]
    key: tuple[int, ...]


@dataclass(frozen=True)
class Sampling:
    """How to sample. `temperature=0` is greedy; `max_tokens` is the response budget R."""

    temperature: float
    max_tokens: int
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    @property
    def truncated(self) -> bool:
        """Whether tokens outside a kept set have probability 0."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0


@dataclass(frozen=True)
class Completion:
    """One sampled response.

    Attributes:
        row: the request's number.
        token_ids: sampled ids; a sampled stop id is the last of them.
        log_probs: log-probability of each sampled token under the distribution it was drawn from.
        finish_reason: `stop` (a stop id was sampled), `length` (budget or context used up) or `abort`.
    """

    row: int
    token_ids: list[int]
    log_probs: list[float]
    finish_reason: str


OnFinish = Callable[[Completion], None]


class RolloutInterruptedError(BrokenOffError):
    """The process was asked to end while responses were being sampled; none of them is used."""


class Interruptible:
    """What engines share so that a long rollout does not hold up the end of a run.

    Attributes:
        interrupted: asked between tokens; true ends the rollout.
    """

    def __init__(self) -> None:
        self.interrupted: Callable[[], bool] = lambda: False

    def go_on(self) -> None:
        """Raise if the rollout is to end.

        Raises:
            RolloutInterruptedError: it is.
        """
        if self.interrupted():
            raise RolloutInterruptedError


def check_prompts(requests: list[Request], context: int) -> None:
    """Refuse prompts without tokens or without room for a response.

    Raises:
        EngineError: naming the row.
    """
    for request in requests:
        if not request.prompt_ids or len(request.prompt_ids) >= context:
            raise EngineError(
                f"row {request.row}: a prompt needs 1 to {context - 1} tokens, got {len(request.prompt_ids)}"
            )


def context_of(config: Config, actor: nn.Module) -> int:
    """Return the longest sequence that can come up: the model's context, or prompt and response budgets if shorter."""
    response = max(config.rollout.response_tokens, config.validation.response_tokens or 0)
    model = getattr(actor.config, "max_position_embeddings", None) or 2**31
    return min(model, config.data.max_prompt_tokens + response)


class Engine(Protocol):
    """Generates responses with the weights it was last given.

    Attributes:
        name: what `rollout.engine` calls it.
        version: number of the weights it was last given.
        counts: what went wrong and was mended since this was last emptied, by metric key.
        interrupted: asked at least once a second during a rollout; true ends it with RolloutInterruptedError.
    """

    name: str
    version: int
    interrupted: Callable[[], bool]
    counts: dict[str, float]

    def sync_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Take the policy's weights; afterwards `version` says which ones the engine samples from."""

    def checksum(self) -> float:
        """Return a number that depends on every weight the engine samples from."""

    def expected_checksum(self, policy: nn.Module) -> float | None:
        """Return what `checksum` must be if the engine has the policy's weights; None: they are the same tensors."""

    def generate(
        self, requests: list[Request], sampling: Sampling, on_finish: OnFinish | None = None
    ) -> list[Completion]:
        """Sample one response per request, in the order of the requests; `on_finish` sees each as soon as it ends."""

    def sleep(self) -> None:
        """Give memory back until the next wake."""

    def wake(self) -> None:
        """Take what generation needs."""

    def close(self) -> None:
        """End processes, free ports and memory."""

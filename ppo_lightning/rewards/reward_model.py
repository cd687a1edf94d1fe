"""Route B: a reward model scores whole batches - a sequence-classification model in this process, or one behind HTTP.

The batch is padded to a multiple of the worker count, chunked, scored concurrently, collected and cut to its length.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.data.chat import render as encode_chat
from ppo_lightning.errors import RewardError
from ppo_lightning.rewards.chat import chat_of, render
from ppo_lightning.rewards.judge import judge_batch, raised
from ppo_lightning.rewards.remote import RemoteModel
from ppo_lightning.rewards.sample import Sample, Scored

SEQUENCES_PER_FORWARD = 16
MAX_TOKENS = 8192

ScoreChunk = Callable[[Sequence[Sample]], Sequence[float]]


class BatchScorer(Protocol):
    """What route B needs: functions that score one chunk each, at the same time."""

    def workers(self) -> list[ScoreChunk]:
        """Return the workers."""

    def to(self, device: torch.device) -> None:
        """Run on a device from now on, if this process runs anything."""


def score_batch(samples: Sequence[Sample], workers: Sequence[ScoreChunk]) -> list[Scored]:
    """Score a batch on several workers at once; row order is kept.

    The batch is padded with rows from its head to a multiple of the worker count; what those score is cut off again. A
    worker that fails, or returns another number of scores than it got samples, makes its own chunk fail.
    """
    if not samples:
        return []
    size = -(-len(samples) // len(workers))
    padded = [samples[index % len(samples)] for index in range(size * len(workers))]
    chunks = [padded[start : start + size] for start in range(0, len(padded), size)]
    with ThreadPoolExecutor(max_workers=len(workers)) as threads:
        parts = list(threads.map(_score_chunk, workers, chunks))
    return [scored for part in parts for scored in part][: len(samples)]


def _score_chunk(worker: ScoreChunk, chunk: Sequence[Sample]) -> list[Scored]:
    start = perf_counter()
    try:
        outcomes = judge_batch(worker(chunk), len(chunk))
    except Exception as error:  # noqa: BLE001 - counted as a fault of this chunk's samples
        outcomes = [raised(error)] * len(chunk)
    seconds = (perf_counter() - start) / len(chunk)
    return [
        Scored(sample.row, outcome["score"], _column(outcome), outcome["fault"], outcome["detail"], seconds)
        for sample, outcome in zip(chunk, outcomes, strict=True)
    ]


def _column(outcome: dict[str, Any]) -> dict[str, Any]:
    return {} if outcome["score"] is None else {"rm_score": outcome["score"]}


def encode(tokenizer: Any, sample: Sample, limit: int) -> list[int]:
    """Return the chat as token ids; a chat that is too long loses its beginning, never its end."""
    if tokenizer.chat_template is None:
        return list(tokenizer(render(tokenizer, sample), truncation=True, max_length=limit)["input_ids"])
    return encode_chat(tokenizer, chat_of(sample), add_generation_prompt=False, whole=())[-limit:]


def pad(sequences: Sequence[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return (input_ids, attention_mask), both (b, S), padded on the right whatever the tokenizer's side is."""
    width = max(map(len, sequences))
    ids = torch.full((len(sequences), width), pad_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence, dtype=torch.long)
        mask[row, : len(sequence)] = 1
    return ids, mask


class LocalModel:
    """A sequence-classification model with one output, run in this process in batches.

    Decoder models read the score at the last token that differs from the padding token, so a chat that ends in that
    very token (pad == eos) would be read too early. So the padding id is one that occurs in none of the texts.

    Args:
        path: model folder or Hub id; its tokenizer and chat template come with it.
        device: where it runs.
        trust_remote_code: run Python code that comes with the folder.

    Raises:
        RewardError: the model cannot be loaded or has more than one output.
    """

    def __init__(self, path: str, device: torch.device | str = "cpu", trust_remote_code: bool = False) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(
                path, trust_remote_code=trust_remote_code, truncation_side="left"
            )
            model = AutoModelForSequenceClassification.from_pretrained(
                path, dtype=torch.float32, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError) as error:
            raise RewardError(f"reward.model_path={path} cannot be loaded: {error}") from error
        if model.config.num_labels != 1:
            raise RewardError(f"reward.model_path={path} must have one output - it has {model.config.num_labels}")
        self.model = model.to(device).eval().requires_grad_(False)
        self.device = torch.device(device)
        text_config = model.config.get_text_config()
        positions = int(getattr(text_config, "max_position_embeddings", MAX_TOKENS))
        self.limit = min(positions, self.tokenizer.model_max_length, MAX_TOKENS)
        self.vocabulary = int(text_config.vocab_size)

    def workers(self) -> list[ScoreChunk]:
        """Return the one worker."""
        return [self.score]

    def to(self, device: torch.device) -> None:
        """Move the model."""
        self.model.to(device)
        self.device = device

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Return one score per sample; a text scores the same alone and in any batch."""
        sequences = [encode(self.tokenizer, sample, self.limit) for sample in samples]
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        scores = [0.0] * len(sequences)
        for start in range(0, len(order), SEQUENCES_PER_FORWARD):
            rows = order[start : start + SEQUENCES_PER_FORWARD]
            for row, score in zip(rows, self._forward([sequences[row] for row in rows]), strict=True):
                scores[row] = score
        return scores

    @torch.inference_mode()
    def _forward(self, sequences: Sequence[list[int]]) -> list[float]:
        pad_id = self._padding_id(sequences)
        self.model.config.get_text_config().pad_token_id = pad_id
        ids, mask = pad(sequences, pad_id)
        logits = self.model(input_ids=ids.to(self.device), attention_mask=mask.to(self.device)).logits
        return [float(value) for value in logits.float().reshape(len(sequences), -1)[:, 0].cpu()]

    def _padding_id(self, sequences: Sequence[list[int]]) -> int:
        used = {token for sequence in sequences for token in sequence}
        own = self.tokenizer.pad_token_id
        if own is not None and own not in used:
            return int(own)
        return next(token for token in range(self.vocabulary) if token not in used)


def reward_model(config: RewardConfig, trust_remote_code: bool = False) -> BatchScorer:
    """Return the reward model that the configuration names.

    With an address and a path, the path names the tokenizer (and chat template) that texts for the server are rendered
    with; with an address alone the server renders the chat itself.

    Raises:
        RewardError: neither an address nor a path is set, or the model or tokenizer cannot be loaded.
    """
    if config.model_server is not None:
        return RemoteModel(config.model_server, _renderer(config.model_path), config.workers, config.timeout_s)
    if config.model_path is not None:
        return LocalModel(config.model_path, trust_remote_code=trust_remote_code)
    raise RewardError("route B needs reward.model_path or reward.model_server: neither is set")


def _renderer(path: str | None) -> Callable[[Sample], str] | None:
    if path is None:
        return None
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(Path(path)) if Path(path).exists() else path)
    except (OSError, ValueError) as error:
        raise RewardError(f"reward.model_path={path} holds no tokenizer: {error}") from error
    return lambda sample: render(tokenizer, sample)

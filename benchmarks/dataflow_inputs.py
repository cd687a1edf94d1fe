"""What both sides of the data-flow benchmark work on: one large batch, made from a seed with numpy only."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

PROMPT_TOKENS = 64


@dataclass(frozen=True)
class Size:
    """B rows, R response tokens, n rollouts per prompt."""

    rows: int
    tokens: int
    rollouts: int


def clock(threads: int) -> Callable[[], float]:
    """Return the clock to measure with: processor time would count the seconds of several threads together."""
    return time.process_time if threads == 1 else time.perf_counter


@cache
def fields(size: Size) -> dict[str, np.ndarray]:
    """Make every field a case reads: right-padded responses, one reward per row on its last valid token."""
    rng = np.random.RandomState(0)
    shape = (size.rows, size.tokens)
    lengths = rng.randint(1, size.tokens + 1, size.rows)
    mask = (np.arange(size.tokens) < lengths[:, None]).astype(np.int64)
    rewards = np.zeros(shape, dtype=np.float32)
    rewards[np.arange(size.rows), lengths - 1] = rng.rand(size.rows)
    chosen = rng.uniform(0.05, 0.95, shape).astype(np.float32)
    prompt_mask = (np.arange(PROMPT_TOKENS) >= rng.randint(0, PROMPT_TOKENS, size.rows)[:, None]).astype(np.int64)
    return {
        "token_level_rewards": rewards,
        "token_level_scores": rewards,
        "values": rng.randn(*shape).astype(np.float32),
        "advantages": rng.randn(*shape).astype(np.float32),
        "returns": rng.randn(*shape).astype(np.float32),
        "response_mask": mask,
        "attention_mask": np.concatenate([prompt_mask, mask], axis=1),
        "prompts": np.ones((size.rows, PROMPT_TOKENS), dtype=np.int64),
        "responses": rng.randint(0, 1000, shape),
        "reward_baselines": rng.rand(size.rows).astype(np.float32),
        "old_log_probs": np.log(chosen),
        "sum_pi_squared": chosen**2,
        "reward_parts": rng.rand(size.rows, 2),
        "uid": np.array([f"prompt-{row // size.rollouts}" for row in range(size.rows)], dtype=object),
        "lengths": prompt_mask.sum(1) + lengths,
    }


@cache
def columns(size: Size) -> dict[str, np.ndarray]:
    """Make the per-sample columns of a batch: strings and dicts."""
    rows = range(size.rows)
    return {
        "uid": fields(size)["uid"],
        "extra_info": np.array([{"index": row, "split": "train"} for row in rows], dtype=object),
        "data_source": np.array(["gsm8k" for _ in rows], dtype=object),
    }


@cache
def validation(size: Size) -> tuple[list[str], list[str], dict[str, list]]:
    """Make validation samples: data sources, uids and columns, n samples per prompt."""
    rng = np.random.RandomState(1)
    right = rng.randint(0, 2, size.rows).astype(float).tolist()
    answers = rng.randint(0, 4, size.rows).astype(str).tolist()
    return ["gsm8k"] * size.rows, fields(size)["uid"].tolist(), {"reward": right, "acc": right, "pred": answers}

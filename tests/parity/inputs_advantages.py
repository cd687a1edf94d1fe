"""Inputs for the parity of advantage estimators: the oracle and the tests make the same ones from seeds. numpy only."""

import hashlib
from dataclasses import dataclass

import numpy as np

RANDOM_CASES = 200


@dataclass(frozen=True)
class Case:
    """One batch: B rows, R tokens. Rewards stand on valid tokens, or in the last column of a row without any."""

    rewards: np.ndarray  # (B, R) float32
    values: np.ndarray  # (B, R) float32
    mask: np.ndarray  # (B, R) int64
    uid: np.ndarray  # (B,) strings as objects
    baselines: np.ndarray  # (B,) float32
    old_log_probs: np.ndarray  # (B, R) float32
    sum_pi_squared: np.ndarray  # (B, R) float32
    is_weights: np.ndarray  # (B, R) float32
    parts: np.ndarray  # (B, 2) float32
    gamma: float
    lam: float

    def has_lone_rows(self) -> bool:
        """Say whether some row has no companion."""
        return bool((np.unique(self.uid, return_counts=True)[1] == 1).any())

    def companions(self) -> np.ndarray:
        """Return the size of each row's group (B,)."""
        _, row, count = np.unique(self.uid.astype(str), return_inverse=True, return_counts=True)
        return count[row]

    def whitens(self) -> bool:
        """Say whether the batch has the two valid tokens that verl's whitening asks for."""
        return int(self.mask.sum()) > 1


def outcome_rewards(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Write one score per row on its last valid token; on the last column of a row that has none."""
    rewards = np.zeros(mask.shape, dtype=np.float32)
    last = mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
    rewards[np.arange(len(scores)), last] = scores
    return rewards


def _mask(rng: np.random.RandomState, rows: int, width: int, holes: bool) -> np.ndarray:
    lengths = rng.randint(0, width + 1, size=rows)
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    return mask * (rng.rand(rows, width) < 0.7) if holes else mask


def _uids(rng: np.random.RandomState, rows: int, lone: bool) -> np.ndarray:
    if lone:
        number = rng.randint(0, max(1, rows // 2) + 1, size=rows)
    else:
        size = rng.randint(2, rows + 1) if rows > 1 else 1
        number = np.minimum(np.arange(rows) // size, max(rows // size - 1, 0))
        rng.shuffle(number)
    return np.array([f"prompt-{n}" for n in number], dtype=object)


def make(seed: int, rows: int, width: int, kind: str, holes: bool, lone: bool) -> Case:
    """Make a random batch; `kind` is how rewards look: binary, real or token."""
    rng = np.random.RandomState(seed)
    mask = _mask(rng, rows, width, holes)
    scores = rng.randint(0, 2, rows) if kind == "binary" else rng.uniform(-1, 2, rows)
    rewards = outcome_rewards(scores.astype(np.float32), mask)
    if kind == "token":
        rewards = (rng.randn(rows, width) * mask).astype(np.float32)
    chosen = rng.uniform(0.05, 0.95, (rows, width))
    return Case(
        rewards=rewards,
        values=rng.randn(rows, width).astype(np.float32),
        mask=mask,
        uid=_uids(rng, rows, lone),
        baselines=rng.rand(rows).astype(np.float32),
        old_log_probs=np.log(chosen).astype(np.float32),
        sum_pi_squared=(chosen**2 + rng.uniform(0, 1, (rows, width)) * (1 - chosen) ** 2).astype(np.float32),
        is_weights=rng.uniform(0.2, 2.0, (rows, width)).astype(np.float32),
        parts=rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        # With 0.99 the two returns of a batch of two tokens differ by 1 %, and whitening shows float32's last digits.
        gamma=float(rng.choice([1.0, 0.9, 0.5])),
        lam=float(rng.choice([1.0, 0.95, 0.0])),
    )


def _with(case: Case, **changes: np.ndarray | float) -> Case:
    return Case(**{**case.__dict__, **changes})


def edge_cases() -> list[Case]:
    """Return batches at the borders of what can occur."""
    plain = make(1000, rows=16, width=5, kind="real", holes=False, lone=False)
    ones = np.ones(16, dtype=np.float32)
    full = np.ones_like(plain.mask)
    one_group = np.array(["only"] * 16, dtype=object)
    return [
        _with(plain, uid=one_group),
        _with(plain, mask=full, rewards=outcome_rewards(ones, full), uid=one_group),
        _with(plain, mask=full * 0, rewards=outcome_rewards(ones, full * 0)),
        _with(plain, mask=full, rewards=np.zeros_like(plain.rewards)),
        _with(plain, uid=np.array([f"{i % 2}" for i in range(16)], dtype=object)),
        make(1001, rows=1, width=1, kind="real", holes=False, lone=False),
        make(1002, rows=2, width=1, kind="real", holes=False, lone=False),
        make(1003, rows=1, width=9, kind="real", holes=False, lone=False),
        make(1004, rows=32, width=2, kind="binary", holes=True, lone=False),
        make(1005, rows=15, width=8, kind="token", holes=True, lone=False),
    ]


def difference_cases() -> dict[str, tuple[str, Case]]:
    """Return the inputs of the deliberate differences: name -> (estimator, batch)."""
    plain = make(2000, rows=16, width=4, kind="real", holes=False, lone=False)
    full = np.ones_like(plain.mask)
    same = np.full(16, 0.7, dtype=np.float32)
    pair = np.array(["a", "a", "lone", "b", "b"] + ["c"] * 11, dtype=object)
    junk = plain.values.copy()
    junk[plain.mask == 0] = np.nan
    on_tool = np.zeros_like(plain.rewards)
    on_tool[:, 3] = 1.0
    tool = full.copy()
    tool[:, 3] = 0
    single = np.zeros_like(full)
    single[0, 0] = 1
    eight = np.zeros_like(full)
    eight[:2] = 1
    empty_pair = full.copy()
    empty_pair[:2] = 0
    uneven = full.copy()
    uneven[1:, 2:] = 0
    group = np.array(["only"] * 16, dtype=object)
    return {
        "equal": ("grpo", _with(plain, mask=full, rewards=outcome_rewards(same, full), uid=group)),
        "lone": ("grpo", _with(plain, mask=full, rewards=outcome_rewards(same + np.arange(16), full), uid=pair)),
        "one_token": ("gae", _with(plain, mask=single)),
        "level": ("reinforce_plus_plus", _with(plain, mask=eight, rewards=outcome_rewards(same, eight), gamma=1.0)),
        "junk_values": ("gae", _with(plain, values=junk)),
        "under_mask": ("gae", plain),
        "on_tool": ("remax", _with(plain, mask=tool, rewards=on_tool, baselines=np.zeros(16, dtype=np.float32))),
        "no_tokens": ("opo", _with(plain, mask=empty_pair, uid=pair)),
        "tail": ("optimal_token_baseline", _with(plain, mask=uneven, rewards=outcome_rewards(same, uneven), uid=group)),
    }


def drawn_scores(seed: int) -> np.ndarray:
    """Return scores of rows for PF-PPO (B,)."""
    rng = np.random.RandomState(seed)
    return rng.choice([0.0, 0.25, 1.0, -0.5], size=rng.randint(1, 40)).astype(np.float32)


def cases() -> list[Case]:
    """Return all batches, always the same."""
    kinds = ("binary", "real", "token")
    found = []
    for seed in range(RANDOM_CASES):
        rng = np.random.RandomState(seed + 5000)
        rows, width = int(rng.randint(1, 12)), int(rng.randint(1, 9))
        found.append(make(seed, rows, width, kinds[seed % 3], holes=seed % 4 == 3, lone=seed % 5 == 4))
    return [*found, *edge_cases()]


def digest() -> str:
    """Return the sha256 of all inputs."""
    total = hashlib.sha256()
    for case in [*cases(), *(case for _, case in difference_cases().values())]:
        for value in case.__dict__.values():
            array = np.asarray(value)
            total.update("|".join(map(str, array)).encode() if array.dtype == object else array.tobytes())
    return total.hexdigest()

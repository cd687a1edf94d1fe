"""The bootstrap of best, worst and majority of k samples out of N, for all prompts at once. Torch-free.

verl draws 1000 times k indices with replacement per prompt, from a generator that it seeds anew each time, so every
prompt with N samples meets the same indices. They are drawn once here; prompts are the vectorised axis.
"""

import numpy as np

DRAWS = 1000
CHUNK = 64  # prompts at once: (DRAWS, CHUNK) arrays stay within a cache


def subset_sizes(samples: int) -> list[int]:
    """Return 2, 4, 8, ... below `samples`, and `samples` itself; none for a single sample."""
    sizes, size = [], 2
    while size < samples:
        sizes.append(size)
        size *= 2
    return [*sizes, samples] if samples > 1 else []


class Bootstrap:
    """Draws of indices by (N, k), from the legacy numpy generator: its stream never changes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._draws: dict[tuple[int, int], np.ndarray] = {}
        self._decided: dict[tuple[bytes, tuple[int, ...], int], np.ndarray] = {}

    def draws(self, samples: int, k: int) -> np.ndarray:
        """Return the indices (k, DRAWS) into N samples."""
        if (samples, k) not in self._draws:
            drawn = np.random.RandomState(self.seed).choice(samples, size=(DRAWS, k), replace=True)
            self._draws[samples, k] = np.ascontiguousarray(drawn.T)
        return self._draws[samples, k]

    def extremes(self, numbers: np.ndarray, k: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return {best: ..., worst: ...}, each (mean, std) over the draws for each prompt of `numbers` (U, N)."""
        drawn = self.draws(numbers.shape[1], k)
        best, worst = [], []
        for start in range(0, len(numbers), CHUNK):
            columns = np.ascontiguousarray(numbers[start : start + CHUNK].T)
            high = columns[drawn[0]]
            low = high.copy()
            for index in drawn[1:]:
                taken = columns[index]
                np.maximum(high, taken, out=high)
                np.minimum(low, taken, out=low)
            best.append(_moments(high.T))
            worst.append(_moments(low.T))
        return {"best": _join(best), "worst": _join(worst)}

    def majority(self, numbers: np.ndarray, codes: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (mean, std) over the draws of the value that the most frequent answer brings, for each prompt.

        Of answers that are equally frequent the one drawn first wins; it brings the value of its first sample drawn.

        Args:
            numbers: values (U, N).
            codes: answers (U, N), equal where two samples of a prompt agree.
            k: size of a draw.
        """
        winners = self._winners(codes, k)
        parts = range(0, len(numbers), CHUNK)
        return _join([_moments(_pick(numbers[at : at + CHUNK], winners[at : at + CHUNK])) for at in parts])

    def _winners(self, codes: np.ndarray, k: int) -> np.ndarray:
        """Return the sample that decides each draw (U, DRAWS); kept, because several variables share their votes."""
        key = (codes.tobytes(), codes.shape, k)
        if key not in self._decided:
            drawn = self.draws(codes.shape[1], k).astype(codes.dtype)
            parts = range(0, len(codes), CHUNK)
            self._decided[key] = np.concatenate([_decide(codes[at : at + CHUNK], drawn) for at in parts])
        return self._decided[key]


def _decide(codes: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return the sample whose answer wins each draw: codes (U, N), drawn (k, DRAWS) -> (U, DRAWS)."""
    votes = np.ascontiguousarray(codes.T)[drawn]  # (k, DRAWS, U)
    most = np.zeros(votes.shape[1:], dtype=codes.dtype)
    winner = np.zeros_like(most)
    for place, mine in zip(drawn, votes, strict=True):
        count = np.zeros_like(most)
        for other in votes:
            count += other == mine
        more = count > most
        np.copyto(winner, place[:, None], where=more)
        np.maximum(most, count, out=most)
    return winner.T


def _pick(numbers: np.ndarray, winners: np.ndarray) -> np.ndarray:
    """Return the winners' values: numbers (U, N), winners (U, DRAWS) -> (U, DRAWS)."""
    return np.take_along_axis(numbers, winners.astype(np.intp), axis=1)


def _moments(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and population deviation over the draws: (U, DRAWS) -> (U,), (U,)."""
    draws = np.ascontiguousarray(draws)
    return draws.mean(axis=1), draws.std(axis=1)


def _join(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

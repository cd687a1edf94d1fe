"""Which rows a step draws: a pure function of (seed, draw number), so that a position is one integer."""

from collections.abc import Iterator

import numpy as np


class PromptSampler:
    """Yields, per draw, this rank's positions in the prompt set.

    Draw k of E draws per epoch takes the k-th slice of epoch k // E's permutation; what is left at an epoch's end
    (fewer than `per_draw` rows) is dropped. Nothing is kept but the next draw's number: setting `start` puts the
    sampler exactly where any other run stood.

    Args:
        rows: size of the prompt set.
        per_draw: prompts per draw over all ranks.
        draws: how many draws to yield in all, counted from draw 0.
        seed: of the permutations.
        shuffle: a new order every epoch; False: the order of the file.
        start: number of the first draw to yield.
        rank: this rank.
        ranks: how many ranks share a draw.
    """

    def __init__(
        self,
        rows: int,
        per_draw: int,
        draws: int,
        seed: int,
        *,
        shuffle: bool,
        start: int = 0,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.rows, self.per_draw, self.draws, self.seed = rows, per_draw, draws, seed
        self.shuffle, self.start, self.rank, self.ranks = shuffle, start, rank, ranks

    @property
    def draws_per_epoch(self) -> int:
        """Number of whole draws in one pass over the prompts."""
        return self.rows // self.per_draw

    def __len__(self) -> int:
        """Return how many draws are left."""
        return max(self.draws - self.start, 0)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the positions of each remaining draw."""
        for number in range(self.start, self.draws):
            yield self.positions(number)

    def positions(self, number: int) -> list[int]:
        """Return this rank's positions in draw `number`."""
        epoch, place = divmod(number, self.draws_per_epoch)
        order = (
            np.random.default_rng((self.seed, epoch)).permutation(self.rows) if self.shuffle else np.arange(self.rows)
        )
        drawn = order[place * self.per_draw : (place + 1) * self.per_draw]
        share = len(drawn) // self.ranks
        return drawn[self.rank * share : (self.rank + 1) * share].tolist()

"""Which rows a step draws: a pure function of the number of the draw, so that a position is one integer."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ppo_lightning.errors import DataError

Order = Callable[[int], Sequence[int] | np.ndarray]
"""From an epoch to positions in the prompt set, in the order they are drawn."""


class PromptSampler:
    """Yields, per draw, this rank's positions in the prompt set.

    A draw is the same for any number of ranks, which take its prompts in turn: every mini-batch is spread evenly.
    Draw k of E draws per epoch takes the k-th slice of epoch k // E's order; what is left at an epoch's end (fewer
    than `per_draw` rows) is dropped. Nothing is kept but the next draw's number: setting `start` puts the sampler
    exactly where any other run stood.

    Args:
        rows: size of the prompt set.
        per_draw: prompts per draw over all ranks.
        draws: the draw before which to stop, counted from draw 0.
        order: of each epoch: `shuffled`, or any function of the epoch (a curriculum, a mixture of sources).
        start: number of the first draw to yield.
        rank: this rank.
        ranks: how many ranks share a draw.
        position: tells the number of the next draw as each is yielded, where a step may take several; None: they
            follow each other.
    """

    def __init__(
        self,
        rows: int,
        per_draw: int,
        draws: int,
        order: Order,
        *,
        start: int = 0,
        rank: int = 0,
        ranks: int = 1,
        position: Callable[[], int] | None = None,
    ) -> None:
        self.rows, self.per_draw, self.draws, self.order = rows, per_draw, draws, order
        self.start, self.rank, self.ranks, self.position = start, rank, ranks, position

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
            yield self.positions(number if self.position is None else self.position())

    def positions(self, number: int) -> list[int]:
        """Return this rank's positions in draw `number`.

        Raises:
            DataError: the order gives too few positions, or some outside the prompt set.
        """
        epoch, place = divmod(number, self.draws_per_epoch)
        order = np.asarray(self.order(epoch), dtype=np.int64)
        needed = self.draws_per_epoch * self.per_draw
        if order.ndim != 1 or len(order) < needed or order.min() < 0 or order.max() >= self.rows:
            raise DataError(
                f"data.order must give at least {needed} positions from 0 to {self.rows - 1} for epoch {epoch} - got "
                f"{len(order)} - return positions of prompts, in any order, as often as you like"
            )
        drawn = order[place * self.per_draw : (place + 1) * self.per_draw]
        return drawn[self.rank :: self.ranks].tolist()


def shuffled(rows: int, seed: int) -> Order:
    """Return another permutation of all rows for every epoch, a function of (seed, epoch)."""
    return lambda epoch: np.random.default_rng((seed, epoch)).permutation(rows)


def in_order(rows: int) -> Order:
    """Return the rows in the order of the file, every epoch."""
    return lambda epoch: range(rows)

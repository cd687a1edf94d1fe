"""Rows change ranks: those that have to, in one collective, and everyone has its rows in their common order again."""

import numpy as np
import torch

from ppo_lightning.parallel.ranks import Ranks
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import alike

ROW = "global_row"


def exchange(
    batch: DataProto, ranks: Ranks, owners: np.ndarray, targets: np.ndarray, sources: np.ndarray | None = None
) -> DataProto:
    """Return this rank's rows of a new batch whose row j is row `sources[j]` of the ranks' batches.

    Args:
        batch: this rank's rows; reads global_row (b,).
        ranks: who takes part; all of them, with equal plans.
        owners: (B,) rank that has each row now.
        targets: (M,) rank that each new row goes to.
        sources: (M,) the present row that each new row is; None: every row stays itself.

    Returns:
        The new rows of this rank in the order of their numbers, numbered anew.
    """
    sources = np.arange(len(targets)) if sources is None else sources
    senders = owners[sources]
    mine = np.flatnonzero(senders == ranks.rank)
    local = {row: place for place, row in enumerate(batch.tensors()[ROW].tolist())}
    places = np.array([local[row] for row in sources[mine].tolist()], dtype=np.int64)
    stays = targets[mine] == ranks.rank
    numbers, parts = [mine[stays]], [batch.select_idxs(places[stays])]
    if (senders != targets).any():
        going = batch.select_idxs(places[~stays]).to("cpu")
        going.meta_info = {}
        for new, rows in ranks.gather((mine[~stays], going)):
            wanted = targets[new] == ranks.rank
            numbers.append(new[wanted])
            parts.append(rows.select_idxs(wanted).to(batch.tensors()[ROW].device))
    joined = alike(parts)
    number = np.concatenate(numbers)
    order = np.argsort(number)
    joined = joined.select_idxs(order)
    rows = joined.tensors()[ROW]
    rows.copy_(torch.from_numpy(number[order]))
    return joined

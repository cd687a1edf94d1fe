"""How many groups can teach something. Stage settle."""

from ppo_lightning.algorithms.groups import compare, group_ids
from ppo_lightning.metrics.entries import row_sum
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import without_padding

EQUAL_GROUPS = "training/equal_score_groups"


def group_metrics(batch: DataProto, book: MetricBook) -> None:
    """Write the share of groups whose rows all have the same score, over groups of at least two rows.

    Group estimators give them advantage 0. Absent where no group has two rows.

    Reads: uid, token_level_scores (B, R).
    """
    batch = without_padding(batch)
    scores = row_sum(batch.tensors()["token_level_scores"]).double().cpu()
    groups = compare(scores, group_ids(batch.non_tensor_batch["uid"]))
    book.masked_mean(EQUAL_GROUPS, (~groups.signal).double(), groups.count > 1)

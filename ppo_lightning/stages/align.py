"""Stage 2: make sure that prompts and rollouts lie as every later stage takes them to lie.

The rollout was joined to its prompt rows by `union`; here the padding convention is verified, the response mask is
filled in if a loader brought none, the tokens of every row are counted over all ranks, and ranks get equal shares.
"""

import numpy as np

from ppo_lightning.parallel.balance import Layout
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import verify_convention
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.spread import spread


def align(batch: DataProto, context: StepContext) -> None:
    """Check the layout, count tokens, and spread groups over ranks by workload.

    Reads: prompts, responses, input_ids, attention_mask, global_row with several ranks.
    Writes: response_mask (if missing), global_token_num; with several ranks every row.

    Raises:
        DataError: a row breaks the padding convention.
    """
    if "response_mask" not in batch.batch:
        width = batch.batch["responses"].shape[1]
        batch.batch["response_mask"] = batch.batch["attention_mask"][:, -width:].clone()
    verify_convention(batch)
    count_tokens(batch, context)
    spread(batch, context)


def count_tokens(batch: DataProto, context: StepContext) -> None:
    """Write the prompt + response tokens of every row over all ranks into global_token_num, and note who has it."""
    counts = batch.batch["attention_mask"].sum(-1).tolist()
    if context.ranks.size > 1:
        parts = context.ranks.gather((batch.batch["global_row"].tolist(), counts))
        numbers, tokens = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
        order = np.argsort(numbers)
        owners = np.repeat(np.arange(len(parts)), [len(rows) for rows, _ in parts])
        context.layout = Layout(owners[order], tokens[order])
        counts = tokens[order].tolist()
    batch.meta_info["global_token_num"] = counts

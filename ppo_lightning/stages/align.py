"""Stage 2: make sure that prompts and rollouts lie as every later stage takes them to lie.

The rollout was joined to its prompt rows by `union`; here the padding convention is verified, the response mask is
filled in if a loader brought none, and the tokens of every row are counted over all ranks.
"""

from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import verify_convention
from ppo_lightning.stages.context import StepContext


def align(batch: DataProto, context: StepContext) -> None:
    """Check the layout and count tokens.

    Reads: prompts, responses, input_ids, attention_mask.
    Writes: response_mask (if missing), global_token_num.

    Raises:
        DataError: a row breaks the padding convention.
    """
    if "response_mask" not in batch.batch:
        width = batch.batch["responses"].shape[1]
        batch.batch["response_mask"] = batch.batch["attention_mask"][:, -width:].clone()
    verify_convention(batch)
    count_tokens(batch, context)


def count_tokens(batch: DataProto, context: StepContext) -> None:
    """Write the prompt + response tokens of every row over all ranks into global_token_num."""
    counts = batch.batch["attention_mask"].sum(-1).tolist()
    batch.meta_info["global_token_num"] = [n for part in context.ranks.gather(counts) for n in part]

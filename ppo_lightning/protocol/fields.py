"""Every key of a batch, declared once: layer, axes, dtype, the stage that writes it, its meaning. Imports no torch.

Axes: B sequences, P prompt width, R response width, S = P + R.
"""

from typing import NamedTuple

BATCH, NON_TENSOR, META = "batch", "non_tensor_batch", "meta_info"
LAYERS = (BATCH, NON_TENSOR, META)

B, BP, BR, BS = ("B",), ("B", "P"), ("B", "R"), ("B", "S")


class Field(NamedTuple):
    """One key of a batch.

    Attributes:
        name: The key.
        layer: One of `LAYERS`.
        axes: Names of its axes; empty for per-step values.
        dtype: torch dtype of a tensor, numpy dtype of a column (`object`: any), Python type of a per-step value.
        stage: The stage that writes it; `data` is the loader, `padding` is `padding.pad_to_divisor`.
        doc: One line of meaning.
    """

    name: str
    layer: str
    axes: tuple[str, ...]
    dtype: str
    stage: str
    doc: str


_DECLARED = (
    Field("prompts", BATCH, BP, "int64", "rollout", "token ids of the prompt, left-padded"),
    Field("responses", BATCH, BR, "int64", "rollout", "token ids of the response, right-padded"),
    Field("input_ids", BATCH, BS, "int64", "rollout", "prompt ++ response, as the model reads it"),
    Field("attention_mask", BATCH, BS, "int64", "rollout", "1 on prompt and response tokens, 0 on padding"),
    Field(
        "position_ids", BATCH, BS, "int64", "rollout", "position of each token, from 0 at the first token of the prompt"
    ),
    Field("response_mask", BATCH, BR, "int64", "rollout", "1 on tokens that are trained: the loss weight"),
    Field(
        "rollout_log_probs",
        BATCH,
        BR,
        "float32",
        "rollout",
        "log-probs of the sampled tokens as the engine reports them",
    ),
    Field("sample_index", BATCH, B, "int64", "rollout", "which of the n rollouts of its prompt a row is, from 0"),
    Field("dataset_index", BATCH, B, "int64", "data", "row of the data set that the prompt was drawn from"),
    Field(
        "global_row", BATCH, B, "int64", "data", "number of the row among those of all ranks: the order they belong in"
    ),
    Field(
        "rm_scores",
        BATCH,
        BR,
        "float32",
        "score",
        "reward at the token that earns it; an outcome reward at the last one",
    ),
    Field(
        "reward_baselines", BATCH, B, "float32", "rollout", "score of the greedy response to the row's prompt (ReMax)"
    ),
    Field(
        "old_log_probs", BATCH, BR, "float32", "old_log_prob", "log-probs under the policy before this step's updates"
    ),
    Field(
        "entropys",
        BATCH,
        BR,
        "float32",
        "old_log_prob",
        "entropy of the policy per token; logged and popped by its stage",
    ),
    Field(
        "sum_pi_squared",
        BATCH,
        BR,
        "float32",
        "old_log_prob",
        "sum over the vocabulary of squared probabilities, for estimators and metrics of variance",
    ),
    Field("ref_log_prob", BATCH, BR, "float32", "ref_log_prob", "log-probs under the reference model"),
    Field("values", BATCH, BR, "float32", "values", "the critic's values before this step's updates"),
    Field("token_level_scores", BATCH, BR, "float32", "advantage", "rm_scores as the advantage stage takes them over"),
    Field(
        "token_level_rewards",
        BATCH,
        BR,
        "float32",
        "advantage",
        "scores less kl_coef * KL(old, ref) if KL is in the reward",
    ),
    Field("advantages", BATCH, BR, "float32", "advantage", "advantage of each response token"),
    Field("returns", BATCH, BR, "float32", "advantage", "what the critic is trained towards"),
    Field(
        "rollout_is_weights",
        BATCH,
        BR,
        "float32",
        "advantage",
        "importance weights between engine and trainer, truncated",
    ),
    Field(
        "selection",
        BATCH,
        BR,
        "bool",
        "update",
        "tokens that the policy loss picked; of a mini-batch, not of the batch",
    ),
    Field("is_padding", BATCH, B, "bool", "padding", "marks rows that only fill up the shape and count nowhere"),
    Field("uid", NON_TENSOR, B, "object", "data", "one name per draw of a prompt: rows of one group share it"),
    Field("data_source", NON_TENSOR, B, "object", "data", "where the row comes from: picks the scorer, names metrics"),
    Field(
        "reward_model", NON_TENSOR, B, "object", "data", "dict with `ground_truth`, the answer the scorer compares with"
    ),
    Field("extra_info", NON_TENSOR, B, "object", "data", "dict of anything else that the reward function wants to see"),
    Field("raw_prompt", NON_TENSOR, B, "object", "data", "the prompt as a list of chat messages"),
    Field(
        "raw_prompt_ids", NON_TENSOR, B, "object", "data", "the prompt as a list of token ids, chat template included"
    ),
    Field("finish_reason", NON_TENSOR, B, "object", "rollout", "why generation ended: stop, length or abort"),
    Field("global_steps", META, (), "int", "data", "number of the training step, from 1"),
    Field("validate", META, (), "bool", "data", "whether this is a validation batch"),
    Field("temperature", META, (), "float", "rollout", "sampling temperature; log-probs are taken at it"),
    Field("eos_token_id", META, (), "list", "rollout", "every token id that ends a response"),
    Field("pad_token_id", META, (), "int", "rollout", "token id on padding positions; may equal an end-of-sequence id"),
    Field("global_token_num", META, (), "list", "align", "prompt + response tokens of every row over all ranks"),
)

FIELDS: dict[str, Field] = {declared.name: declared for declared in _DECLARED}

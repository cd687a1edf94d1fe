"""Stage 7: from scores to rewards (KL in reward), then to advantages and returns."""

import torch

from ppo_lightning.algorithms import ADVANTAGES
from ppo_lightning.algorithms.advantages.gdpo import stack_parts
from ppo_lightning.algorithms.kl import kl, row_mean, subtract_kl
from ppo_lightning.algorithms.tables import PARTS_KEY, Estimator, find_estimator, resolve
from ppo_lightning.config.schema import AlgorithmConfig
from ppo_lightning.protocol.contract import has
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import group_ids
from ppo_lightning.stages import corrects_rollout
from ppo_lightning.stages.context import StepContext
from ppo_lightning.stages.correction import correct_rollout
from ppo_lightning.stages.resample import resample_rows


def advantage(batch: DataProto, context: StepContext) -> None:
    """Write token rewards, advantages and returns.

    Reads: rm_scores, response_mask, uid; old_log_probs and ref_log_prob with KL in the reward; what estimators read.
    Writes: token_level_scores, token_level_rewards, advantages, returns (B, R); with rollout correction response_mask
    and rollout_is_weights as well, or in bypass mode old_log_probs.
    """
    bypass = context.config.rollout_correction.bypass_mode
    if bypass:
        batch.batch["old_log_probs"] = batch.batch["rollout_log_probs"].clone()
    scores = batch.batch["rm_scores"]
    batch.batch["token_level_scores"] = scores
    batch.batch["token_level_rewards"] = (
        _subtract_kl(batch, context) if context.config.algorithm.use_kl_in_reward else scores
    )
    if corrects_rollout(context.config) and not bypass:
        correct_rollout(batch, context)
    estimator = find_estimator(ADVANTAGES, context.config.algorithm.adv_estimator)
    found = resolve(estimator.path)(**_arguments(estimator, batch, context))
    batch.batch["advantages"], batch.batch["returns"] = (part.float() for part in found)
    if context.config.algorithm.pf_ppo_reweight != "off":
        resample_rows(batch, context)


def _subtract_kl(batch: DataProto, context: StepContext) -> torch.Tensor:
    """Return scores - kl_coef * KL(old, ref) and move the controller by the global mean KL."""
    tensors, controller = batch.batch, context.kl_controller
    mask = tensors["response_mask"]
    divergence = kl(tensors["old_log_probs"], tensors["ref_log_prob"], mask, context.config.algorithm.kl_penalty)
    rewards = subtract_kl(tensors["token_level_scores"], divergence, mask, controller.value)
    total, rows = row_mean(divergence, mask)
    context.book.mean("actor/reward_kl_penalty", total, rows)
    if context.ranks.first:
        context.book.mean("actor/reward_kl_penalty_coeff", controller.value)
    total, rows = context.ranks.sum(torch.tensor([total, rows], dtype=torch.float64)).tolist()
    controller.update(total / rows if rows else None, int(rows))
    return rewards


def _arguments(estimator: Estimator, batch: DataProto, context: StepContext) -> dict:
    """Collect what the estimator reads, its options, and the sum over ranks if it takes one."""
    algorithm = context.config.algorithm
    reads = {name: _field(batch, name, algorithm) for name in estimator.reads}
    reads |= {name: batch.batch[name] for name in estimator.optional if has(batch, name)}
    options = {name: getattr(algorithm, name) for name in estimator.options if hasattr(algorithm, name)}
    options |= {name: value for name, value in algorithm.adv_options.items() if name in estimator.options}
    return reads | options | ({"all_reduce": context.ranks.sum} if estimator.reduces else {})


def _field(batch: DataProto, name: str, algorithm: AlgorithmConfig) -> object:
    """Return what an estimator calls `name`: a tensor, a column, or one of the two that are made for the call."""
    if name == "group":
        return group_ids(batch)
    if name == "reward_parts":
        mask = batch.batch["response_mask"]
        return stack_parts(batch.non_tensor_batch, algorithm.adv_options[PARTS_KEY]).to(mask.device)
    return batch.batch[name] if name in batch.batch.keys() else batch.non_tensor_batch[name]  # noqa: SIM118

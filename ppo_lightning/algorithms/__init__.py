"""The mathematics of a step: plain functions on tensors."""

from ppo_lightning.algorithms.policy_losses import POLICY_LOSSES

__all__ = ["POLICY_LOSSES"]

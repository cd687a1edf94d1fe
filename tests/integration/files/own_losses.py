"""Policy losses and estimators of a user: one that keeps to tokens, and some that divide by what lies beside them."""

import torch


def by_token(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights=None):
    """The unclipped ratio: invariant."""
    ratio = torch.exp(log_prob - old_log_prob)
    return -advantages * ratio, {"actor/own_ratio": ratio.detach()}


def by_micro_batch(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights=None):
    """Divided by the tokens that happen to be in the same forward pass."""
    ratio = torch.exp(log_prob - old_log_prob)
    return -advantages * ratio / response_mask.sum(), {}


def metric_of_micro_batch(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights=None):
    """The loss is right; what is logged is the largest ratio of the forward pass."""
    ratio = torch.exp(log_prob - old_log_prob)
    return -advantages * ratio, {"actor/own_ratio": ratio.detach().max().expand_as(ratio)}


def not_a_number(old_log_prob, log_prob, advantages, response_mask, rollout_is_weights=None):
    """Nothing can be updated with it."""
    return log_prob * float("nan"), {}

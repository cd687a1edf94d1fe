"""Estimators of KL(policy, reference) per token: the penalty in the reward (stage 7) and the KL loss (stage 8)."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ppo_lightning.errors import ConfigError

K3_LIMIT = 10.0
# The two roots of exp(x) - x - 1 = K3_LIMIT: between them k3 is not clamped.
K3_LOWEST = -10.999983298020258
K3_HIGHEST = 2.6108686381498756

BASES = {"k1": "k1", "kl": "k1", "abs": "abs", "k2": "k2", "mse": "k2", "k3": "k3", "low_var_kl": "k3"}


def kl(
    log_prob: Float[Tensor, "b R"],
    ref_log_prob: Float[Tensor, "b R"],
    response_mask: Shaped[Tensor, "b R"],
    estimator: str,
) -> Float[Tensor, "b R"]:
    """Estimate the KL divergence from the log-probabilities of the sampled tokens.

    With `d = log_prob - ref_log_prob`: k1 `d`, abs `|d|`, k2 `d^2 / 2`, k3 `exp(-d) + d - 1` limited to `K3_LIMIT`
    (Schulman 2020, http://joschu.net/blog/kl-approx.html). A trailing `+` keeps the value and takes the gradient of
    k2, `d`, whose expectation is the gradient of the KL. The limit of k3 holds for its value only: beyond it the
    gradient keeps the slope it has at the limit, so that it is bounded and still points to the reference. The
    gradient of k1 is 1 wherever the policy is: use it in the reward, not in the loss.

    Args:
        log_prob: log-probabilities of the policy; the gradient flows here.
        ref_log_prob: log-probabilities of the reference.
        response_mask: nonzero where a token counts; elsewhere value and gradient are 0.
        estimator: k1 or kl, abs, k2 or mse, k3 or low_var_kl, each also with a trailing `+`.

    Raises:
        ConfigError: the estimator is unknown.
    """
    name = _base(estimator)
    difference = _difference(log_prob, ref_log_prob, response_mask)
    if estimator.endswith("+"):
        return _straight_through(_value(difference.detach(), name), difference.detach(), difference)
    if name == "k3":
        inside = -difference.detach().clamp(min=-K3_HIGHEST, max=-K3_LOWEST)
        return _straight_through(_value(difference.detach(), name), 1 - inside.exp(), difference)
    return _value(difference, name)


def k3_clamped(
    log_prob: Float[Tensor, "b R"],
    ref_log_prob: Float[Tensor, "b R"],
    response_mask: Shaped[Tensor, "b R"],
    estimator: str,
) -> Float[Tensor, "b R"]:
    """Return 1 where the value of the estimator is limited, the token numerators of actor/kl_clamped_frac; else 0."""
    difference = _difference(log_prob, ref_log_prob, response_mask).detach()
    if _base(estimator) != "k3":
        return torch.zeros_like(difference)
    return ((difference < -K3_HIGHEST) | (difference > -K3_LOWEST)).to(difference.dtype)


def row_mean(values: Float[Tensor, "B R"], mask: Shaped[Tensor, "B R"]) -> tuple[float, float]:
    """Return (sum over rows of the row's token mean, rows with a token): sum both over ranks, then divide.

    Rows without a token are in neither, so that they cannot drive the adaptive controller.
    """
    valid = mask.bool()
    tokens = valid.sum(-1)
    means = torch.where(valid, values, 0.0).sum(-1) / tokens.clamp(min=1)
    return means.sum(dtype=torch.float64).item(), float((tokens > 0).sum().item())


def subtract_kl(
    token_level_scores: Float[Tensor, "B R"],
    divergence: Float[Tensor, "B R"],
    response_mask: Shaped[Tensor, "B R"],
    kl_coef: float,
) -> Float[Tensor, "B R"]:
    """Return token_level_rewards: the scores minus kl_coef times the divergence at valid tokens.

    Scores at masked positions stay: a row without tokens keeps the score in its last column.
    """
    return token_level_scores - kl_coef * torch.where(response_mask.bool(), divergence, 0.0)


def _base(estimator: str) -> str:
    name = estimator.removesuffix("+")
    if name not in BASES:
        raise ConfigError(
            f"a KL estimator must be one of {', '.join(BASES)}, each also with a trailing + - got {estimator!r} - "
            "set algorithm.kl_penalty and actor.kl_loss_type to one of them"
        )
    return BASES[name]


def _difference(log_prob: Tensor, ref_log_prob: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.bool(), log_prob - ref_log_prob, 0.0)


def _value(difference: Tensor, name: str) -> Tensor:
    if name == "k1":
        return difference
    if name == "abs":
        return difference.abs()
    if name == "k2":
        return 0.5 * difference.square()
    # exp(20) is far above the limit and far from overflow.
    negative = (-difference).clamp(min=-20.0, max=20.0)
    return (negative.exp() - negative - 1).clamp(max=K3_LIMIT)


def _straight_through(value: Tensor, slope: Tensor, variable: Tensor) -> Tensor:
    """Return `value` with the gradient `slope` towards `variable`."""
    return value + slope * (variable - variable.detach())

"""The mathematics of a step: plain functions on tensors, and the tables of their names. Imports no torch."""

from ppo_lightning.algorithms.tables import Estimator, PolicyLoss

_HERE = "ppo_lightning.algorithms.advantages"
_REWARDS = ("token_level_rewards", "response_mask")
_GROUP = (*_REWARDS, "group")
_TOKEN_BASELINE = (*_GROUP, "old_log_probs", "sum_pi_squared")
_STD = ("norm_adv_by_std_in_grpo",)

# The names are verl's; the two _vectorized ones are there for its configurations.
ADVANTAGES: dict[str, Estimator] = {
    "gae": Estimator(f"{_HERE}.gae:gae", (*_REWARDS, "values"), ("gamma", "lam"), critic=True, reduces=True),
    "grpo": Estimator(f"{_HERE}.grpo:grpo", _GROUP, _STD, grouped=True),
    "grpo_vectorized": Estimator(f"{_HERE}.grpo:grpo", _GROUP, _STD, grouped=True),
    "grpo_passk": Estimator(f"{_HERE}.grpo_passk:grpo_passk", _GROUP, _STD, grouped=True),
    "gdpo": Estimator(
        f"{_HERE}.gdpo:gdpo",
        ("reward_parts", "response_mask", "group"),
        (*_STD, "gdpo_reward_weights"),
        grouped=True,
        reduces=True,
    ),
    "reinforce_plus_plus": Estimator(
        f"{_HERE}.reinforce_plus_plus:reinforce_plus_plus", _REWARDS, ("gamma",), reduces=True
    ),
    "reinforce_plus_plus_baseline": Estimator(
        f"{_HERE}.reinforce_plus_plus_baseline:reinforce_plus_plus_baseline", _GROUP, grouped=True, reduces=True
    ),
    "rloo": Estimator(f"{_HERE}.rloo:rloo", _GROUP, grouped=True),
    "rloo_vectorized": Estimator(f"{_HERE}.rloo:rloo", _GROUP, grouped=True),
    "opo": Estimator(f"{_HERE}.opo:opo", _GROUP, grouped=True),
    "remax": Estimator(f"{_HERE}.remax:remax", (*_REWARDS, "reward_baselines")),
    "gpg": Estimator(f"{_HERE}.gpg:gpg", _GROUP, ("f_norm",), grouped=True, reduces=True),
    "optimal_token_baseline": Estimator(
        f"{_HERE}.optimal_token_baseline:optimal_token_baseline",
        _TOKEN_BASELINE,
        ("handle_zero_tail",),
        ("rollout_is_weights",),
        grouped=True,
    ),
    "tir_optimal_token_baseline": Estimator(
        f"{_HERE}.tir_optimal_token_baseline:tir_optimal_token_baseline",
        _TOKEN_BASELINE,
        ("handle_zero_tail",),
        ("rollout_is_weights",),
        grouped=True,
    ),
}

_LOSS = "ppo_lightning.algorithms.policy_losses"
_BAND = ("clip_ratio_low", "clip_ratio_high")

# A key of `options` is a key of the `actor` section if there is one, else of `actor.loss_options`.
POLICY_LOSSES: dict[str, PolicyLoss] = {
    "vanilla": PolicyLoss(f"{_LOSS}.ppo_clip:ppo_clip", (*_BAND, "clip_ratio_c"), scales=True),
    "gspo": PolicyLoss(f"{_LOSS}.gspo:gspo", _BAND, scales=True),
    "sapo": PolicyLoss(f"{_LOSS}.sapo:sapo", ("tau_pos", "tau_neg"), loss_agg_mode="seq-mean-token-mean", scales=True),
    "gpg": PolicyLoss(f"{_LOSS}.gpg:gpg", ratio=False, scales=True),
    "clip_cov": PolicyLoss(
        f"{_LOSS}.clip_cov:clip_cov",
        (*_BAND, "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"),
        selection=f"{_LOSS}.clip_cov:selection",
        scales=True,
    ),
    "kl_cov": PolicyLoss(
        f"{_LOSS}.kl_cov:kl_cov", ("kl_cov_ratio", "ppo_kl_coef"), selection=f"{_LOSS}.kl_cov:selection"
    ),
    "geo_mean": PolicyLoss(f"{_LOSS}.geo_mean:geo_mean", _BAND, loss_agg_mode="seq-mean-token-mean", scales=True),
    "cispo": PolicyLoss(f"{_LOSS}.cispo:cispo", _BAND, scales=True),
    "dppo_tv": PolicyLoss(f"{_LOSS}.dppo:dppo_tv", (*_BAND, "clip_ratio_c"), scales=True),
    "dppo_kl": PolicyLoss(f"{_LOSS}.dppo:dppo_kl", (*_BAND, "clip_ratio_c"), scales=True),
    "dro": PolicyLoss(f"{_LOSS}.dro:dro", ("dro_beta",), required=("dro_beta",), ratio=False),
    "reinforce": PolicyLoss(f"{_LOSS}.reinforce:reinforce", ratio=False, scales=True),
}

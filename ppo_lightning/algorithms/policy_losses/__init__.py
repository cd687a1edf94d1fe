"""The policy losses: one function of the policy's log-probabilities each, listed here. Imports no torch."""

from ppo_lightning.algorithms.tables import PolicyLoss

_HOME = "ppo_lightning.algorithms.policy_losses"
_BAND = ("clip_ratio_low", "clip_ratio_high")

POLICY_LOSSES: dict[str, PolicyLoss] = {
    "vanilla": PolicyLoss(f"{_HOME}.ppo_clip:ppo_clip", (*_BAND, "clip_ratio_c")),
    "gspo": PolicyLoss(f"{_HOME}.gspo:gspo", _BAND),
    "sapo": PolicyLoss(f"{_HOME}.sapo:sapo", ("tau_pos", "tau_neg"), loss_agg_mode="seq-mean-token-mean"),
    "gpg": PolicyLoss(f"{_HOME}.gpg:gpg", ratio=False),
    "clip_cov": PolicyLoss(
        f"{_HOME}.clip_cov:clip_cov",
        (*_BAND, "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"),
        selection=f"{_HOME}.clip_cov:selection",
    ),
    "kl_cov": PolicyLoss(
        f"{_HOME}.kl_cov:kl_cov", ("kl_cov_ratio", "ppo_kl_coef"), selection=f"{_HOME}.kl_cov:selection"
    ),
    "geo_mean": PolicyLoss(f"{_HOME}.geo_mean:geo_mean", _BAND, loss_agg_mode="seq-mean-token-mean"),
    "cispo": PolicyLoss(f"{_HOME}.cispo:cispo", _BAND),
    "dppo_tv": PolicyLoss(f"{_HOME}.dppo:dppo_tv", (*_BAND, "clip_ratio_c")),
    "dppo_kl": PolicyLoss(f"{_HOME}.dppo:dppo_kl", (*_BAND, "clip_ratio_c")),
    "dro": PolicyLoss(f"{_HOME}.dro:dro", ("dro_beta",), ratio=False),
    "reinforce": PolicyLoss(f"{_HOME}.reinforce:reinforce", ratio=False),
}

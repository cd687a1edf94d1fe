"""Advantage estimators, one file each."""

from ppo_lightning.algorithms.tables import Estimator

_HOME = "ppo_lightning.algorithms.advantages"

ADVANTAGES: dict[str, Estimator] = {
    "gae": Estimator(f"{_HOME}.gae:gae", ("token_level_rewards", "values", "response_mask"), ("gamma", "lam"), critic=True, reduces=True),
    "grpo": Estimator(f"{_HOME}.grpo:grpo", ("token_level_rewards", "response_mask", "group"), ("norm_adv_by_std_in_grpo",), grouped=True),
}

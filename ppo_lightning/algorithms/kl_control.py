"""The coefficient of the KL penalty in the reward: fixed, or moved towards a target after every step's stage 7."""

import math
from dataclasses import dataclass

from ppo_lightning.errors import ConfigError


@dataclass
class FixedKLController:
    """A coefficient that stays.

    Attributes:
        value: the coefficient.
    """

    value: float

    def update(self, current_kl: float | None, sequences: int) -> None:
        """Do nothing: the coefficient is fixed."""

    def state_dict(self) -> dict[str, float]:
        """Return what a checkpoint must hold."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take the coefficient from the configuration, not from the checkpoint: the user may have changed it."""


@dataclass
class AdaptiveKLController:
    """A coefficient that grows while the KL is above the target (Ziegler et al. 2019, section 2.2).

    `value *= 1 + clip(kl / target - 1, -0.2, 0.2) * sequences / horizon`.

    Attributes:
        value: the coefficient now.
        target: KL aimed at, in nats per token.
        horizon: sequences over which the coefficient moves.
    """

    value: float
    target: float
    horizon: int

    def __post_init__(self) -> None:
        if self.horizon <= 0 or self.target <= 0:
            raise ConfigError(
                f"algorithm.kl_horizon and algorithm.kl_target must be positive - got {self.horizon} and {self.target} "
                "- choose positive values or algorithm.kl_ctrl=fixed"
            )

    def update(self, current_kl: float | None, sequences: int) -> None:
        """Move the coefficient by one step.

        Args:
            current_kl: mean over the global rows of the row's token-mean KL. None (no row has a token) and NaN leave
                the coefficient alone.
            sequences: global number of rows with a token.
        """
        if current_kl is None or math.isnan(current_kl):
            return
        error = min(max(current_kl / self.target - 1, -0.2), 0.2)
        self.value *= 1 + error * sequences / self.horizon

    def state_dict(self) -> dict[str, float]:
        """Return what a checkpoint must hold."""
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from the coefficient of a checkpoint."""
        self.value = state["value"]


def kl_controller(kind: str, kl_coef: float, target: float, horizon: int) -> FixedKLController | AdaptiveKLController:
    """Build the controller that `algorithm.kl_ctrl` names.

    Raises:
        ConfigError: the name is neither fixed nor adaptive, or an adaptive setting is not positive.
    """
    if kind == "fixed":
        return FixedKLController(kl_coef)
    if kind == "adaptive":
        return AdaptiveKLController(kl_coef, target, horizon)
    raise ConfigError(f"algorithm.kl_ctrl must be fixed or adaptive - got {kind!r} - set one of the two")

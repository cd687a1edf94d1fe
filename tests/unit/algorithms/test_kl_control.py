import pytest

from ppo_lightning.algorithms.kl_control import AdaptiveKLController, FixedKLController, kl_controller
from ppo_lightning.errors import ConfigError


@pytest.mark.parametrize(
    ("current", "expected"),
    [
        (0.11, 0.5 * (1 + 0.1 * 64 / 1000)),  # 10% above the target of 0.1
        (10.0, 0.5 * (1 + 0.2 * 64 / 1000)),  # at most 0.2
        (0.0, 0.5 * (1 - 0.2 * 64 / 1000)),
        (None, 0.5),
        (float("nan"), 0.5),
    ],
)
def test_adaptive_by_hand(current, expected):
    controller = AdaptiveKLController(0.5, target=0.1, horizon=1000)
    controller.update(current, 64)
    assert controller.value == pytest.approx(expected)


def test_adaptive_settles_at_the_target():
    controller = AdaptiveKLController(1e-3, target=0.1, horizon=1000)
    for _ in range(500):
        controller.update(0.01 / controller.value, 100)  # KL falls as the coefficient grows; 0.1 at 0.1
    assert controller.value == pytest.approx(0.1, rel=0.01)


def test_fixed_stays():
    controller = FixedKLController(0.3)
    controller.update(100.0, 10)
    controller.load_state_dict({"value": 0.7})
    assert controller.value == 0.3


def test_pitfall_40_the_adaptive_coefficient_survives_a_checkpoint():
    controller = AdaptiveKLController(0.5, 0.1, 1000)
    controller.update(1.0, 64)
    resumed = AdaptiveKLController(0.5, 0.1, 1000)
    resumed.load_state_dict(controller.state_dict())
    for one in (controller, resumed):
        one.update(0.05, 64)
    assert resumed.value == controller.value


def test_pitfall_30_only_rows_with_tokens_drive_it():
    controller = AdaptiveKLController(1.0, target=1.0, horizon=10)
    controller.update(1.0, 1)  # one row of KL 1 and one empty row: the mean is 1, at the target
    assert controller.value == 1.0
    controller.update(0.5, 2)  # the fault: the empty row counts as 0 and the coefficient sinks
    assert controller.value < 1.0


def test_build():
    assert kl_controller("fixed", 0.1, 0.1, 10) == FixedKLController(0.1)
    assert kl_controller("adaptive", 0.1, 0.2, 10) == AdaptiveKLController(0.1, 0.2, 10)
    with pytest.raises(ConfigError, match=r"algorithm\.kl_ctrl must be fixed or adaptive - got 'linear'"):
        kl_controller("linear", 0.1, 0.1, 10)
    with pytest.raises(ConfigError, match=r"algorithm\.kl_horizon"):
        kl_controller("adaptive", 0.1, 0.1, 0)

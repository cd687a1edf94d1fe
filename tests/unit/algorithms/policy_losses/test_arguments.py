import subprocess
import sys

import pytest

from ppo_lightning.algorithms import POLICY_LOSSES
from ppo_lightning.algorithms.policy_losses.arguments import check_loss_options, find_policy_loss, loss_arguments
from ppo_lightning.algorithms.tables import resolve
from ppo_lightning.config.schema import ActorConfig
from ppo_lightning.errors import ConfigError


def arguments(name, **actor):
    return loss_arguments(resolve(POLICY_LOSSES[name].path), ActorConfig(policy_loss=name, **actor))


def test_band_falls_back_to_clip_ratio():
    assert arguments("vanilla", clip_ratio=0.3) == {"clip_ratio_low": 0.3, "clip_ratio_high": 0.3, "clip_ratio_c": 3.0}
    assert arguments("gspo", clip_ratio=0.3, clip_ratio_high=0.4) == {"clip_ratio_low": 0.3, "clip_ratio_high": 0.4}


def test_loss_options_win_and_defaults_stay_with_the_function():
    assert arguments("sapo", loss_options={"tau_neg": 2.0}) == {"tau_neg": 2.0}
    assert arguments("vanilla", loss_options={"clip_ratio_c": 5.0})["clip_ratio_c"] == 5.0


def test_an_option_without_default_is_asked_for():
    with pytest.raises(ConfigError, match=r"actor\.loss_options\.dro_beta is needed by actor\.policy_loss=dro"):
        arguments("dro")


def test_unknown_options_are_named():
    with pytest.raises(ConfigError, match=r"policy_loss=sapo: tau_pos, tau_neg - got tau"):
        check_loss_options(POLICY_LOSSES["sapo"], ActorConfig(policy_loss="sapo", loss_options={"tau": 1.0}))
    check_loss_options(POLICY_LOSSES["sapo"], ActorConfig(policy_loss="sapo", loss_options={"tau_pos": 1.0}))


def test_names_and_own_functions():
    with pytest.raises(ConfigError, match=r"actor\.policy_loss must be one of .* did you mean 'vanilla'"):
        find_policy_loss(POLICY_LOSSES, "vanila")
    own = find_policy_loss(POLICY_LOSSES, POLICY_LOSSES["dro"].path)
    assert own.options == ("dro_beta",)
    assert own.loss_agg_mode is None


def test_the_tables_import_no_torch():
    code = (
        "import sys, ppo_lightning.algorithms, ppo_lightning.algorithms.policy_losses.arguments;"
        "import ppo_lightning.algorithms.rollout_correction.settings; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", [*POLICY_LOSSES])
def test_required_options_are_those_without_a_default(name):
    record = POLICY_LOSSES[name]
    needed = []
    for option in record.options:
        try:
            loss_arguments(resolve(record.path), ActorConfig())
        except ConfigError as error:
            needed += [option] if f"loss_options.{option} " in str(error) else []
    assert needed == list(record.required)

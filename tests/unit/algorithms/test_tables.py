import inspect
import subprocess
import sys

import pytest

from ppo_lightning.algorithms import ADVANTAGES
from ppo_lightning.algorithms.tables import Estimator, find_estimator, look_up, resolve
from ppo_lightning.config.schema import leaves
from ppo_lightning.errors import ConfigError


@pytest.mark.parametrize("name", ADVANTAGES)
def test_an_entry_says_what_its_function_takes(name):
    entry = ADVANTAGES[name]
    parameters = set(inspect.signature(resolve(entry.path)).parameters)
    said = {*entry.reads, *entry.options, *entry.optional} | ({"all_reduce"} if entry.reduces else set())
    assert parameters == said
    assert entry.critic == ("values" in entry.reads)
    assert entry.grouped == ("group" in entry.reads)


def test_an_option_without_default_is_a_key_of_the_configuration():
    known = {key.removeprefix("algorithm.") for key in leaves()}
    for entry in ADVANTAGES.values():
        parameters = inspect.signature(resolve(entry.path)).parameters
        needed = {option for option in entry.options if parameters[option].default is inspect.Parameter.empty}
        assert needed <= known


def test_the_tables_import_no_torch():
    code = "import sys; import ppo_lightning.algorithms; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_lists_the_valid_ones_and_the_nearest():
    with pytest.raises(ConfigError) as error:
        look_up(ADVANTAGES, "grop", "algorithm.adv_estimator")
    assert "algorithm.adv_estimator must be one of gae, gdpo, gpg, grpo" in str(error.value)
    assert "did you mean 'grpo'?" in str(error.value)
    with pytest.raises(ConfigError, match="module:function"):
        look_up(ADVANTAGES, "zzzz", "algorithm.adv_estimator")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("grpo", "module:function"),
        (":grpo", "module:function"),
        ("no_such_module:f", "must be importable"),
        ("math:no_such", "no callable 'no_such' in math"),
        ("math:pi", "no callable 'pi' in math"),
    ],
)
def test_resolve_says_what_is_wrong(path, says):
    with pytest.raises(ConfigError, match=says):
        resolve(path)


def test_a_users_own_estimator_is_described_by_its_signature(tmp_path, monkeypatch):
    (tmp_path / "my_estimators.py").write_text(
        "def mine(token_level_rewards, response_mask, group, values, gamma=1.0, all_reduce=None): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert find_estimator(ADVANTAGES, "my_estimators:mine") == Estimator(
        path="my_estimators:mine",
        reads=("token_level_rewards", "response_mask", "group", "values"),
        options=("gamma",),
        critic=True,
        grouped=True,
        reduces=True,
    )
    assert find_estimator(ADVANTAGES, "gae") is ADVANTAGES["gae"]

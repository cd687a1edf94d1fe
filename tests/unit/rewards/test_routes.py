"""SPEC 2.12 and 2.13, every cell."""

import pytest

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.rewards.routes import Route, has_reward_model, has_rule, route

CELLS = {
    # (reward model, own resources, batch has rm_scores): (rules, model asked)
    (False, False, False): ("streamed", False),
    (False, True, False): ("streamed", False),
    (True, False, False): ("after", True),
    (True, True, False): ("streamed", True),
    (False, False, True): ("no", False),
    (False, True, True): ("no", False),
    (True, False, True): ("no", False),
    (True, True, True): ("no", False),
}


@pytest.mark.parametrize(("cell", "expected"), CELLS.items())
def test_every_cell(cell, expected):
    assert route(*cell) == Route(*expected)


def test_the_model_is_asked_exactly_when_it_is_on_and_the_batch_has_no_scores():
    assert {cell for cell, (_, model) in CELLS.items() if model} == {cell for cell in CELLS if cell[0] and not cell[2]}


def test_what_is_configured():
    alone = RewardConfig()
    model = RewardConfig(model_path="rm")
    both = RewardConfig(model_server="http://rm:8000", scorer="gsm8k")
    assert [has_reward_model(config) for config in (alone, model, both)] == [False, True, True]
    assert [has_rule(config) for config in (alone, model, both)] == [True, False, True]

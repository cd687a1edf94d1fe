"""What flows under a recipe: by hand, against the code of the stages, and consistent under every preset."""

import ast
import functools
from pathlib import Path

import pytest

import ppo_lightning.explain.uses as uses
from ppo_lightning import stages
from ppo_lightning.config.load import load
from ppo_lightning.explain.flow import flow, shape
from ppo_lightning.protocol.fields import FIELDS, META
from ppo_lightning.shipped import shipped

PRESETS = sorted((path.parent.name, path.stem) for path in shipped("conf").glob("*/*.yaml"))
SWITCHES = [
    [],
    ["algorithm.use_kl_in_reward=true"],
    ["actor.use_kl_loss=true", "update.ppo_epochs=2"],
    ["actor.policy_loss=clip_cov"],
    ["correction=bypass", "rollout_correction.rollout_is=token", "actor.policy_loss=reinforce"],
    ["correction=token_is", "update.ppo_epochs=2"],
    ["correction=sequence_rejection"],
    ["algorithm=optimal_token_baseline"],
    ["algorithm=remax"],
    ["reward.model_path=some/model"],
    ["reward.model_path=some/model", "reward.scorer=numeric", "reward.model_own_resources=true"],
    ["algorithm.mask_truncated=true", "update.share_prompts=false"],
    *([f"{group}={preset}"] for group, preset in PRESETS if group in ("algorithm", "correction")),
]


@functools.cache
def under(*overrides):
    return flow(load("recipes/quickstart.yaml", list(overrides)).config)


def stage(found, name):
    return next(one for one in found.stages if one.name == name)


def written(found, name):
    return {touch.field.name: touch.off for touch in stage(found, name).writes}


def view(found, name):
    return next(one for one in found.fields if one.field.name == name)


def test_quickstart_by_hand():
    found = under()
    off = {one.name: one.off for one in found.stages if one.off}
    # GRPO, one optimizer step per rollout, no KL: 4, 5 and 6 are left out.
    assert set(off) == {"old_log_prob", "ref_log_prob", "values"}
    assert off["values"] == "algorithm.adv_estimator=grpo needs no critic"
    assert found.axes == {"B": 64, "n": 8, "P": 64, "R": 12, "S": 76}  # 8 prompts x 8
    assert view(found, "old_log_probs").writers == ("update",)
    assert view(found, "old_log_probs").lifetime == "update -> settle"
    assert view(found, "rm_scores").lifetime == "rollout -> advantage"
    assert view(found, "rollout_is_weights").off == "rollout_correction.rollout_is=off"
    assert view(found, "sum_pi_squared").off.startswith("algorithm.adv_estimator=grpo reads no sum_pi_squared")


def test_two_optimizer_steps_move_old_log_probs():
    found = under("update.sequences_per_minibatch=32")
    assert view(found, "old_log_probs").lifetime == "old_log_prob -> settle"
    assert written(found, "update")["old_log_probs"] == "stage old_log_prob has written them"
    assert view(found, "entropys").lifetime == "old_log_prob: popped by its stage"


def test_bypass_takes_the_engines():
    found = under("correction=bypass")
    assert view(found, "old_log_probs").writers == ("advantage",)
    assert "bypass_mode" in stage(found, "old_log_prob").off


def test_kl_reads_the_reference_where_it_is_used():
    in_reward, in_loss = under("algorithm.use_kl_in_reward=true"), under("actor.use_kl_loss=true")
    assert view(in_reward, "ref_log_prob").readers == ("advantage",)
    assert view(in_loss, "ref_log_prob").readers == ("update",)
    assert view(under(), "ref_log_prob").off == "algorithm.use_kl_in_reward and actor.use_kl_loss are off"


def test_a_reward_model_moves_the_scores():
    rule, model = under(), under("reward.model_path=some/model")
    assert view(rule, "rm_scores").writers == ("rollout",)
    assert view(model, "rm_scores").writers == ("score",)


def read_before_written(found):
    """Return what is read although nothing has written it yet."""
    there, wrong = set(), []
    for one in found.stages:
        wrong += [(one.name, t.field.name) for t in one.reads if t.off is None and t.field.name not in there]
        there |= {touch.field.name for touch in one.writes if touch.off is None}
    return wrong


@pytest.mark.parametrize("overrides", SWITCHES, ids=["+".join(words) or "quickstart" for words in SWITCHES])
def test_nothing_is_read_before_it_is_written(overrides):
    assert read_before_written(under(*overrides)) == []


def test_the_check_sees_a_missing_writer(monkeypatch):
    left = tuple(use for use in uses.EXTRA if (use.stage, use.way, use.key) != ("rollout", "writes", "temperature"))
    monkeypatch.setattr(uses, "EXTRA", left)
    assert ("update", "temperature") in read_before_written(under.__wrapped__())


FILES = {
    "rollout": ("rollout", "greedy_baseline", "dynamic_sampling"),
    "align": ("align",),
    "score": ("score",),
    "old_log_prob": ("old_log_prob",),
    "ref_log_prob": ("ref_log_prob",),
    "values": ("values",),
    "advantage": ("advantage", "correction", "resample"),
    "update": ("update", "optimise", "actor_loss", "critic_loss"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_the_code_of_a_stage_names_is_listed(name):
    folder = Path(stages.__file__).parent
    named = {
        node.value
        for file in FILES[name]
        for node in ast.walk(ast.parse((folder / f"{file}.py").read_text()))
        if isinstance(node, ast.Constant) and node.value in FIELDS
    }
    table = next(one for one in stages.STAGES if one.name == name)
    listed = {use.key for use in uses.uses_of(table)}
    assert sorted(named - listed) == []
    assert len(named) > 0


def test_shapes_in_words():
    assert shape(FIELDS["values"]) == "(B, R) float32"
    assert shape(FIELDS["uid"]) == "(B) object"
    assert shape(FIELDS["temperature"]) == "per step, float"
    assert FIELDS["temperature"].layer == META

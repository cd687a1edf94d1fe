"""The stages run in the order of the table, and leave what they declare."""

import pytest

from ppo_lightning.explain.flow import ONLY_INSIDE, flow
from ppo_lightning.protocol.fields import FIELDS
from ppo_lightning.stages import STAGES

GRPO = "algorithm.adv_estimator=grpo"


def expected(*left_out):
    return [stage.name for stage in STAGES if stage.name not in left_out]


def fields_of(batch):
    """Return the declared fields that a batch holds at the end of its step."""
    return FIELDS.keys() & {*batch.tensors(), *batch.non_tensor_batch, *batch.meta_info}


def explained(config):
    """Return the fields that `explain` says are there at the end of a step."""
    return {view.field.name for view in flow(config).fields if not view.off and view.field.name not in ONLY_INSIDE}


@pytest.mark.parametrize(
    ("overrides", "left_out"),
    [
        ([], ["ref_log_prob"]),
        (["actor.use_kl_loss=true"], []),
        (["update.sequences_per_minibatch=null", "critic.warmup_steps=1"], ["ref_log_prob"]),
        (["algorithm.use_kl_in_reward=true"], []),
        ([GRPO], ["ref_log_prob", "values"]),
        ([GRPO, "actor.use_kl_loss=true"], ["values"]),
        ([GRPO, "update.sequences_per_minibatch=null"], ["old_log_prob", "ref_log_prob", "values"]),
        ([GRPO, "update.sequences_per_minibatch=null", "algorithm.use_kl_in_reward=true"], ["values"]),
    ],
    ids=[
        "ppo",
        "ppo+kl_loss",
        "ppo on-policy, critic first",
        "ppo+kl_reward",
        "grpo",
        "grpo+kl_loss",
        "grpo on-policy",
        "grpo on-policy+kl_reward",
    ],
)
def test_recorded_order_equals_the_table(run, overrides, left_out):
    code, _, record = run(*overrides, "data.val=null", "checkpoint.every_steps=0", "trainer.steps=2")
    assert code == 0
    assert record.stages == [expected(*left_out)] * 2
    assert fields_of(record.batches[-1]) == explained(record.modules[-1].config)


def test_old_and_new_log_probs_agree_at_the_first_minibatch(run, lines):
    """With one mini-batch per epoch and two epochs the first epoch's ratio is 1: its clip fraction and KL are 0."""
    _, folder, record = run("update.sequences_per_minibatch=null", "update.ppo_epochs=2", "data.val=null")
    assert "old_log_prob" in record.stages[0]
    for line in lines(folder):
        assert line["training/rollout_probs_diff_max"] < 1e-4
        assert line["training/rollout_actor_probs_pearson_corr"] > 0.9999


def test_the_on_policy_shortcut_changes_nothing(run, lines):
    """Leaving out the old_log_prob forward gives the losses and the entropy of the step that has it."""
    short = run(GRPO, "update.sequences_per_minibatch=null", "data.val=null", name="short")
    full = run(
        GRPO,
        "update.sequences_per_minibatch=null",
        "data.val=null",
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_coef=0.0",
        name="full",
    )
    assert "old_log_prob" not in short[2].stages[0]
    assert "old_log_prob" in full[2].stages[0]
    for left, right in zip(lines(short[1]), lines(full[1]), strict=True):
        for key in ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/score/mean", "response_length/mean"):
            assert left[key] == pytest.approx(right[key], rel=1e-5, abs=1e-6), key


def test_sharing_prompts_changes_nothing(run, lines):
    shared = run("data.val=null", name="shared")
    plain = run("data.val=null", "update.share_prompts=false", name="plain")
    assert shared[2].modules[0].sharing
    assert not plain[2].modules[0].sharing
    for left, right in zip(lines(shared[1]), lines(plain[1]), strict=True):
        for key in ("actor/pg_loss", "actor/grad_norm", "critic/vf_loss", "critic/grad_norm", "actor/entropy"):
            assert left[key] == pytest.approx(right[key], rel=1e-3, abs=1e-5), key

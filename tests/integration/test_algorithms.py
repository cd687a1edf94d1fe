"""Every estimator and every policy loss trains end to end, and every option of the algorithm has its consequence."""

import math

import pytest

from ppo_lightning.algorithms import ADVANTAGES, POLICY_LOSSES

ONE_STEP = ["data.val=null", "checkpoint.every_steps=0", "trainer.steps=1", "data.prompts_per_step=2"]
NEEDS = {
    "gdpo": ["algorithm.adv_options={gdpo_reward_keys: [acc, letters]}"],
    "dro": ["actor.loss_options={dro_beta: 0.1}"],
}
SCORER = '''
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """Say how many letters there are: even or odd is right, so that groups differ."""
    letters = sum(c.isalpha() for c in solution_str)
    return {"score": float(letters % 2), "acc": float(letters % 2), "letters": letters / 10}
'''


@pytest.fixture
def scored(tmp_path):
    """Option of a reward under which most groups of a random model's answers have signal."""
    file = tmp_path / "letters.py"
    file.write_text(SCORER)
    return f"reward.path={file}"


def finite(line):
    assert [key for key, value in line.items() if value is None or not math.isfinite(value)] == []
    return line


@pytest.mark.parametrize("name", [*ADVANTAGES])
def test_every_estimator_trains(run, lines, scored, name):
    options = [*ONE_STEP, scored, f"algorithm.adv_estimator={name}", *NEEDS.get(name, [])]
    _, folder, record = run(*options)
    (line,) = [finite(line) for line in lines(folder)]
    assert line["actor/grad_norm"] > 0
    tensors = record.batches[0].batch
    assert tensors["advantages"].any()
    assert not tensors["advantages"][tensors["response_mask"] == 0].any()
    assert ("values" in tensors) == ADVANTAGES[name].critic
    assert ("variance_proxy/proxy3_pure_noise" in line) == ("sum_pi_squared" in ADVANTAGES[name].reads)
    assert ("timing_s/gen_max" in line) == (name == "remax")


@pytest.mark.parametrize("name", [*POLICY_LOSSES])
def test_every_policy_loss_trains(run, lines, scored, name):
    options = [*ONE_STEP, scored, "algorithm.adv_estimator=grpo", "update.sequences_per_minibatch=4"]
    _, folder, record = run(*options, f"actor.policy_loss={name}", *NEEDS.get(name, []))
    (line,) = [finite(line) for line in lines(folder)]
    assert line["actor/grad_norm"] > 0
    assert "selection" not in record.batches[0].batch

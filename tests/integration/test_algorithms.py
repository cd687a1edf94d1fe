"""Every estimator and every policy loss trains end to end, and every option of the algorithm has its consequence."""

import json
import math
import re

import pytest
import torch

from ppo_lightning.algorithms import ADVANTAGES, POLICY_LOSSES
from ppo_lightning.config.load import load
from ppo_lightning.config.validate import validate
from ppo_lightning.errors import ConfigError
from ppo_lightning.metrics.registry import METRICS, lookup

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
    for key in line.keys() - {"step"}:
        lookup(key)
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


NOT_EVERY_STEP = ("val-", "timing_s/testing", "training/empty", "training/skipped", "training/nonfinite")


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.adv_estimator=gae", "actor.use_kl_loss=true", "actor.entropy_coeff=0.01"],
        ["algorithm.adv_estimator=optimal_token_baseline", "algorithm.filter_groups=true"],
        ["algorithm.adv_estimator=grpo", "rollout_correction.rollout_is=token", "algorithm.use_kl_in_reward=true"],
        ["algorithm.adv_estimator=rloo", "rollout_correction.bypass_mode=true", "actor.policy_loss=clip_cov"],
    ],
    ids=["gae", "baseline", "correction", "bypass"],
)
def test_what_the_registry_claims_is_logged(run, lines, scored, overrides):
    _, folder, record = run(*ONE_STEP, scored, *overrides)
    (line,) = lines(folder)
    config = record.modules[0].config
    claimed = {key for key, spec in METRICS.items() if "<" not in key and spec.absent_because(config) is None}
    assert sorted(key for key in claimed - line.keys() if not key.startswith(NOT_EVERY_STEP)) == []
    denied = {key for key, spec in METRICS.items() if spec.absent_because(config) is not None}
    assert sorted(denied & line.keys()) == []


GRPO = [*ONE_STEP, "algorithm.adv_estimator=grpo"]
TRUNCATED = ["rollout.top_k=200", "data.prompts_per_step=4"]
"""The engine samples from a part of the mass: its probabilities are above the trainer's."""


def test_token_weights_are_the_truncated_ratios(run, lines, scored):
    correction = ["rollout_correction.rollout_is=token", "rollout_correction.rollout_is_threshold=0.168"]
    _, folder, record = run(*GRPO, scored, *TRUNCATED, *correction)
    (line,) = [finite(line) for line in lines(folder)]
    tensors = record.batches[0].batch
    mask = tensors["response_mask"].bool()
    ratio = (tensors["old_log_probs"] - tensors["rollout_log_probs"]).exp()[mask]
    weights = tensors["rollout_is_weights"]
    assert torch.allclose(weights[mask], ratio.clamp(max=0.168), atol=1e-6)
    assert not weights[~mask].any()
    assert line["rollout_corr/rollout_is_mean"] == pytest.approx(float(weights[mask].mean()), rel=1e-5)
    assert line["rollout_corr/kl"] == pytest.approx(float(-ratio.log().mean()), rel=1e-5)
    assert 0 < line["rollout_corr/rollout_is_ratio_fraction_high"] < 1


def test_rejected_tokens_leave_the_loss_and_its_counts(run, lines, scored):
    rules = ["rollout_correction.rollout_rs=token_k1", "rollout_correction.rollout_rs_threshold=0.5_5.9"]
    rules.append("rollout_correction.rollout_is=token")
    _, folder, record = run(*GRPO, scored, *TRUNCATED, *rules)
    (line,) = [finite(line) for line in lines(folder)]
    tensors = record.batches[0].batch
    generated = tensors["attention_mask"][:, -8:].bool()
    ratio = (tensors["rollout_log_probs"] - tensors["old_log_probs"]).exp()
    kept = generated & (ratio >= 0.5) & (ratio <= 5.9)
    assert torch.equal(tensors["response_mask"].bool(), kept)
    assert 0 < int(kept.sum()) < int(generated.sum())
    share = 1 - float(kept.sum() / generated.sum())
    assert line["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(share, rel=1e-6)
    assert line["response_length/mean"] == pytest.approx(float(generated.sum(-1).float().mean()))


def test_distances_are_logged_without_correction(run, lines):
    _, folder, _ = run(*GRPO, "update.sequences_per_minibatch=null")
    (line,) = lines(folder)
    assert abs(line["rollout_corr/kl"]) < 1e-4
    assert line["rollout_corr/ppl_ratio"] == pytest.approx(1.0, abs=1e-3)


def test_bypass_mode_weighs_by_the_policy_being_trained(run, lines, scored):
    """REINFORCE, one optimizer step: weights from the update's own forward are those of the old_log_prob stage."""
    options = [*GRPO, scored, *TRUNCATED, "update.sequences_per_minibatch=null", "actor.policy_loss=reinforce"]
    options.append("rollout_correction.rollout_is=token")
    _, plain, _ = run(*options, name="plain")
    _, bypass, record = run(*options, "rollout_correction.bypass_mode=true", name="bypass")
    (left,), (right,) = lines(plain), lines(bypass)
    for key in ("actor/pg_loss", "actor/grad_norm", "rollout_corr/rollout_is_mean", "rollout_corr/kl"):
        assert right[key] == pytest.approx(left[key], rel=1e-4), key
    assert "old_log_prob" not in record.stages[0]
    assert torch.equal(record.batches[0].batch["old_log_probs"], record.batches[0].batch["rollout_log_probs"])
    assert [key for key in right if "rollout_probs_diff" in key or key == "actor/entropy"] == []


def test_bypass_mode_rejects_per_mini_batch(run, lines, scored):
    rules = ["rollout_correction.rollout_rs=token_k1", "rollout_correction.rollout_rs_threshold=0.5_5.9"]
    _, folder, record = run(*GRPO, scored, *TRUNCATED, *rules, "rollout_correction.bypass_mode=true")
    (line,) = [finite(line) for line in lines(folder)]
    assert 0 < line["rollout_corr/rollout_rs_masked_fraction"] < 1
    tensors = record.batches[0].batch
    assert torch.equal(tensors["response_mask"], tensors["attention_mask"][:, -8:])  # the batch keeps its own mask


def test_remax_subtracts_the_greedy_score(run, scored):
    _, _, record = run(*ONE_STEP, scored, "algorithm.adv_estimator=remax")
    tensors, uid = record.batches[0].batch, record.batches[0].non_tensor_batch["uid"]
    mask = tensors["response_mask"].bool()
    baselines = tensors["reward_baselines"].unsqueeze(-1).expand_as(mask)[mask]
    assert torch.allclose((tensors["returns"] - tensors["advantages"])[mask], baselines)
    assert len({(name, base) for name, base in zip(uid, tensors["reward_baselines"].tolist(), strict=True)}) == 2


def test_remax_of_greedy_rollouts_is_zero(run, scored):
    """Sampling at temperature 1e-3 repeats the greedy response: no advantage is left."""
    _, _, record = run(*ONE_STEP, scored, "algorithm.adv_estimator=remax", "rollout.temperature=1e-3")
    assert not record.batches[0].batch["advantages"].any()


def signal(batch):
    scores = {}
    for uid, score in zip(batch.non_tensor_batch["uid"], batch.batch["rm_scores"].sum(-1).tolist(), strict=True):
        scores.setdefault(uid, set()).add(score)
    return [len(found) > 1 for found in scores.values()]


def test_dynamic_sampling_fills_the_step_and_resumes_exactly(run, lines, scored):
    options = ["data.val=null", "algorithm.adv_estimator=grpo", "rollout.rollouts_per_prompt=2", scored]
    options += ["data.prompts_per_step=4", "checkpoint.every_steps=1", "update.sequences_per_minibatch=null"]
    options += ["algorithm.filter_groups=true"]
    _, straight, record = run(*options, name="straight")
    steps = lines(straight)
    for line, batch in zip(steps, record.batches, strict=True):
        assert len(batch) == 8
        assert signal(batch) == [True] * 4
        assert line["training/num_gen_batches"] * 4 >= 4 + line["training/dropped_groups"]
    assert sum(line["training/dropped_groups"] for line in steps) > 0
    run(*options, "trainer.steps=1", name="cut")
    _, resumed, _ = run(*options, name="cut", resume="auto")
    for step in (1, 2, 3):
        name = f"rollouts/step_{step:06d}.jsonl"
        assert (straight / name).read_text() == (resumed / name).read_text()
    drawn = json.loads((straight / "checkpoints" / "step_000003" / "state.json").read_text())["drawn"]
    assert drawn == sum(line["training/num_gen_batches"] for line in steps)


def test_dynamic_sampling_stops_at_its_cap(run, lines):
    """A reward that never differs: groups are drawn up to the cap, count nowhere, and nothing is trained."""
    options = [*GRPO, "algorithm.filter_groups=true", "algorithm.filter_groups_max_batches=3"]
    _, folder, record = run(*options, "reward.scorer=gsm8k")
    (line,) = lines(folder)
    assert line["training/num_gen_batches"] == 3
    assert line["training/dropped_groups"] == 6
    assert line["training/empty_minibatches"] == 1
    assert len(record.batches[0]) == 8
    assert "critic/score/mean" not in line


def test_truncated_responses_leave_the_loss(run, scored):
    _, _, record = run(*GRPO, scored, "algorithm.mask_truncated=true", "data.prompts_per_step=4")
    batch = record.batches[0]
    cut = torch.from_numpy(batch.non_tensor_batch["finish_reason"] == "length")
    assert bool(cut.any())
    assert not batch.batch["response_mask"][cut].any()
    assert torch.equal(batch.batch["response_mask"][~cut], batch.batch["attention_mask"][:, -8:][~cut])


def test_pf_ppo_draws_the_extremes_only(run, lines, scored):
    _, folder, record = run(*ONE_STEP, scored, "algorithm.pf_ppo_reweight=max_min", "data.prompts_per_step=4")
    finite(lines(folder)[0])
    scores = record.batches[0].batch["token_level_scores"].sum(-1)
    assert len(scores) == 16
    assert set(scores.tolist()) <= {0.0, 1.0}
    rows = {(uid, int(n)) for uid, n in zip(record.batches[0].non_tensor_batch["uid"],
                                            record.batches[0].batch["sample_index"], strict=True)}  # fmt: skip
    assert len(rows) < 16  # drawn with replacement


def test_an_order_of_your_own(run, tmp_path, monkeypatch):
    (tmp_path / "backward_order.py").write_text(
        "def backwards(prompts, epoch, seed):\n    return range(len(prompts))[::-1]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    _, _, record = run(*GRPO, "data.order=backward_order:backwards", "trainer.steps=2")
    drawn = [sorted(set(batch.batch["dataset_index"].tolist())) for batch in record.batches]
    assert drawn[0] == [value - 1 for value in [drawn[0][0] + 1, drawn[0][1] + 1]]
    assert drawn[0][0] > drawn[1][1]  # the file's last rows first


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["algorithm.adv_options={f_norm: 2}"], "algorithm.adv_options may hold for algorithm.adv_estimator=gae"),
        (["algorithm.adv_estimator=gdpo"], "algorithm.adv_options.gdpo_reward_keys"),
        (["actor.policy_loss=dro"], "needs actor.loss_options.dro_beta"),
        (["rollout_correction.rollout_rs=token_k9"], "rollout_correction.rollout_rs must be off or"),
        (["rollout_correction.rollout_rs=token_k1"], "rollout_correction.rollout_rs_threshold must hold"),
        (["algorithm.adv_estimator=optimal_token_baseline", "rollout_correction.bypass_mode=true"], "bypass_mode"),
        (["data.order=nonsense"], "data.order: a function is named as module:function"),
        (["algorithm.filter_groups_max_batches=0"], "algorithm.filter_groups_max_batches=0 must be at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides, says):
    with pytest.raises(ConfigError, match=re.escape(says)):
        validate(load(None, ["rollout.rollouts_per_prompt=2", *overrides]).config)

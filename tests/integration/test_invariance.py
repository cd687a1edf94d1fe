"""Stages 2 to 9 on a batch made by hand: the same numbers for any split, no update where nothing can be learned."""

import importlib
import math

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from ppo_lightning.algorithms.kl_control import FixedKLController
from ppo_lightning.build import build_module
from ppo_lightning.config.load import load
from ppo_lightning.config.schema import AGGREGATIONS
from ppo_lightning.models.sharing import sharing_of
from ppo_lightning.parallel.ranks import Ranks
from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages import STAGES, chunks
from ppo_lightning.stages.context import StepContext

PROMPTS, LENGTHS = (5, 5, 3, 3), (1, 2, 3, 6)
P, R = 6, 8
VOLATILE = ("timing", "perf/")


class Recorder:
    """An optimizer that keeps each gradient and leaves the weights as they are."""

    def __init__(self, model):
        self.model, self.gradients = model, []
        self.param_groups = [{"lr": 0.0}]

    def step(self):
        parts = [p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for p in self.model.parameters()]
        self.gradients.append(torch.cat([part.double() for part in parts]))

    def zero_grad(self, set_to_none=True):
        self.model.zero_grad(set_to_none=set_to_none)


def make_batch(lengths=LENGTHS, scores=(1.0, 0.0, 0.5, -1.0)):
    """Two prompts with two responses each, of random tokens."""
    torch.manual_seed(3)
    prompt = torch.randint(10, 1000, (2, P)).repeat_interleave(2, 0)
    prompt_mask = torch.stack([torch.arange(P) >= P - n for n in PROMPTS]).long()
    mask = torch.stack([torch.arange(R) < n for n in lengths]).long()
    prompt, responses = prompt * prompt_mask, torch.randint(10, 1000, (4, R)) * mask
    attention = torch.cat([prompt_mask, mask], 1)
    rewards = torch.zeros(4, R)
    rewards[torch.arange(4), torch.tensor(lengths) - 1] = torch.tensor(scores)
    return DataProto.from_dict(
        {
            "prompts": prompt,
            "responses": responses,
            "input_ids": torch.cat([prompt, responses], 1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(-1) - 1).clamp(min=0),
            "response_mask": mask,
            "rollout_log_probs": torch.where(mask.bool(), -10.0 - 3 * torch.rand(4, R), 0.0),
            "rm_scores": rewards,
            "dataset_index": torch.tensor([0, 0, 1, 1]),
            "sample_index": torch.tensor([0, 1, 0, 1]),
        },
        {"uid": as_column(["a", "a", "b", "b"]), "finish_reason": as_column(["stop", "stop", "stop", "length"])},
        {"temperature": 1.0, "global_steps": 1, "validate": False, "eos_token_id": [2], "pad_token_id": 2},
    )


@pytest.fixture(scope="module")
def step_on(tiny_model):
    """Return a function that runs stages 2 to 9 in float64 and returns (gradients by model, metrics, batch)."""

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    torch.set_num_threads(1)

    def go(batch, *overrides):
        base = [f"model.path={tiny_model}", "data.prompts_per_step=2", "rollout.rollouts_per_prompt=2"]
        config = load(None, [*base, f"data.max_prompt_tokens={P}", f"rollout.response_tokens={R}", *overrides]).config
        torch.manual_seed(5)
        module = build_module(config, tokenizer).double()
        models = {"actor": module.actor} | ({"critic": module.critic} if module.critic else {})
        if module.critic:
            torch.nn.init.normal_(module.critic.head.weight, std=0.1)
        context = StepContext(
            config=config,
            step=1,
            ranks=Ranks(),
            actor=module.actor,
            critic=module.critic,
            reference=module.reference,
            kl_controller=FixedKLController(0.001),
            optimizers={name: Recorder(model) for name, model in models.items()},
            backward=lambda loss: loss.backward(),
            sharing=sharing_of(config, module.actor, module.critic),
        )
        for stage in STAGES[1:]:
            if stage.skipped_because(config) is None:
                getattr(importlib.import_module(f"ppo_lightning.stages.{stage.name}"), stage.name)(batch, context)
        metrics = {key: value for key, value in context.book.compute().items() if not key.startswith(VOLATILE)}
        return {name: optimizer.gradients for name, optimizer in context.optimizers.items()}, metrics, batch

    return go


def distance(left, right):
    return float((left - right).norm() / right.norm())


SPLITS = [
    ["update.sequences_per_microbatch=1", "update.share_prompts=false"],
    ["update.sequences_per_microbatch=2", "update.share_prompts=true"],
    ["update.sequences_per_microbatch=4", "update.share_prompts=true"],
    ["update.tokens_per_microbatch=20", "update.share_prompts=true"],
]
EVERYTHING = ["actor.use_kl_loss=true", "actor.kl_loss_coef=0.1", "actor.entropy_coeff=0.01"]


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("bypass", [False, True])
def test_pitfalls_1_3_6_7_8_any_split_gives_the_same_step(step_on, mode, bypass):
    """Loss, gradients and metrics of actor and critic: micro-batches of 1, 2, 4 rows, prompts shared or not.

    In bypass mode old log-probs are the made-up ones of the engine, so that ratios are far from 1 and tokens clip.
    """
    options = [*EVERYTHING, f"update.loss_agg_mode={mode}", f"rollout_correction.bypass_mode={str(bypass).lower()}"]
    whole = ["update.sequences_per_microbatch=4", "update.share_prompts=false"]
    gradients, metrics, _ = step_on(make_batch(), *options, *whole)
    assert len(gradients["actor"]) == len(gradients["critic"]) == 1
    assert (metrics["actor/pg_clipfrac"] > 0) == bypass
    for split in SPLITS:
        other, numbers, _ = step_on(make_batch(), *options, *split)
        for name in ("actor", "critic"):
            assert distance(other[name][0], gradients[name][0]) < 1e-6, (name, split)
        assert numbers.keys() == metrics.keys()
        for key, value in metrics.items():
            assert numbers[key] == pytest.approx(value, rel=1e-5, abs=1e-6), (key, split)


def test_dividing_by_the_micro_batch_would_be_seen(step_on):
    """Negative control: the mean of the rows' own token means is another gradient than that of all tokens."""
    whole = ["update.sequences_per_microbatch=4", "update.share_prompts=false"]
    tokens, _, _ = step_on(make_batch(), "update.loss_agg_mode=token-mean", *whole)
    rows, _, _ = step_on(make_batch(), "update.loss_agg_mode=seq-mean-token-mean", *whole)
    assert distance(rows["critic"][0], tokens["critic"][0]) > 0.1


def test_pitfall_3_masked_rows_leave_the_denominator(step_on):
    """The truncated row (6 of 12 tokens) is masked: the gradient is that of the three others alone."""
    batch = make_batch()
    options = ["algorithm.adv_estimator=reinforce_plus_plus", "actor.policy_loss=reinforce"]
    masked, metrics, _ = step_on(batch, *options, "algorithm.mask_truncated=true")
    assert batch.batch["response_mask"].sum(-1).tolist() == [1, 2, 3, 0]
    assert metrics["response_length/mean"] == 3.0  # lengths are of what was generated
    three = make_batch().select_idxs([0, 1, 2])
    alone, _, _ = step_on(three, *options)
    assert distance(masked["actor"][0], alone["actor"][0]) < 1e-6


@pytest.mark.parametrize("shortcut", [True, False])
@pytest.mark.parametrize("estimator", ["gae", "grpo", "optimal_token_baseline"])
def test_pitfall_22_all_rows_aborted(step_on, estimator, shortcut):
    options = [f"algorithm.adv_estimator={estimator}", *([] if shortcut else ["update.ppo_epochs=2"])]
    gradients, metrics, _ = step_on(make_batch((0, 0, 0, 0)), *options)
    assert all(found == [] for found in gradients.values())
    assert metrics["response/aborted_ratio"] == 1.0
    assert metrics["training/empty_minibatches"] == (1 if shortcut else 2) * len(gradients)
    assert [
        key for key in metrics if key.startswith(("critic/score", "critic/advantages", "actor/pg", "rollout_corr"))
    ] == []


@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus", "grpo"])
def test_pitfall_23_one_valid_token(step_on, estimator):
    gradients, metrics, batch = step_on(make_batch((0, 0, 1, 0)), f"algorithm.adv_estimator={estimator}")
    assert all(bool(gradient.isfinite().all()) for found in gradients.values() for gradient in found)
    assert batch.batch["advantages"].isfinite().all()
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["response/aborted_ratio"] == 0.75


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_pitfall_4_everything_masked(step_on, estimator):
    batch = make_batch()
    batch.batch["response_mask"].zero_()
    gradients, metrics, _ = step_on(batch, f"algorithm.adv_estimator={estimator}")
    assert all(found == [] for found in gradients.values())
    assert metrics["training/empty_minibatches"] == len(gradients)
    assert metrics["critic/score/mean"] == pytest.approx(0.125)  # responses were given and scored
    assert "actor/pg_loss" not in metrics


def test_pitfall_9_selections_do_not_depend_on_the_split(step_on):
    """kl_cov picks the token of highest covariance of the whole mini-batch, not one per micro-batch."""
    options = ["actor.policy_loss=kl_cov", "algorithm.adv_estimator=grpo", "update.share_prompts=false"]
    one, first, _ = step_on(make_batch(), *options, "update.sequences_per_microbatch=4")
    four, second, _ = step_on(make_batch(), *options, "update.sequences_per_microbatch=1")
    assert distance(four["actor"][0], one["actor"][0]) < 1e-6
    assert second["actor/pg_loss"] == pytest.approx(first["actor/pg_loss"], rel=1e-6)


EQUAL = (1.0, 1.0, 0.5, -1.0)  # the first prompt's responses teach nothing


def all_backward(monkeypatch):
    """Have every row trained on."""
    monkeypatch.setattr("ppo_lightning.stages.optimise.apart", lambda mini, _: (np.arange(0), np.arange(len(mini))))


@pytest.mark.parametrize("sharing", ["true", "false"])
@pytest.mark.parametrize("loss", ["vanilla", "gspo", "cispo", "clip_cov", "kl_cov"])
def test_groups_without_advantage_are_run_forward_only(step_on, monkeypatch, loss, sharing):
    """The gradient is that of all rows, metrics and old log-probs too; what has a penalty beside is trained on."""
    options = ["algorithm.adv_estimator=grpo", f"actor.policy_loss={loss}", f"update.share_prompts={sharing}"]
    options += ["update.sequences_per_microbatch=1", "rollout_correction.bypass_mode=true"]
    calls = []
    monkeypatch.setattr("ppo_lightning.stages.optimise.micros", counted_micros(calls))
    found, numbers, _ = step_on(make_batch(scores=EQUAL), *options)
    assert calls == ([0, 4] if loss == "kl_cov" else [2, 2])
    all_backward(monkeypatch)
    expected, wanted, _ = step_on(make_batch(scores=EQUAL), *options)
    assert expected["actor"][0].norm() > 0
    assert distance(found["actor"][0], expected["actor"][0]) < 1e-12
    assert numbers == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def counted_micros(calls):
    def micros(mini, update, sharing, rows):
        calls.append(len(rows))
        return chunks.micros(mini, update, sharing, rows)

    return micros


@pytest.mark.parametrize("extra", [["actor.entropy_coeff=0.01"], ["actor.use_kl_loss=true", "actor.kl_loss_type=kl"]])
def test_what_else_is_in_the_loss_is_trained_on(step_on, monkeypatch, extra):
    """Negative control: leaving out rows whose entropy or KL is in the loss would change the gradient."""
    options = ["algorithm.adv_estimator=grpo", *extra]
    found, _, _ = step_on(make_batch(scores=EQUAL), *options)
    with monkeypatch.context() as patch:
        patch.setattr("ppo_lightning.stages.actor_loss.without_weight", lambda mini, by_advantage: no_advantage(mini))
        wrong, _, _ = step_on(make_batch(scores=EQUAL), *options)
    all_backward(monkeypatch)
    expected, _, _ = step_on(make_batch(scores=EQUAL), *options)
    assert distance(found["actor"][0], expected["actor"][0]) < 1e-12
    assert distance(wrong["actor"][0], expected["actor"][0]) > 1e-6


def no_advantage(mini):
    return (mini.batch["advantages"] == 0).all(-1)


def test_a_step_without_any_advantage_leaves_gradients_of_0(step_on, monkeypatch):
    """Not None: the optimizer goes on with its momentum, as it does when all rows are trained on."""
    seen = []
    monkeypatch.setattr(Recorder, "step", lambda self: seen.append({p.grad is None for p in self.model.parameters()}))
    step_on(make_batch(scores=(1.0, 1.0, 0.0, 0.0)), "algorithm.adv_estimator=grpo")
    assert seen == [{False}]

"""What a step costs, in counts that do not depend on the machine: forward passes, tokens computed, optimizer steps."""

from collections import Counter
from pathlib import Path

import lightning as L
import pytest
import torch

FILES = Path(__file__).parent / "files"
UNLIKE = [f"reward.path={FILES / 'rank_rewards.py'}"]  # no two responses to a prompt are worth the same
ALIKE = [f"reward.path={FILES / 'equal_rewards.py'}"]
ON_POLICY = ["algorithm.adv_estimator=grpo", "update.sequences_per_minibatch=null"]
OFF = ["data.val=null", "checkpoint.every_steps=0", "trainer.steps=1", "rollout.ignore_eos=true"]


class Forwards(L.Callback):
    """Counts the calls of the actor's decoder by stage, and the tokens it computes: rows x width.

    `other` are all but the rollout's, `trained` those of them that a backward pass may follow.
    """

    def on_fit_start(self, trainer, pl_module):
        self.calls, self.tokens, self.sequences = Counter(), Counter(), Counter()
        pl_module.actor.get_decoder().register_forward_hook(self.count, with_kwargs=True)

    def count(self, decoder, arguments, keywords, out):
        stage = "generate" if keywords.get("use_cache") else "other"
        self.calls[stage] += 1
        self.tokens[stage] += keywords["input_ids"].numel()
        self.sequences[stage] += len(keywords["input_ids"])
        if torch.is_grad_enabled():
            self.tokens["trained"] += keywords["input_ids"].numel()


def counted(run, *overrides, name="run"):
    """Run one step; return the counts, the batch and the run directory."""
    forwards = Forwards()
    code, folder, record = run(*overrides, *OFF, callbacks=[forwards], name=name)
    assert code == 0
    return forwards, record.batches[-1], folder


def test_an_on_policy_step_runs_each_token_once_forward(run, lines):
    """One prefill of the different prompts, one call per further token, and one pass per micro-batch in the update."""
    forwards, batch, folder = counted(run, *ON_POLICY, *UNLIKE, "update.sequences_per_microbatch=8")
    mask, responses = batch.batch["attention_mask"], batch.batch["response_mask"]
    rows, width = responses.shape
    prompts = mask[:, :-width].sum(-1)
    first = [list(batch.non_tensor_batch["uid"]).index(uid) for uid in dict.fromkeys(batch.non_tensor_batch["uid"])]
    assert forwards.calls["generate"] == width
    assert forwards.sequences["generate"] == len(first) + rows * (width - 1)
    assert forwards.calls["other"] == -(-rows // 8)
    read = int(responses.sum()) - rows  # nothing is read behind a response's last token
    assert forwards.tokens["other"] == int(prompts[first].sum()) + read  # a prompt once, no padding
    assert forwards.tokens["trained"] == forwards.tokens["other"]
    assert lines(folder)[-1]["perf/padding_ratio"] == 1.0
    assert lines(folder)[-1]["perf/forward_only_rows"] == 0.0


def test_groups_of_equal_rewards_cost_a_forward_pass(run, lines):
    """Of one row, the shortest, the backward pass is run as well: its gradient is 0."""
    forwards, batch, folder = counted(run, *ON_POLICY, *ALIKE, "update.sequences_per_microbatch=8")
    rows = len(batch)
    assert float(batch.batch["advantages"].abs().max()) == 0.0
    assert forwards.tokens["trained"] == int(batch.batch["attention_mask"].sum(-1).min()) - 1
    assert lines(folder)[-1]["perf/forward_only_rows"] == (rows - 1) / rows
    assert lines(folder)[-1]["actor/grad_norm"] == 0.0


def test_the_counts_see_what_they_are_to_guard(run):
    """Negative controls: prompts computed for every row, and a policy that is not the one that sampled."""
    cheap, _, _ = counted(run, *ON_POLICY, name="cheap")
    plain, batch, _ = counted(run, *ON_POLICY, "update.share_prompts=false", name="plain")
    assert plain.tokens["other"] >= int(batch.batch["attention_mask"].sum()) > cheap.tokens["other"]
    several, _, _ = counted(run, "algorithm.adv_estimator=grpo", "update.sequences_per_minibatch=2", name="several")
    assert several.tokens["other"] > cheap.tokens["other"]


@pytest.mark.parametrize("algorithm", ["grpo", "gae"])
def test_an_update_steps_once_per_mini_batch(run, algorithm):
    """Counted at the optimizer: no step is taken twice, none is left out."""

    class Steps(L.Callback):
        taken = 0

        def on_fit_start(self, trainer, pl_module):
            for optimizer in trainer.optimizers:
                optimizer.register_step_post_hook(lambda *_: setattr(self, "taken", self.taken + 1))

    steps = Steps()
    code, _, record = run(
        f"algorithm.adv_estimator={algorithm}", "update.sequences_per_minibatch=4", *OFF, callbacks=[steps]
    )
    rows = len(record.batches[-1])
    assert code == 0
    assert steps.taken == (rows // 4) * (2 if algorithm == "gae" else 1)

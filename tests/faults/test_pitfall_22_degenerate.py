"""Batches without anything to learn from run, say so, and change nothing; one valid token is enough to train on."""

import lightning as L
import pytest
import torch
from fault_rigs import EXTRAS, lines, start

from ppo_lightning.callbacks.rollout import RolloutCallback
from ppo_lightning.engines.base import Completion

CASES = ["all aborted", "all masked", "one token", "equal rewards", "ordinary"]


class Degenerate(L.Callback):
    """Makes step k's rollout the k-th case, by what the engine gives back and what is written into the batch."""

    def __init__(self):
        self.weights, self.masks = [], []

    def on_train_start(self, trainer, pl_module):
        self.engine = next(callback for callback in trainer.callbacks if isinstance(callback, RolloutCallback)).engine
        inner = self.engine.generate

        def generate(requests, sampling, on_finish=None):
            case, done = CASES[pl_module.step], inner(requests, sampling)
            if case in ("all aborted", "one token"):
                done = [Completion(c.row, [], [], "abort") for c in done]
            if case == "one token":
                done[2] = Completion(2, [40], [-1.0], "length")
            for completion in done:
                on_finish(completion)
            return done

        self.engine.generate = generate

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = [p.detach().clone() for p in pl_module.actor.parameters()]
        tensors = batch.batch
        if CASES[pl_module.step] == "all masked":
            tensors["response_mask"] = torch.zeros_like(tensors["response_mask"])
        if CASES[pl_module.step] == "equal rewards":
            lengths = tensors["response_mask"].sum(-1)
            tensors["rm_scores"] = torch.zeros_like(tensors["rm_scores"])
            tensors["rm_scores"][torch.arange(len(batch)), lengths - 1] = 0.7

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        now = pl_module.actor.parameters()
        self.weights.append(all(torch.equal(one, two) for one, two in zip(self.before, now, strict=True)))
        self.masks.append(int(batch.batch["response_mask"].sum()))


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_pitfall_22_degenerate_batches_run(model, tmp_path, algorithm):
    seen = Degenerate()
    options = [*EXTRAS[algorithm], "data.workers=0", "critic.warmup_steps=0", "actor.use_kl_loss=false"]
    options += ["algorithm.use_kl_in_reward=false", "update.weight_decay=0.0", "checkpoint.every_steps=0"]
    code, run = start(model, tmp_path, *options, f"trainer.steps={len(CASES)}", callbacks=[seen])
    assert code == 0
    aborted, masked, single, equal, ordinary = lines(run)
    assert seen.masks[:3] == [0, 0, 1]
    assert aborted["response/aborted_ratio"] == 1
    assert aborted["training/empty_minibatches"] >= 2
    assert "critic/advantages/mean" not in aborted
    assert masked["training/empty_minibatches"] >= 2
    assert "actor/pg_loss" not in masked
    assert seen.weights[:2] == [True, True]
    assert single["response/aborted_ratio"] == pytest.approx(7 / 8)
    assert [key for row in (aborted, masked, single, equal) for key, value in row.items() if value is None] == []
    assert "training/skipped_steps" not in aborted
    if algorithm == "grpo":
        assert equal["critic/advantages/max"] == 0.0
        assert equal["actor/grad_norm"] == 0.0
    assert ordinary["actor/grad_norm"] > 0
    assert seen.weights[-1] is False

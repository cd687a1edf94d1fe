"""A number that is not finite, in a reward, log-prob, value, loss or gradient, changes nothing but the step number."""

import lightning as L
import pytest
import torch
from fault_rigs import EXTRAS, MOVING, equal, lines, poisoned, start, state_of

from ppo_lightning.errors import DivergedError
from ppo_lightning.protocol.data_proto import DataProto

ONE = ["update.sequences_per_minibatch=null", "update.ppo_epochs=1", "data.workers=0", "critic.warmup_steps=0"]
NAN, INF = float("nan"), float("inf")
INJECTED = [
    ("score", "rm_scores", NAN),
    ("rollout", "rollout_log_probs", INF),
    ("old_log_prob", "old_log_probs", NAN),
    ("ref_log_prob", "ref_log_prob", NAN),
    ("values", "values", INF),
    ("update", "the critic's loss", NAN),
    ("update", "the critic's gradient of decoder.embed_tokens.weight", INF),
]
"""Every even step of one run: the stage, what is named, the number."""


class Poison(L.Callback):
    """Puts a number that is not finite into every even step, and compares what is trained before and after it."""

    def __init__(self, injected):
        self.injected, self.hooks, self.kept, self.seen = injected, [], [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = state_of(pl_module)
        if batch_idx % 2 and batch_idx // 2 < len(self.injected):
            self.inject(pl_module, batch, *self.injected[batch_idx // 2])

    def inject(self, module, batch, stage, name, number):
        models = {"old_log_prob": module.actor.model, "ref_log_prob": module.reference and module.reference.model}
        models["values"] = module.critic and module.critic.head
        if name in batch.batch.keys():  # noqa: SIM118
            batch.batch[name][3, 0] = number
        elif stage in models:
            self.hooks.append(models[stage].register_forward_hook(poisoned(number, training=False)))
        elif "loss" in name:
            model = module.actor.model if "actor" in name else module.critic.head
            self.hooks.append(model.register_forward_hook(poisoned(number, training=True)))
        else:
            model = module.actor if "actor" in name else module.critic
            weight = dict(model.named_parameters())[name.rpartition(" ")[2]]
            self.hooks.append(weight.register_hook(lambda gradient: torch.full_like(gradient, number)))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        self.seen.append((pl_module.context.fault, equal(self.before, state_of(pl_module))))


@pytest.fixture(scope="module")
def poisoned_run(model, tmp_path_factory):
    """What the poisoned steps did, and the run directory."""
    poison = Poison(INJECTED)
    steps = f"trainer.steps={2 * len(INJECTED) + 1}"
    folder = tmp_path_factory.mktemp("poison")
    code, run = start(model, folder, *EXTRAS["ppo"], *MOVING, *ONE, steps, callbacks=[poison])
    assert code == 0
    return poison.seen, run


@pytest.mark.parametrize("place", range(len(INJECTED)), ids=[name for _, name, _ in INJECTED])
def test_pitfall_45_the_step_leaves_everything_as_it_was(poisoned_run, place):
    seen, run = poisoned_run
    stage, name, _ = INJECTED[place]
    fault, unchanged = seen[2 * place + 1]
    assert (fault.stage, fault.tensor) == (stage, name)
    assert unchanged
    assert ("gradient" in name) or fault.rows
    step = 2 * place + 2
    assert {row["step"]: row for row in lines(run)}[step]["training/skipped_steps"] == 1
    batch = DataProto.load(run / "bad_batches" / f"step_{step:06d}.safetensors")
    assert len(batch) == 8
    assert batch.meta_info["fault"] == str(fault)
    if name in batch.batch.keys():  # noqa: SIM118
        assert not torch.isfinite(batch.batch[name]).all()


def test_pitfall_45_the_steps_between_train_on(poisoned_run):
    seen, run = poisoned_run
    clean = seen[::2]
    assert [fault for fault, _ in clean] == [None] * len(clean)
    assert [unchanged for _, unchanged in clean] == [False] * len(clean)
    assert [row["step"] for row in lines(run) if "training/skipped_steps" in row] == list(range(2, len(seen), 2))


def test_pitfall_45_only_the_row_named_is_bad(poisoned_run):
    seen, _ = poisoned_run
    fault = seen[1][0]
    assert len(fault.rows) == 1
    assert fault.rows[0].endswith("/1")  # row 3 is the second sample of the second prompt


class Spoil(Poison):
    """Spoils the actor's loss at every step."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before = state_of(pl_module)
        self.inject(pl_module, batch, "update", "the actor's loss", NAN)


def test_pitfall_45_too_many_in_a_row_end_the_run_with_a_diagnosis(model, tmp_path):
    """GRPO; the count goes on over a resume, and the weights are those before the first of them."""
    options = [*EXTRAS["grpo"], *ONE, "trainer.max_skipped_steps=3", "trainer.steps=6"]
    spoil = Spoil([])
    start(model, tmp_path, *options, "trainer.steps=2", callbacks=[spoil])
    assert [unchanged for _, unchanged in spoil.seen] == [True, True]
    with pytest.raises(DivergedError, match=r"3 steps in a row .* step 3: stage update: the actor's loss was not"):
        start(model, tmp_path, *options, resume="auto", callbacks=[Spoil([])])
    saved = [path.name for path in sorted((tmp_path / "run" / "checkpoints").iterdir())]
    assert saved == ["step_000001", "step_000002"]


def test_pitfall_45_an_optimizer_that_does_not_look_is_ruined():
    """The negative control: clipping makes one bad number into NaN everywhere, and the step writes it."""
    layer = torch.nn.Linear(2, 2)
    layer.weight.grad, layer.bias.grad = torch.tensor([[NAN, 0.0], [0.0, 0.0]]), torch.zeros(2)
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    torch.optim.AdamW(layer.parameters()).step()
    assert torch.isnan(layer.weight).all()
    assert torch.isnan(layer.bias).all()

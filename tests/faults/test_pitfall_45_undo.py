"""A number that is not finite in a later mini-batch takes the whole step back: both models, optimizers, schedules."""

import copy

import lightning as L
import pytest
import torch
from fault_rigs import EXTRAS, MOVING, equal, lines, poisoned, start, state_of

from ppo_lightning.checkpoint.weights import optimizers_of
from ppo_lightning.models.master_weights import MasterAdamW
from ppo_lightning.stages.undo import Undo

OPTIONS = [*EXTRAS["ppo"], *MOVING, "data.workers=0", "critic.warmup_steps=0", "trainer.steps=7"]
BAD = {1: ("actor", 3), 3: ("critic", 1), 4: ("actor", 0), 6: ("critic", 3)}
"""Step -> the model whose mini-batch goes bad, and how many of its four optimizer steps were taken before.

In the first step optimizers held nothing before; the actor is updated after the critic, whose four steps are done.
"""
VARIANTS = {
    "plain": [],
    "lora": ["model.lora_rank=2", "model.lora_alpha=4"],
    "master weights": ["model.dtype=bfloat16"],
    "pure bfloat16": ["model.dtype=bfloat16", "update.master_weights=false"],
}


class Later(L.Callback):
    """Spoils a mini-batch after some optimizer steps of its model, and compares what is trained before and after."""

    def __init__(self, bad):
        self.bad, self.seen, self.taken, self.hook = bad, {}, {}, None

    def on_train_start(self, trainer, pl_module):
        for name, optimizer in optimizers_of(pl_module).items():
            optimizer.register_step_post_hook(lambda *_, name=name: self.stepped(pl_module, name))

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before, self.taken = state_of(pl_module), {"actor": 0, "critic": 0}
        self.look(pl_module)

    def stepped(self, module, name):
        self.taken[name] += 1
        self.look(module)

    def look(self, module):
        name, after = self.bad.get(module.step + 1, ("actor", None))
        if self.taken[name] == after and self.hook is None:
            model = module.critic.head if name == "critic" else module.actor.model
            self.hook = model.register_forward_hook(poisoned(float("nan"), training=True))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.hook is not None:
            self.hook.remove()
            self.hook = None
        unchanged = equal(self.before, state_of(pl_module))
        self.seen[pl_module.step] = (pl_module.context.fault, dict(self.taken), unchanged, pl_module.context.undo.kept)


@pytest.mark.parametrize("variant", VARIANTS)
def test_pitfall_45_a_step_counts_whole_or_not_at_all(model, tmp_path, variant):
    later = Later(BAD)
    code, run = start(model, tmp_path, *OPTIONS, *VARIANTS[variant], callbacks=[later])
    assert code == 0
    for step, (fault, taken, unchanged, kept) in later.seen.items():
        assert kept == {}  # nothing holds the copies after the update
        if step not in BAD:
            assert fault is None
            assert not unchanged
            continue
        name, after = BAD[step]
        assert (fault.stage, fault.tensor) == ("update", f"the {name}'s loss")
        assert taken == {"critic": 4 if name == "actor" else after, "actor": after if name == "actor" else 0}
        assert unchanged
        assert (run / "bad_batches" / f"step_{step:06d}.safetensors").is_file()
    skipped = {row["step"]: row["training/skipped_steps"] for row in lines(run) if "training/skipped_steps" in row}
    assert skipped == dict.fromkeys(BAD, 1.0)


def test_pitfall_45_the_steps_after_it_are_those_of_a_run_that_never_tried(model, tmp_path):
    """The weights that a run ends with when its third step goes bad late, and when it goes bad in its batch."""

    class Early(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if pl_module.step == 2:
                batch.batch["rm_scores"][0, 0] = torch.nan

    ends = []
    for name, callback in (("late", Later({3: ("actor", 2)})), ("early", Early())):
        keep = Keep()
        start(model, tmp_path, *OPTIONS, "trainer.steps=5", name=name, callbacks=[callback, keep])
        ends.append(keep.states)
    assert equal(ends[0][4], ends[1][4])
    assert not equal(ends[0][3], ends[0][4])


class Keep(L.Callback):
    """Keeps what is trained after each step."""

    def __init__(self):
        self.states = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.states.append(state_of(pl_module))


def test_pitfall_45_without_copies_the_earlier_mini_batches_stand(model, tmp_path):
    """The negative control: the fault is seen and later mini-batches are left out, but both models have moved."""
    later = Later({2: ("actor", 1)})
    start(model, tmp_path, *OPTIONS, "trainer.steps=2", "trainer.undo_bad_steps=false", callbacks=[later])
    fault, taken, unchanged, _ = later.seen[2]
    assert fault is not None
    assert taken == {"critic": 4, "actor": 1}
    assert not unchanged


ONE = ["update.sequences_per_minibatch=null", "update.ppo_epochs=1", "trainer.steps=1"]


@pytest.mark.parametrize(
    ("options", "copied"),
    [([*EXTRAS["grpo"], *ONE], []), (ONE, ["critic"]), (["trainer.steps=1"], ["actor", "critic"])],
)
def test_only_what_may_have_to_be_undone_is_copied(model, tmp_path, options, copied):
    """Nothing with one optimizer step; with one each, the critic, after which the actor's gradient may be bad."""
    noted = []

    class Note(L.Callback):
        def on_train_start(self, trainer, pl_module):
            own = optimizers_of(pl_module)
            names = {optimizer: name for name, optimizer in own.items()}
            own["actor"].register_step_post_hook(
                lambda *_: noted.append(sorted(names[kept] for kept in pl_module.context.undo.kept))
            )

    start(model, tmp_path, *OPTIONS, *options, callbacks=[Note()])
    assert noted[-1] == copied


@pytest.mark.parametrize("kind", [torch.optim.AdamW, MasterAdamW])
def test_states_that_moved_meanwhile_are_put_back(kind):
    """With trainer.offload an optimizer's tensors are other ones when the step is taken back."""
    layer = torch.nn.Linear(3, 2)
    optimizer = kind(layer.parameters(), lr=0.1)

    def step():
        layer(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    step()
    before = copy.deepcopy([layer.state_dict(), optimizer.state_dict()["state"]])
    undo = Undo(on=True)
    assert undo.keep(optimizer, last=False)
    step()
    assert undo.keep(optimizer, last=True)  # the copy is still that of the start
    for state in optimizer.state.values():
        state.update({name: value.clone() for name, value in state.items()})
    assert not equal(before, [layer.state_dict(), optimizer.state_dict()["state"]])
    undo.take_back()
    undo.take_back()
    assert equal(before, [layer.state_dict(), optimizer.state_dict()["state"]])

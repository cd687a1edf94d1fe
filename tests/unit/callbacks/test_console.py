import io

import numpy as np
import pytest
import torch
from rich.console import Console

from ppo_lightning.callbacks.console import ConsoleView
from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.samples import best_and_worst

METRICS = {
    "critic/score/mean": 0.25,
    "response_length/mean": 10.5,
    "actor/entropy": 2.0,
    "timing_s/step": 12.5,
    "timing_s/gen": 4.0,
    "training/rollout_probs_diff_mean": 4.2e-7,
}


class Words:
    """Decodes ids as numbers, as a tokenizer would."""

    def decode(self, ids, skip_special_tokens):
        return " ".join(map(str, ids))


@pytest.fixture
def batch():
    """Two groups of two; only the second has scores that differ."""
    scores = torch.zeros(4, 3)
    scores[2, 1] = 1.0
    return DataProto.from_dict(
        tensors={
            "rm_scores": scores,
            "responses": torch.arange(12).reshape(4, 3),
            "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 0, 0]]),
        },
        non_tensors={
            "uid": np.array(["a", "a", "b", "b"], dtype=object),
            "raw_prompt": as_column([[{"role": "user", "content": f"question {i // 2}"}] for i in range(4)]),
            "reward_model": as_column([{"ground_truth": "7"}] * 4),
            "data_source": as_column(["x"] * 4),
            "finish_reason": as_column(["stop"] * 4),
            "extra_info": as_column([{} for _ in range(4)]),
        },
        meta_info={"global_steps": 1},
    )


def view(terminal, width=100):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=width, highlight=False, color_system=None)
    return ConsoleView(True, 1, Words(), console), out


def test_best_and_worst_come_from_a_group_that_differs(batch):
    ((best, worst),) = best_and_worst(batch, Words(), 1)
    assert (best.prompt, best.score, best.response) == ("question 1", 1.0, "6 7")
    assert (worst.score, worst.response) == (0.0, "9")


def test_a_row_without_a_score_is_shown_as_such(batch):
    batch.batch["is_padding"] = torch.tensor([False, False, False, True])
    shown, out = view(terminal=False)
    shown.begin(0, 3)
    shown.on_step(1, METRICS, batch)
    assert "best  +1.00  6 7" in out.getvalue()
    assert "worst no score  9" in out.getvalue()


def test_one_plain_line_per_step_without_a_terminal(batch):
    shown, out = view(terminal=False)
    shown.begin(0, 3)
    shown.on_step(1, METRICS, batch)
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("step 1/3 | score 0.25 len 10.5 entropy 2 gap 4.2e-07 | 12.5 s (rollout 4)")
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("width", [80, 200])
def test_a_grouped_table_on_a_terminal_fits_its_width(batch, width):
    shown, out = view(terminal=True, width=width)
    shown.on_step(1, METRICS, batch)
    for word in ("reward", "length", "actor", "seconds", "score 0.25", "entropy 2"):
        assert word in out.getvalue()
    table = [line for line in out.getvalue().splitlines() if "│" in line]
    assert table
    assert max(map(len, table)) <= width


def test_numbers_that_are_not_finite_are_said(batch):
    shown, out = view(terminal=False)
    shown.on_step(1, METRICS | {"actor/entropy": None}, batch)
    assert "entropy not finite" in out.getvalue()


def test_markup_in_completions_is_shown_as_it_is():
    shown, out = view(terminal=True)
    shown.say("[bold]x[/bold] [/nonsense]")
    assert "[bold]x[/bold] [/nonsense]" in out.getvalue()

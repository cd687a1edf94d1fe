"""With deterministic kernels a run on a GPU gives the same numbers again. `pytest tests/gpu -m gpu`, one device."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "faults" / "files"))
from fault_rigs import EXTRAS, MOVING, differences, lines, save_model, start

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
OPTIONS = [*MOVING, "trainer.accelerator=gpu", "trainer.deterministic=true", "data.workers=0", "trainer.steps=5"]


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_the_same_recipe_gives_the_same_numbers_on_a_gpu(tmp_path, algorithm):
    """Metrics, rollouts, weights and optimizers; with another seed they differ."""
    model = save_model(tmp_path / "model")
    runs = {}
    for name, seed in (("one", 1), ("two", 1), ("other", 2)):
        chosen = [*EXTRAS[algorithm], *OPTIONS, f"seed={seed}"]
        code, runs[name] = start(model, tmp_path, *chosen, name=name)
        assert code == 0
        assert torch.are_deterministic_algorithms_enabled()
    assert len(lines(runs["one"])) == 5
    assert differences(runs["one"], runs["two"]) == []
    assert differences(runs["one"], runs["other"]) != []


def test_an_operation_without_a_deterministic_kernel_is_an_error(tmp_path):
    """What the setting gives besides: nothing goes on with sums that depend on chance."""
    model = save_model(tmp_path / "model")
    start(model, tmp_path, *EXTRAS["grpo"], *OPTIONS, "trainer.steps=1")
    ones = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        ones.histc(bins=2)
    torch.use_deterministic_algorithms(False)
    assert int(ones.histc(bins=2).sum()) == 4

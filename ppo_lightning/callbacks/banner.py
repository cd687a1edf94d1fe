"""What is said before the first step: where, what, how much."""

import torch

from ppo_lightning import __version__
from ppo_lightning.config.schema import Config
from ppo_lightning.config.validate import optimizer_steps, sequences_per_minibatch, sequences_per_step
from ppo_lightning.data.datamodule import PromptDataModule
from ppo_lightning.models.lora import adapter_size, has_adapter
from ppo_lightning.module import PPOModule
from ppo_lightning.run_dir import RunDir


def banner(config: Config, run_dir: RunDir, module: PPOModule, data: PromptDataModule) -> list[str]:
    """Return the lines of the start banner: run directory, models, batch arithmetic, length."""
    parts = [f"actor {_millions(module.actor)}"]
    parts += [f"critic {_millions(module.critic)}"] if module.critic else []
    parts += [f"reference {_millions(module.reference)}"] if module.reference else []
    if has_adapter(module.actor):
        parts += [f"LoRA: {adapter_size(module.actor):,} trained parameters, reference: adapter off"]
    validation = f", {len(data.val_set)} for validation" if data.val_set else ", no validation"
    rollout, trainer = config.rollout, config.trainer
    return [
        f"ppo_lightning {__version__}  run directory {run_dir.path}  seed {config.seed}",
        f"  model    {config.model.path}: {', '.join(parts)}; {config.model.dtype}",
        f"  device   {trainer.accelerator} x {trainer.devices}, strategy {trainer.strategy}, "
        f"{torch.get_num_threads()} CPU threads",
        f"  data     {len(data.train_set)} prompts{validation}; prompts up to {config.data.max_prompt_tokens} tokens",
        f"  rollout  {rollout.engine}: {config.data.prompts_per_step} prompts x {rollout.rollouts_per_prompt} = "
        f"{sequences_per_step(config)} sequences of up to {rollout.response_tokens} tokens, "
        f"temperature {rollout.temperature}",
        f"  update   {config.algorithm.adv_estimator} / {config.actor.policy_loss}: {optimizer_steps(config)} "
        f"optimizer step(s) per training step on {sequences_per_minibatch(config)} sequences each; "
        f"actor lr {config.actor.lr}" + (f", critic lr {config.critic.lr}" if module.critic else ""),
        f"  length   {data.steps} training steps",
    ]


def _millions(model: torch.nn.Module) -> str:
    return f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters"

"""The only factory: from a configuration to data, models, callbacks and a Trainer (`run.py` puts them to work)."""

import logging
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import lightning as L
from lightning.pytorch.utilities import rank_zero_only

from ppo_lightning.algorithms.tables import resolve
from ppo_lightning.callbacks.console import ConsoleView
from ppo_lightning.callbacks.log import LogCallback
from ppo_lightning.callbacks.rollout import RolloutCallback
from ppo_lightning.config.schema import Config, RewardConfig
from ppo_lightning.config.validate import validate
from ppo_lightning.data.datamodule import PromptDataModule
from ppo_lightning.engines import find_engine
from ppo_lightning.engines.base import Engine, Sampling
from ppo_lightning.errors import ConfigError, PPOLightningError
from ppo_lightning.models.critic import load_critic
from ppo_lightning.models.load import eos_token_ids, load_causal_lm, load_tokenizer
from ppo_lightning.models.lora import add_adapter
from ppo_lightning.models.token_log_probs import check_head
from ppo_lightning.module import PPOModule
from ppo_lightning.parallel.started import environments
from ppo_lightning.parallel.strategy import strategy_of
from ppo_lightning.rewards.batched import BatchedRewards, build_reward_model
from ppo_lightning.rewards.check import Gold
from ppo_lightning.rewards.pool import RewardPool
from ppo_lightning.rewards.routes import has_reward_model, has_rule, route
from ppo_lightning.rewards.self_test import golds_of, self_test
from ppo_lightning.rewards.streaming import RuleRewards
from ppo_lightning.stages import uses_critic, uses_reference
from ppo_lightning.stages.rollout import Roller


def quiet() -> None:
    """Silence what libraries say on their own behalf; warnings of ours and errors stay."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in ("lightning.pytorch", "lightning.fabric", "transformers", "datasets", "httpx", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"lightning\..*|torch\..*|transformers\..*")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def build_parts(config: Config) -> tuple[PPOModule, PromptDataModule, list[L.Callback]]:
    """Make what a Trainer of your own takes: `L.Trainer(callbacks=callbacks).fit(module, datamodule=data)`.

    Its loggers get the metrics; run directory, checkpoints and exact resumption are what `fit` adds. One epoch of the
    Trainer is the whole run, `trainer.steps` long. With several ranks it needs `use_distributed_sampler=False` and
    `strategy=strategy_of(config.trainer)` (`parallel.strategy`).

    Raises:
        PPOLightningError: something that the user must change.
    """
    validate(config)
    tokenizer = load_tokenizer(config.model)
    view = ConsoleView(getattr(rank_zero_only, "rank", 0) == 0, 0, tokenizer)
    data = PromptDataModule(config, tokenizer, view.say)
    config = replace(config, trainer=replace(config.trainer, steps=data.steps))
    module = build_module(config, tokenizer)
    golds = [gold for prompts in (data.train_set, data.val_set) if prompts for gold in golds_of(prompts.prompts)]
    return module, data, [build_rollouts(config, tokenizer, module, view, golds), LogCallback()]


def build_module(config: Config, tokenizer: Any) -> PPOModule:
    """Load the models that the configuration needs; no critic and no reference where nothing reads them."""
    actor: Any = load_causal_lm(config.model)
    if not check_head(actor):
        raise ConfigError(
            f"model.path={config.model.path}: its logits are scaled, capped or biased after the output head, "
            "which is not supported"
        )
    critic = load_critic(config) if uses_critic(config) else None
    actor = add_adapter(actor, config.model)
    own_reference = uses_reference(config) and not config.model.lora_rank  # else the actor with its adapter off
    reference = load_causal_lm(config.model).requires_grad_(requires_grad=False).eval() if own_reference else None
    stop_ids = tuple(eos_token_ids(config.model, tokenizer))
    batched = build_reward_model(config, tokenizer) if has_reward_model(config.reward) else None
    return PPOModule(config, tokenizer, actor, critic, reference, batched, stop_ids)


def build_engine(config: Config, module: PPOModule) -> Engine:
    """Start the engine that `rollout.engine` names."""
    return resolve(find_engine(config.rollout.engine))(config, module)


def build_rollouts(
    config: Config, tokenizer: Any, module: PPOModule, view: ConsoleView, golds: Sequence[Gold] = ()
) -> RolloutCallback:
    """Make the callback that owns the engine and, for rule rewards, the worker pool.

    Args:
        config: the run's configuration.
        tokenizer: the policy's.
        module: the policy, and the reward model if one is on.
        view: told what scores.
        golds: right answers that the rules are tried on before training.
    """

    def make_roller(engine: Engine) -> Roller:
        rules = build_rules(config.reward, golds, view)
        if isinstance(module.score_batch, BatchedRewards):
            module.score_batch.rules = rules
        return Roller(
            engine,
            tokenizer,
            rules,
            seed=config.seed,
            prompt_width=config.data.max_prompt_tokens,
            train=train_sampling(config, module.stop_ids),
            validation=validation_sampling(config, module.stop_ids),
            heartbeat=view.on_rollout,
        )

    return RolloutCallback(lambda pl_module: build_engine(config, pl_module), make_roller)


def build_rules(config: RewardConfig, golds: Sequence[Gold], view: ConsoleView) -> RuleRewards | None:
    """Start the rules and try them on gold answers; None where a reward model alone scores.

    Raises:
        RewardError: a function cannot be loaded, or a built-in scorer misses right answers.
    """
    decided = route(has_reward_model(config), config.model_own_resources, has_scores=False)
    if decided.model:
        view.say(f"reward model: {config.model_server or config.model_path} scores whole batches after the rollout")
    if not has_rule(config):
        return None
    pool = RewardPool(config)
    try:
        for line in self_test(pool, golds):
            view.say(f"reward: {line}")
    except PPOLightningError:
        pool.close()
        raise
    when = "as each response is finished" if decided.rule == "streamed" else "after the rollout"
    view.say(f"reward: rules score {when}" + ("; the reward model's score is added" if decided.model else ""))
    return RuleRewards(pool, config, decided)


def train_sampling(config: Config, stop_ids: tuple[int, ...]) -> Sampling:
    """Return how training rollouts are sampled."""
    rollout = config.rollout
    kept = (rollout.top_p, rollout.top_k, rollout.min_p)
    return Sampling(rollout.temperature, rollout.response_tokens, *kept, stop_ids, rollout.ignore_eos)


def validation_sampling(config: Config, stop_ids: tuple[int, ...]) -> Sampling:
    """Return how validation responses are sampled."""
    validation = config.validation
    longest = validation.response_tokens or config.rollout.response_tokens
    return Sampling(validation.temperature, longest, validation.top_p, validation.top_k, 0.0, stop_ids)


def build_trainer(config: Config, callbacks: Sequence[L.Callback]) -> L.Trainer:
    """Make the Trainer: one Lightning epoch is the whole run, and nothing of its own is saved or logged."""
    return L.Trainer(
        accelerator=config.trainer.accelerator,
        strategy=strategy_of(config.trainer),
        devices=config.trainer.devices,
        num_nodes=config.trainer.nodes,
        plugins=environments(config.trainer),
        max_epochs=1,
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        val_check_interval=10**9,
        check_val_every_n_epoch=None,
        use_distributed_sampler=False,
        deterministic=config.trainer.deterministic,
        default_root_dir=config.output_dir,
    )

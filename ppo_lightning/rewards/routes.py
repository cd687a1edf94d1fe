"""Who scores a batch, and when: the decision of SPEC 2.12 and 2.13 as one pure function."""

from dataclasses import dataclass

from ppo_lightning.config.schema import RewardConfig


@dataclass(frozen=True)
class Route:
    """What the rollout and the score stage do.

    Attributes:
        rule: when rule rewards are computed: "streamed" per finished sample during the rollout, "after" it, or "no".
        model: whether the score stage asks the reward model; otherwise it extracts what the batch holds.
    """

    rule: str
    model: bool


def route(reward_model: bool, own_resources: bool, has_scores: bool) -> Route:
    """Decide.

    Args:
        reward_model: a reward model is on.
        own_resources: it has its own machine, so rules need not wait for it.
        has_scores: the batch already holds `rm_scores` (a rule wrote them, or a batch is used again).

    A batch that holds scores is scored by nobody again. Without a reward model, or with one elsewhere, rules are
    streamed. They write `rm_scores` when no model is on; with one, their outcomes wait for it and the two are added, so
    that what is trained on does not depend on where the model runs.
    """
    if has_scores:
        return Route(rule="no", model=False)
    streamed = not reward_model or own_resources
    return Route(rule="streamed" if streamed else "after", model=reward_model)


def has_reward_model(config: RewardConfig) -> bool:
    """Return whether route B is configured."""
    return config.model_path is not None or config.model_server is not None


def has_rule(config: RewardConfig) -> bool:
    """Return whether rules score: always, unless a reward model is on and no rule is named beside it."""
    named = config.path is not None or config.scorer != "auto" or bool(config.parts)
    return named or not has_reward_model(config)

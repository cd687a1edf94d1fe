"""What in a step's metrics deserves a warning, and what to do about it: one table. Torch-free."""

from collections import deque
from dataclasses import dataclass, replace
from statistics import fmean, median

from ppo_lightning.config.schema import Config
from ppo_lightning.metrics.registry import METRICS
from ppo_lightning.rewards.sample import FAULTS

FIRST, RECENT, FEWEST = 5, 20, 5
"""Steps whose mean is the `start`; steps whose median is the `recent` value, and how many of them there must be."""

CALM = 3
"""Steps without the condition that end an episode, at least."""


@dataclass(frozen=True)
class Rule:
    """One condition.

    Attributes:
        name: of the condition.
        keys: metrics; it holds if it holds for any of them.
        sign: `above` or `below`.
        threshold: of the value itself, or of the value as a share of `basis`.
        basis: `value`; `start`: the mean of the run's first steps; `recent`: the median of the last steps.
        steps: in a row that it must hold for.
        advice: what to do.
    """

    name: str
    keys: tuple[str, ...]
    sign: str
    threshold: float
    basis: str
    steps: int
    advice: str

    def bound(self) -> str:
        """Return the condition in words."""
        of = {"value": "", "start": f" x its mean over the first {FIRST} steps", "recent": " x its recent median"}
        return f"{self.sign} {self.threshold:g}{of[self.basis]}"


RULES = (
    Rule("equal groups", ("training/equal_score_groups",), "above", 0.8, "value", 3,
         "most groups score all the same and teach nothing: take prompts that are neither too hard nor too easy, raise "
         "rollout.rollouts_per_prompt, or set algorithm.filter_groups=true"),
    Rule("responses cut off", ("response_length/clip_ratio",), "above", 0.5, "value", 3,
         "most responses reach rollout.response_tokens and are scored unfinished: raise it, shorten what the prompt "
         "asks for, or penalise length with reward.overlong_buffer_tokens"),
    Rule("empty responses", ("response/aborted_ratio",), "above", 0.1, "value", 3,
         "the engine returns responses without a token: look at rollouts/ and at the engine's limits"),
    Rule("entropy collapse", ("actor/entropy",), "below", 0.1, "start", 3,
         "the policy hardly explores now: lower actor.lr, raise actor.clip_ratio_high, or set actor.entropy_coeff"),
    Rule("engine gap", ("training/rollout_probs_diff_alarm",), "above", 0.5, "value", 1,
         "the engine's probabilities are further from the trainer's than rounding explains: look at "
         "rollout.check_weights, at the engine's sampling settings and types (docs/engines.md), or correct for the gap "
         "with rollout_correction.rollout_is=token"),
    Rule("update too large", ("actor/ppo_kl",), "above", 0.1, "value", 2,
         "the policy moves far within one step: lower actor.lr, update.ppo_epochs or actor.grad_clip"),
    Rule("KL runs away", ("actor/reward_kl_penalty", "actor/kl_loss"), "above", 0.3, "value", 3,
         "the policy is far from the reference: raise algorithm.kl_coef or actor.kl_loss_coef, or lower actor.lr"),
    Rule("critic explains nothing", ("critic/vf_explained_var",), "below", 0.0, "value", 10,
         "values are worse than their mean: raise critic.lr, give it critic.warmup_steps, or use a group estimator "
         "(algorithm.adv_estimator=grpo)"),
    Rule("reward faults", tuple(f"reward/{kind}" for kind in FAULTS), "above", 0.0, "value", 1,
         "samples could not be scored: `reward_fault` and `reward_detail` in rollouts/ say why; reward-check runs the "
         "reward alone"),
    Rule("steps left out", ("training/skipped_steps",), "above", 0.0, "value", 1,
         "the gradient was not finite and the step was left out: lower actor.lr or critic.lr, or train in "
         "model.dtype=float32"),
    Rule("log records lost", ("training/records_lost",), "above", 0.0, "value", 1,
         "rollout dumps or logger calls failed: look at the disk and at the logger's service; metrics.jsonl has all"),
    Rule("throughput drop", ("perf/throughput",), "below", 0.5, "recent", 3,
         "steps take twice as long as before: look for other work on the machine, longer responses, slow rewards "
         "(timing_s/*)"),
)  # fmt: skip


@dataclass(frozen=True)
class Warned:
    """An episode that begins or ends.

    Attributes:
        step: at which.
        rule: whose.
        key: the metric that met the condition.
        value: its value at this step.
        begins: False: it is over.
    """

    step: int
    rule: Rule
    key: str
    value: float
    begins: bool

    def text(self) -> str:
        """Return one line for the console."""
        if not self.begins:
            return f"over since step {self.step}: {self.rule.name} ({self.key}={self.value:.3g})"
        since = f" in {self.rule.steps} steps in a row" if self.rule.steps > 1 else ""
        found = f"{self.key}={self.value:.3g} is {self.rule.bound()}{since}"
        return f"warning after step {self.step}: {self.rule.name}: {found}: {self.rule.advice}"

    def row(self) -> dict[str, object]:
        """Return the line of warnings.jsonl."""
        event = "begins" if self.begins else "ends"
        found = {"step": self.step, "event": event, "rule": self.rule.name, "key": self.key, "value": self.value}
        return found | {"bound": self.rule.bound(), "advice": self.rule.advice}


class Watch:
    """Follows one rule over the steps of a run: an episode begins once and ends once.

    Attributes:
        active: an episode is on.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.active = False
        self.held, self.calm = 0, 0
        self.first: dict[str, list[float]] = {key: [] for key in rule.keys}
        self.recent: dict[str, deque[float]] = {key: deque(maxlen=RECENT) for key in rule.keys}

    def observe(self, step: int, metrics: dict[str, float | None]) -> Warned | None:
        """Take a step's metrics; what is absent or not finite counts neither way."""
        seen = {key: value for key in self.rule.keys if (value := metrics.get(key)) is not None}
        if not seen:
            return None
        beyond = [key for key, value in seen.items() if self._beyond(key, value)]
        for key, value in seen.items():
            self.recent[key].append(value)
            self.first[key] = [*self.first[key], value][:FIRST]
        self.held, self.calm = (self.held + 1, 0) if beyond else (0, self.calm + 1)
        key = beyond[0] if beyond else next(iter(seen))
        if not (self.calm >= max(CALM, self.rule.steps) if self.active else self.held >= self.rule.steps):
            return None
        self.active = not self.active
        return Warned(step, self.rule, key, seen[key], self.active)

    def _beyond(self, key: str, value: float) -> bool:
        bound = self.rule.threshold
        if self.rule.basis == "start":
            if len(self.first[key]) < FIRST:
                return False
            bound *= fmean(self.first[key])
        elif self.rule.basis == "recent":
            if len(self.recent[key]) < FEWEST:
                return False
            bound *= median(self.recent[key])
        return value > bound if self.rule.sign == "above" else value < bound


class Watches:
    """All rules of a run."""

    def __init__(self, rules: tuple[Rule, ...] = RULES) -> None:
        self.watches = [Watch(rule) for rule in rules]

    def observe(self, step: int, metrics: dict[str, float | None]) -> list[Warned]:
        """Take a step's metrics and return the episodes that begin or end."""
        return [warned for watch in self.watches if (warned := watch.observe(step, metrics))]

    @property
    def active(self) -> int:
        """How many episodes are on."""
        return sum(watch.active for watch in self.watches)


def rules_for(config: Config) -> tuple[Rule, ...]:
    """Return the rules that make sense: losses that add up tokens have no bound that holds for every length."""
    if config.update.loss_agg_mode in ("token-mean", "seq-mean-token-mean"):
        return RULES
    bounded = [
        replace(rule, keys=tuple(key for key in rule.keys if rule.basis != "value" or METRICS[key].reduction != "LOSS"))
        for rule in RULES
    ]
    return tuple(rule for rule in bounded if rule.keys)


def table() -> str:
    """Return the rules as a Markdown table, for docs/warnings.md."""
    lines = ["| warning | metric | condition | steps in a row | what to do |", "|---|---|---|---|---|"]
    for rule in RULES:
        keys = ", ".join(f"`{key}`" for key in rule.keys)
        lines.append(f"| {rule.name} | {keys} | {rule.bound()} | {rule.steps} | {rule.advice} |")
    return "\n".join(lines)

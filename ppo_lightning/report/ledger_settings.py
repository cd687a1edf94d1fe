"""The settings that the interactive ledger opens with, and its numbers for any settings. Imports no torch."""

from ppo_lightning.config.schema import Config
from ppo_lightning.errors import DataError
from ppo_lightning.metrics.ledger import Ledger, ledger, spread_lengths
from ppo_lightning.report.reading import Run
from ppo_lightning.report.recorded import WIDTH, devices, recorded_ledger


def settings_of(config: Config, seconds: float | None = None) -> dict[str, float]:
    """Return the sizes of a recipe: full prompts, responses spread evenly over the width."""
    width, prompt = config.rollout.response_tokens, config.data.max_prompt_tokens
    return {
        "prompts": config.data.prompts_per_step,
        "n": config.rollout.rollouts_per_prompt,
        "prompt_width": prompt,
        "prompt_shortest": max(prompt // 4, 1),
        "prompt_longest": max(3 * prompt // 4, 1),
        "response_width": width,
        "response_shortest": max(width // 8, 1),
        "response_longest": width,
        "aborted": 0,
        "seconds": 10.0 if seconds is None else seconds,
        "devices": config.trainer.devices * config.trainer.nodes,
    }


def settings_of_step(run: Run, step: int) -> tuple[dict[str, float], list[int], list[int]]:
    """Return the sizes of a recorded step, and the lengths of its responses and of its prompts.

    Raises:
        DataError: the run has no such step, or no rows of it.
    """
    recorded = recorded_ledger(run, step)
    if recorded.lengths is None:
        raise DataError(f"the page of a step needs all its rows - {run.path}/rollouts lacks rows of step {step}")
    prompts, responses = recorded.lengths.prompts, recorded.lengths.responses
    samples = run.config.get("rollout.rollouts_per_prompt", 1)
    groups = [prompts[start : start + samples] for start in range(0, len(prompts), samples)]
    if any(len(group) != samples or len(set(group)) > 1 for group in groups):
        groups, samples = [[length] for length in prompts], 1
    width = run.config[WIDTH]
    settings = {
        "prompts": len(groups),
        "n": samples,
        "prompt_width": run.config.get("data.max_prompt_tokens", max(prompts)),
        "prompt_shortest": min(prompts),
        "prompt_longest": max(prompts),
        "response_width": width,
        "response_shortest": min(responses),
        "response_longest": max(responses),
        "aborted": 0,
        "seconds": recorded.seconds or 1.0,
        "devices": devices(run),
    }
    return settings, responses, [group[0] for group in groups]


def lengths_of(settings: dict[str, float]) -> tuple[list[int], list[int]]:
    """Return prompt and response lengths of every sequence: spread evenly, the last sequences aborted."""
    whole = {name: int(value) for name, value in settings.items() if name != "seconds"}
    count, samples = whole["prompts"] * whole["n"], whole["n"]
    spread = spread_lengths(whole["prompts"], whole["prompt_shortest"], whole["prompt_longest"])
    prompts = [length for length in spread for _ in range(samples)]
    aborted = min(whole["aborted"], count)
    given = count - aborted
    responses = spread_lengths(given, whole["response_shortest"], whole["response_longest"]) if given else []
    return prompts, [*responses, *[0] * aborted]


def ledger_at(settings: dict[str, float]) -> Ledger:
    """Return the ledger that the page shows at legal settings."""
    prompts, responses = lengths_of(settings)
    return ledger(prompts, responses, int(settings["response_width"]), settings["seconds"], int(settings["devices"]))

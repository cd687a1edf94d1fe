"""A reward file as TRL users write it: whole batches, dataset columns as keywords, None where not applicable."""

import re


def length_reward(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


def accuracy_reward(prompts, completions, answer, **kwargs):
    contents = [completion[0]["content"] for completion in completions]
    assert all(prompt[-1]["role"] == "user" for prompt in prompts)
    return [1.0 if truth in content else 0.0 for content, truth in zip(contents, answer, strict=True)]


def format_reward(completions, **kwargs):
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    contents = [completion[0]["content"] for completion in completions]
    return [1.0 if re.match(pattern, content) else 0.0 for content in contents]


def math_only(prompts, completions, task, **kwargs):
    return [1.0 if kind == "math" else None for kind in task]


def needs_column(completions, difficulty):
    return [float(value) for value in difficulty]


def short(completions, **kwargs):
    return [1.0] * (len(completions) - 1)


async def slow_async(completions, **kwargs):
    return [2.0 for _ in completions]

"""Problems made on the spot: small arithmetic of our own, and every task of reasoning-gym."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from ppo_lightning.algorithms.tables import resolve
from ppo_lightning.errors import ConfigError, DataError

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def arithmetic(
    rows: int = 1000, seed: int = 1, digits: int = 1, max_digits: int = 0, operations: str = "+"
) -> list[dict]:
    """Make questions such as 'What is 3 + 8?'.

    Args:
        rows: how many.
        seed: of the draw.
        digits: smallest number of digits of an operand (one digit includes 0).
        max_digits: largest number of digits; 0: the same as `digits`.
        operations: the signs to draw from, such as `+-`.
    """
    draw = random.Random(f"arithmetic {seed}")
    made = []
    for _ in range(rows):
        a, b = (_operand(draw, draw.randint(digits, max_digits or digits)) for _ in range(2))
        sign = draw.choice(operations)
        question = f"What is {a} {sign} {b}? Answer with the number only."
        made.append({"question": question, "answer": str(OPERATIONS[sign](a, b)), "data_source": "arithmetic"})
    return made


def reasoning_gym(task: str, rows: int = 1000, seed: int = 1, **options: Any) -> list[dict]:
    """Make `rows` problems of a reasoning-gym task.

    The metadata travels in extra_info: the task's own rule reads it. The answer is empty where a task has many right
    ones and names none.
    """
    try:
        import reasoning_gym as gym
    except ImportError:
        raise DataError("reasoning_gym/... needs reasoning-gym: pip install 'ppo-lightning[offline]'") from None
    try:
        made = gym.create_dataset(task, size=rows, seed=seed, **options)
    except (ValueError, TypeError, AssertionError) as error:
        raise DataError(f"reasoning_gym/{task}: {error}") from None
    return [
        {
            "question": entry["question"],
            "answer": "" if entry["answer"] is None else str(entry["answer"]),
            "data_source": f"reasoning_gym/{task}",
            "metadata": entry["metadata"],
        }
        for entry in made
    ]


GENERATORS: dict[str, Callable[..., list[dict]]] = {"arithmetic": arithmetic}


def generate(name: str, options: str, key: str) -> list[dict]:
    """Run a generator named `arithmetic`, `reasoning_gym/<task>` or `module:function` with `option=value,...`.

    Raises:
        DataError: the name or an option is not known, or a value is out of range.
    """
    arguments = {}
    for item in filter(None, options.split(",")):
        option, equals, value = item.partition("=")
        if not equals:
            raise DataError(f"{key}={name}:{options}: each option must read option=value, got {item!r}")
        arguments[option.strip()] = _number(value.strip())
    make = GENERATORS.get(name)
    if make is None:
        make = _own(name, key) if ":" in name else partial(reasoning_gym, name.partition("/")[2])
    try:
        return make(**arguments)
    except (TypeError, KeyError) as error:
        raise DataError(f"{key}={name}:{options}: {error}") from None


def _own(path: str, key: str) -> Callable[..., list[dict]]:
    try:
        return resolve(path)
    except ConfigError as error:
        raise DataError(f"{key}: {error}") from None


def _operand(draw: random.Random, digits: int) -> int:
    return draw.randint(10 ** (digits - 1) if digits > 1 else 0, 10**digits - 1)


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

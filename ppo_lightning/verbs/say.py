"""The one place where verbs print. Imports no torch."""

from ppo_lightning.secrets import redact


def say(text: str) -> None:
    """Print to stdout, with secrets masked."""
    print(redact(text))  # noqa: T201

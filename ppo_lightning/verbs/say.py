"""The one place where verbs print. Imports no torch."""


def say(text: str) -> None:
    """Print to stdout."""
    print(text)  # noqa: T201

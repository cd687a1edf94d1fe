"""The entries of the token ledger in words, for the console and the pages. Imports no torch."""

from dataclasses import dataclass

from ppo_lightning.metrics.ledger import LOGGED_AS, RATIOS


@dataclass(frozen=True)
class Entry:
    """One line of the ledger.

    Attributes:
        label: what it is; the metric's key where it is one.
        formula: how it is made.
    """

    label: str
    formula: str


ENTRIES: dict[str, Entry] = {
    "sequences": Entry("sequences (B)", "prompts x n"),
    "response_tokens": Entry("response tokens", "sum of L over all sequences"),
    "trained_tokens": Entry("tokens in the loss (N)", "response tokens that no mask leaves out"),
    "total_tokens": Entry(LOGGED_AS["total_tokens"], "prompt tokens + response tokens"),
    "write_positions": Entry("reward positions written", "one per sequence, at index L - 1"),
    "masked_positions": Entry("of them on padding", "sequences with L = 0: no loss reads them"),
    "token_weight": Entry("weight of one token", "1 / tokens in the loss"),
    "response_length_mean": Entry(LOGGED_AS["response_length_mean"], "response tokens / all sequences"),
    "non_aborted_mean": Entry(LOGGED_AS["non_aborted_mean"], "response tokens / sequences with L > 0"),
    "clip_ratio": Entry(LOGGED_AS["clip_ratio"], "sequences with L = R / all sequences"),
    "aborted_ratio": Entry(LOGGED_AS["aborted_ratio"], "sequences with L = 0 / all sequences"),
    "throughput": Entry(LOGGED_AS["throughput"], "total tokens / (step seconds x devices)"),
}
"""In the order they are shown."""


def for_page() -> dict[str, object]:
    """Return the table of formulas and words as the pages read it."""
    words = {name: [entry.label, entry.formula] for name, entry in ENTRIES.items()}
    return {"ratios": {name: list(pair) for name, pair in RATIOS.items()}, "entries": words}

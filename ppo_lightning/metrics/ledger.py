"""The token ledger: every denominator of a step, from its sizes alone. Torch-free, for the command and the page.

Legend: B sequences = prompts x n, P prompt width, R response width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RATIOS: dict[str, tuple[str, str]] = {
    "token_weight": ("one", "trained_tokens"),
    "response_length_mean": ("response_tokens", "sequences"),
    "clip_ratio": ("clipped", "sequences"),
    "non_aborted_mean": ("response_tokens", "non_aborted"),
    "aborted_ratio": ("masked_positions", "sequences"),
    "throughput": ("total_tokens", "device_seconds"),
}
"""Each ratio of the ledger as (numerator, denominator), names of counts: the only formulas, here and on the page."""

LOGGED_AS: dict[str, str] = {
    "response_length_mean": "response_length/mean",
    "clip_ratio": "response_length/clip_ratio",
    "non_aborted_mean": "response_length_non_aborted/mean",
    "aborted_ratio": "response/aborted_ratio",
    "total_tokens": "perf/total_num_tokens",
    "throughput": "perf/throughput",
}
"""The metric that a step logs for an entry."""


@dataclass(frozen=True)
class Ledger:
    """The counts of one step and what is divided by them; a ratio is None where its denominator is 0 or not known.

    Attributes:
        sequences: B.
        response_tokens: tokens that were generated.
        trained_tokens: those among them that the loss sees: the denominator of token-mean; None: not known.
        total_tokens: prompt and response tokens.
        write_positions: entries of rm_scores that are written: one per sequence, at its last valid token.
        masked_positions: those among them that lie on padding, where the loss never sees them: a sequence without
            tokens writes into the last column.
        non_aborted: sequences that have tokens.
        clipped: sequences that fill the response width.
        token_weight: weight of one token in a token-mean loss over all sequences, 1 / trained_tokens.
        response_length_mean: over all sequences, aborted ones included.
        clip_ratio: share of sequences that fill the response width.
        non_aborted_mean: mean length of the sequences that have tokens.
        aborted_ratio: share of sequences without tokens.
        throughput: tokens per second and device; None where the time is not known.
    """

    sequences: int
    response_tokens: int
    trained_tokens: int | None
    total_tokens: int
    write_positions: int
    masked_positions: int
    non_aborted: int
    clipped: int
    token_weight: float | None
    response_length_mean: float
    clip_ratio: float
    non_aborted_mean: float | None
    aborted_ratio: float
    throughput: float | None


@dataclass(frozen=True)
class Counts:
    """What a ledger is made of; a step's metrics give them back without its rows."""

    sequences: int
    prompt_tokens: int
    response_tokens: int
    trained_tokens: int | None
    non_aborted: int
    clipped: int


def ledger(
    prompt_lengths: Sequence[int],
    response_lengths: Sequence[int],
    width: int,
    seconds: float | None = None,
    devices: int = 1,
    trained_tokens: int | None = None,
) -> Ledger:
    """Return the ledger of sequences with the given lengths in tokens.

    Args:
        prompt_lengths: of each of the B sequences.
        response_lengths: of each of the B sequences, at most `width`.
        width: R.
        seconds: wall seconds of the step; None: not known.
        devices: number of devices.
        trained_tokens: response tokens that no mask leaves out; None: all.

    Raises:
        ValueError: no sequence, unequal numbers of lengths, a length outside the width, or no time.
    """
    rows = len(response_lengths)
    if not rows or len(prompt_lengths) != rows:
        raise ValueError(f"a ledger needs one prompt length per response, got {len(prompt_lengths)} for {rows}")
    if min(response_lengths) < 0 or max(response_lengths) > width:
        raise ValueError(
            f"response lengths must lie in 0..{width}, got {min(response_lengths)}..{max(response_lengths)}"
        )
    tokens = sum(response_lengths)
    counts = Counts(
        sequences=rows,
        prompt_tokens=sum(prompt_lengths),
        response_tokens=tokens,
        trained_tokens=tokens if trained_tokens is None else trained_tokens,
        non_aborted=sum(length > 0 for length in response_lengths),
        clipped=sum(length == width for length in response_lengths),
    )
    return ledger_of(counts, seconds, devices)


def ledger_of(counts: Counts, seconds: float | None = None, devices: int = 1) -> Ledger:
    """Return the ledger of counted tokens.

    Raises:
        ValueError: no time or no device.
    """
    if (seconds is not None and seconds <= 0) or devices < 1:
        raise ValueError(f"a ledger needs time and devices, got {seconds} s on {devices}")
    whole = {
        "sequences": counts.sequences,
        "response_tokens": counts.response_tokens,
        "trained_tokens": counts.trained_tokens,
        "total_tokens": counts.prompt_tokens + counts.response_tokens,
        "write_positions": counts.sequences,
        "masked_positions": counts.sequences - counts.non_aborted,
        "non_aborted": counts.non_aborted,
        "clipped": counts.clipped,
    }
    beside = {"one": 1, "device_seconds": None if seconds is None else seconds * devices}
    return Ledger(**whole, **_ratios(whole | beside))  # type: ignore[arg-type]


def spread_lengths(count: int, shortest: int, longest: int) -> list[int]:
    """Return `count` lengths spread evenly from the longest to the shortest, whole tokens."""
    steps = max(count - 1, 1)
    return [shortest + (longest - shortest) * (count - 1 - place) // steps for place in range(count)]


def _ratios(counts: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: _ratio(counts[above], counts[below]) for name, (above, below) in RATIOS.items()}


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None

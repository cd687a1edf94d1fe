"""The token ledger: every denominator of a step, from its sizes alone. Torch-free, for the command and the page.

Legend: B sequences = prompts x n, P prompt width, R response width.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ledger:
    """The counts of one step and what is divided by them.

    Attributes:
        sequences: B.
        response_tokens: valid response tokens: the denominator of token-mean.
        total_tokens: prompt and response tokens.
        write_positions: entries of rm_scores that are written: one per sequence, at its last valid token.
        masked_positions: those among them that lie on padding, where the loss never sees them: a sequence without
            tokens writes into the last column.
        token_weight: weight of one token in a token-mean loss, 1 / response_tokens; None without tokens.
        response_length_mean: over all sequences, aborted ones included.
        clip_ratio: share of sequences that fill the response width.
        non_aborted_mean: mean length of the sequences that have tokens; None if all are aborted.
        aborted_ratio: share of sequences without tokens.
        throughput: tokens per second and device.
    """

    sequences: int
    response_tokens: int
    total_tokens: int
    write_positions: int
    masked_positions: int
    token_weight: float | None
    response_length_mean: float
    clip_ratio: float
    non_aborted_mean: float | None
    aborted_ratio: float
    throughput: float


def ledger(
    prompt_lengths: Sequence[int], response_lengths: Sequence[int], width: int, seconds: float, devices: int = 1
) -> Ledger:
    """Return the ledger of sequences with the given lengths in tokens.

    Args:
        prompt_lengths: of each of the B sequences.
        response_lengths: of each of the B sequences, at most `width`.
        width: R.
        seconds: wall seconds of the step.
        devices: number of devices.

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
    if seconds <= 0 or devices < 1:
        raise ValueError(f"a ledger needs time and devices, got {seconds} s on {devices}")
    tokens, given = sum(response_lengths), sum(length > 0 for length in response_lengths)
    total = tokens + sum(prompt_lengths)
    return Ledger(
        sequences=rows,
        response_tokens=tokens,
        total_tokens=total,
        write_positions=rows,
        masked_positions=rows - given,
        token_weight=1.0 / tokens if tokens else None,
        response_length_mean=tokens / rows,
        clip_ratio=sum(length == width for length in response_lengths) / rows,
        non_aborted_mean=tokens / given if given else None,
        aborted_ratio=1.0 - given / rows,
        throughput=total / (seconds * devices),
    )

"""Validation metrics: prompts sampled N times each, grouped by (data source, uid), averaged over prompts. Torch-free.

The numbers of verl under verl's names (bootstrap of best, worst and majority included), and beside them, always as
`val-aux`, unbiased pass@k, votes on normalised answers, a confidence interval over prompts and the counts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from ppo_lightning.errors import DataError
from ppo_lightning.metrics.bootstrap import Bootstrap, subset_sizes
from ppo_lightning.metrics.votes import normalise, vote_codes

CORE_PREFIXES = ("mean", "maj", "best")
OWN = ("pass@", "maj_norm@", "num_prompts", "num_samples", "ci95@")
NORMAL_95 = 1.959963984540054  # two-sided 95 % point of the normal distribution

Statistics = dict[str, list[np.ndarray]]


def validation_metrics(
    data_sources: Sequence[str],
    uids: Sequence[str],
    columns: Mapping[str, Sequence[Any]],
    seed: int = 42,
    sample_ids: Sequence[Any] | None = None,
) -> dict[str, float]:
    """Return {val-core|val-aux/<data source>/<variable>/<metric>: number}.

    Args:
        data_sources: of each sample.
        uids: of each sample; samples of one prompt share it.
        columns: a value per sample under each variable's name, None where a sample has none. `reward` is expected,
            `acc` makes accuracy the core variable, `pred` holds the answers that are voted on.
        seed: of the bootstrap.
        sample_ids: something that names each sample, checked to be unique: a sample that reaches the gathering rank
            twice (a padding sampler does that) would count twice.

    Raises:
        DataError: unequal lengths, or a sample that came twice.
    """
    _check(data_sources, uids, columns, sample_ids)
    groups = _groups(data_sources, uids)
    bootstrap = Bootstrap(seed)
    found: dict[str, float] = {}
    for source, prompts in groups.items():
        preds = columns.get("pred")
        named = {}
        for name, values in columns.items():
            statistics = _variable(prompts, values, preds, bootstrap) if _is_numeric(name, values) else {}
            if statistics:
                named[name] = {metric: np.concatenate(parts) for metric, parts in statistics.items()}
        core = "acc" if "acc" in named else "reward"
        for name, metrics in named.items():
            found |= _keys(source, name, metrics, is_core=name == core)
        found[f"val-aux/{source}/num_prompts"] = float(len(prompts))
        found[f"val-aux/{source}/num_samples"] = float(sum(map(len, prompts)))
    return found


def pass_at_k(right: np.ndarray, samples: int, k: int) -> np.ndarray:
    """Return the probability that k of the samples, drawn without replacement, hold a right one.

    1 - C(N - c, k) / C(N, k), unbiased (Chen et al. 2021, arXiv 2107.03374), as a product that cannot overflow.

    Args:
        right: c, right samples of each prompt (U,).
        samples: N.
        k: size of the draw, at most N.
    """
    drawn = np.arange(k)
    left = np.clip(samples - right[:, None] - drawn, 0, None)
    return 1.0 - np.prod(left / (samples - drawn), axis=1)


def _check(
    data_sources: Sequence[str], uids: Sequence[str], columns: Mapping[str, Sequence[Any]], ids: Sequence[Any] | None
) -> None:
    sizes = {"data_sources": len(data_sources), "uids": len(uids)} | {name: len(v) for name, v in columns.items()}
    if len(set(sizes.values())) > 1:
        raise DataError(f"every validation column must have one value per sample - got lengths {sizes}")
    twice = [one for one, times in Counter(ids or ()).items() if times > 1]
    if twice:
        raise DataError(
            f"each validation sample must be counted once - {twice[0]!r} came more often, {len(twice)} such in all - "
            "give every rank its own rows, without padding"
        )


def _is_numeric(name: str, values: Sequence[Any]) -> bool:
    """Return whether a column holds numbers (bool included) where it holds anything; text is no metric.

    Raises:
        DataError: it holds both.
    """
    kinds = {isinstance(value, Real | np.bool_) for value in values if value is not None}
    if len(kinds) == 2:
        raise DataError(f"validation column {name!r} must hold numbers or text - got both - fix the reward function")
    return kinds == {True}


def _groups(data_sources: Sequence[str], uids: Sequence[str]) -> dict[str, list[list[int]]]:
    """Return {data source: samples of each prompt}, all in order of appearance."""
    groups: dict[str, dict[str, list[int]]] = {}
    for sample, (source, uid) in enumerate(zip(data_sources, uids, strict=True)):
        groups.setdefault(source, {}).setdefault(uid, []).append(sample)
    return {source: list(prompts.values()) for source, prompts in groups.items()}


def _variable(
    prompts: list[list[int]], values: Sequence[Any], preds: Sequence[Any] | None, bootstrap: Bootstrap
) -> Statistics:
    """Return {metric: one array per number of samples} of one variable; empty for text or where nothing was given."""
    tables: dict[tuple[int, bool], list[list[int]]] = {}
    for samples in prompts:
        given = [sample for sample in samples if values[sample] is not None]
        if not given:
            continue
        votes = preds is not None and len(given) == len(samples) and all(preds[one] is not None for one in given)
        tables.setdefault((len(given), votes), []).append(given)
    statistics: Statistics = {}
    for (_, votes), table in tables.items():
        numbers = np.array([[values[sample] for sample in samples] for samples in table], dtype=np.float64)
        answers = [[preds[sample] for sample in samples] for samples in table] if votes and preds is not None else None
        for metric, column in _table(numbers, answers, bootstrap).items():
            statistics.setdefault(metric, []).append(column)
    return statistics


def _table(numbers: np.ndarray, answers: list[list[Any]] | None, bootstrap: Bootstrap) -> dict[str, np.ndarray]:
    """Return {metric: value of each prompt (U,)} of prompts with equally many samples: `numbers` (U, N)."""
    samples = numbers.shape[1]
    found = {f"mean@{samples}": numbers.mean(axis=1)}
    if samples == 1:
        return found
    found[f"std@{samples}"] = numbers.std(axis=1)
    binary = bool(np.isin(numbers, (0.0, 1.0)).all())
    votes = {} if answers is None else {"maj": vote_codes(answers), "maj_norm": vote_codes(answers, normalise)}
    for k in subset_sizes(samples):
        for name, draws in bootstrap.extremes(numbers, k).items():
            found[f"{name}@{k}/mean"], found[f"{name}@{k}/std"] = draws
        for name, codes in votes.items():
            found[f"{name}@{k}/mean"], found[f"{name}@{k}/std"] = bootstrap.majority(numbers, codes, k)
        if binary:
            found[f"pass@{k}"] = pass_at_k(numbers.sum(axis=1), samples, k)
    return found


def _keys(source: str, name: str, metrics: dict[str, np.ndarray], is_core: bool) -> dict[str, float]:
    """Average over prompts, add the intervals, and give each metric its section."""
    largest = max(int(metric.split("@")[1].split("/")[0]) for metric in metrics)
    found = {}
    for metric, prompts in metrics.items():
        core = is_core and metric.startswith(CORE_PREFIXES) and not metric.startswith(OWN) and f"@{largest}" in metric
        found[f"{'val-core' if core else 'val-aux'}/{source}/{name}/{metric}"] = float(np.mean(prompts))
        if metric.startswith("mean@") and len(prompts) > 1:
            half = NORMAL_95 * float(np.std(prompts, ddof=1)) / len(prompts) ** 0.5
            found[f"val-aux/{source}/{name}/ci95@{metric.removeprefix('mean@')}"] = half
    return found

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from ppo_lightning.metrics.moments import ExplainedVarianceValue, PearsonValue, StdValue
from ppo_lightning.metrics.values import NONFINITE_KEY, MetricBook


def rows(kind, cuts, *tensors):
    """Fill one book per slice of the data."""
    books = []
    for start, end in pairwise(cuts):
        book = MetricBook()
        book.add("k", kind, kind.row(*(tensor[start:end] for tensor in tensors)))
        books.append(book)
    return books


def data(size=101, seed=3, shift=0.0):
    rng = np.random.RandomState(seed)
    x = torch.tensor(rng.randn(size) + shift)
    y = 0.7 * x + torch.tensor(rng.randn(size))
    mask = torch.tensor(rng.rand(size) < 0.6)
    x[~mask] = math.nan  # never read
    return x, y, mask


@pytest.mark.parametrize("cuts", [(0, 101), (0, 1, 101), (0, 50, 50, 101), (0, 10, 40, 41, 101)])
def test_moments_merge_exactly_over_any_split(cuts, over_ranks):
    x, y, mask = data()
    kept_x, kept_y = x[mask].numpy(), y[mask].numpy()
    assert over_ranks(*rows(StdValue, cuts, x, mask))["k"] == pytest.approx(kept_x.std(ddof=1), rel=1e-13)
    expected = np.corrcoef(kept_x, kept_y)[0, 1]
    assert over_ranks(*rows(PearsonValue, cuts, x, y, mask))["k"] == pytest.approx(expected, rel=1e-13)
    expected = 1 - np.var(kept_x - kept_y, ddof=1) / (np.var(kept_x, ddof=1) + 1e-5)
    assert over_ranks(*rows(ExplainedVarianceValue, cuts, x, y, mask))["k"] == pytest.approx(expected, rel=1e-12)


def test_worked_example_of_each():
    x, y, mask = torch.tensor([1.0, 2.0, 3.0, 99.0]), torch.tensor([1.0, 2.0, 6.0, 0.0]), torch.tensor([1, 1, 1, 0])
    one = StdValue()
    one.update(x, mask)
    assert one.compute() == 1.0  # ((-1)**2 + 0 + 1) / 2
    two = PearsonValue()
    two.update(x, y, mask)
    assert two.compute() == pytest.approx(5 / math.sqrt(2 * 14))  # deviations -1 0 1 and -2 -1 3
    three = ExplainedVarianceValue()
    three.update(x, y, mask)
    # errors 0, 0, -3: variance 3; returns: variance 1
    assert three.compute() == pytest.approx(1 - 3 / (1 + 1e-5))


def test_far_from_zero_the_deviation_stays_where_sums_of_squares_lose_it(over_ranks):
    x, _, mask = data(shift=1e8)
    found = over_ranks(*rows(StdValue, (0, 40, 101), x, mask))["k"]
    assert found == pytest.approx(x[mask].numpy().std(ddof=1), rel=1e-9)
    kept = x[mask]
    naive = float((kept.square().sum() - kept.sum().square() / len(kept)) / (len(kept) - 1))
    assert abs(naive - float(kept.var())) > 0.1  # the naive way


def test_mean_of_ranks_deviations_is_another_number(over_ranks):
    x, mask = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.ones(4)
    assert over_ranks(*rows(StdValue, (0, 2, 4), x, mask))["k"] == pytest.approx(math.sqrt(1 / 3))
    assert np.mean([x[:2].std(), x[2:].std()]) == 0.0


def test_what_is_not_defined_is_absent():
    one, none = torch.tensor([2.0]), torch.tensor([0])
    for kind, extra in ((StdValue, 0), (PearsonValue, 1), (ExplainedVarianceValue, 1)):
        for mask in (torch.tensor([1]), none):
            book = MetricBook()
            book.add("k", kind, kind.row(*[one] * (1 + extra), mask))
            assert book.compute() == {}
    book = MetricBook()
    book.add("k", PearsonValue, PearsonValue.row(torch.ones(3), torch.arange(3.0), torch.ones(3)))
    assert book.compute() == {}  # a constant correlates with nothing


def test_nan_among_the_pairs_is_kept_and_counted():
    x, y = torch.tensor([1.0, math.nan, 3.0]), torch.tensor([1.0, 2.0, 4.0])
    for kind, given in ((StdValue, (x,)), (PearsonValue, (x, y)), (ExplainedVarianceValue, (x, y))):
        book = MetricBook()
        book.add("k", kind, kind.row(*given, torch.ones(3)))
        assert book.compute() == {"k": None, NONFINITE_KEY: 1.0}

import math

import numpy as np
import pytest
import torch

from ppo_lightning.metrics.entries import Entries, row_sum
from ppo_lightning.metrics.moments import StdValue, moments
from ppo_lightning.metrics.reductions import MaxValue, MeanValue, MinValue

NAN, INF = math.nan, math.inf
CASES = [
    ([1.0, -2.0, 5.0, NAN], [1, 1, 0, 0]),
    ([1.0, NAN, 5.0, 2.0], [1, 1, 0, 1]),
    ([1.0, INF, -INF, 2.0], [1, 1, 0, 1]),
    ([1.0, INF, -INF, 2.0], [0, 0, 0, 0]),
    ([], []),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("values", "mask"), CASES)
def test_picking_and_masking_give_the_same_rows(values, mask, dtype):
    values, mask = torch.tensor(values, dtype=dtype), torch.tensor(mask)
    for kind in (MeanValue, MaxValue, MinValue):
        picked, masked = (kind.entries_row(Entries(values, mask, pick)) for pick in (True, False))
        assert [float(one) for one in picked] == pytest.approx([float(one) for one in masked], nan_ok=True)


def test_integers_stay_exact():
    values = torch.tensor([2**24 + 1, 3, 7])
    for pick in (True, False):
        entries = Entries(values, torch.tensor([1, 1, 0]), pick)
        assert float(entries.total()) == 2**24 + 4
        assert float(entries.largest()) == 2**24 + 1
        assert float(entries.smallest()) == 3.0
        assert float(entries.count()) == 2


def test_sums_are_in_float64():
    values = torch.full((1 << 20,), 0.1)  # float32
    exact = float(np.float32(0.1)) * (1 << 20)
    for pick in (True, False):
        assert float(Entries(values, None, pick).total()) == pytest.approx(exact, rel=1e-12)
    assert row_sum(values.reshape(2, -1)).tolist() == pytest.approx([exact / 2] * 2, rel=1e-12)


def test_moments_of_masked_pairs_equal_those_of_picked_ones():
    rng = np.random.RandomState(0)
    x, mask = torch.tensor(rng.randn(200_000)), torch.tensor(rng.rand(200_000) < 0.5)
    x[~mask] = NAN
    picked = StdValue.row(x, mask)  # in chunks
    assert picked.tolist() == pytest.approx(moments(x, x, mask).tolist(), rel=1e-12, abs=1e-12)
    assert StdValue.finish(picked.tolist()) == pytest.approx(x[mask].numpy().std(ddof=1), rel=1e-12)

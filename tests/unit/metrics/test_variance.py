import pytest
import torch

from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.metrics.variance import variance_metrics


def batch_of(make_batch, **fields):
    return make_batch(
        [2, 1, 0],
        width=2,
        old_log_probs=torch.tensor([[0.5, 0.25], [0.5, 0.9], [0.9, 0.9]]).log(),
        sum_pi_squared=torch.tensor([[0.5, 0.5], [0.75, 9.0], [9.0, 9.0]]),
        advantages=torch.tensor([[1.0, 3.0], [-1.0, 9.0], [9.0, 9.0]]),
        **fields,
    )


def compute(batch, *args):
    book = MetricBook()
    variance_metrics(batch, book, *args)
    return book.compute()


def test_worked_example(make_batch):
    # W: (1 - 1 + .5) + (1 - .5 + .5) = 1.5 and 1 - 1 + .75 = 0.75; advantages 2 and -1; the empty row counts nowhere
    found = compute(batch_of(make_batch), 0.5)
    assert found == pytest.approx(
        {
            "variance_proxy/proxy1_signal_strength": 0.25,
            "variance_proxy/proxy2_total_power": (4 * 1.5 + 0.75) / 2,
            "variance_proxy/proxy3_pure_noise": (6.75 / 2 - 0.25) / 1,
            "variance_proxy/expected_a_squared": 2.5,
            "variance_proxy/expected_w": 1.125,
        }
    )


def test_importance_weights_enter_squared(make_batch):
    weights = torch.tensor([[2.0, 0.0], [1.0, 7.0], [7.0, 7.0]])
    found = compute(batch_of(make_batch, rollout_is_weights=weights))
    # row means 1 and 1, so the power is as without; W is weighted token by token: 4 * .5 + 0 and .75
    assert found["variance_proxy/proxy2_total_power"] == pytest.approx((4 * 1.5 + 0.75) / 2)
    assert found["variance_proxy/expected_w"] == pytest.approx((2.0 + 0.75) / 2)


def test_without_a_gradient_norm_what_needs_it_is_absent(make_batch):
    assert sorted(compute(batch_of(make_batch))) == [
        "variance_proxy/expected_a_squared",
        "variance_proxy/expected_w",
        "variance_proxy/proxy2_total_power",
    ]


def test_without_the_needed_field_nothing_is_written(make_batch):
    assert compute(make_batch([2, 1]), 1.0) == {}


def test_noise_is_never_negative_and_needs_two_rows(make_batch):
    assert compute(batch_of(make_batch), 100.0)["variance_proxy/proxy3_pure_noise"] == 0.0
    assert "variance_proxy/proxy3_pure_noise" not in compute(batch_of(make_batch)[:1], 1.0)


def test_over_ranks_equals_one(make_batch, over_ranks):
    batch = batch_of(make_batch)
    books = MetricBook(), MetricBook()
    variance_metrics(batch[:1], books[0], 0.5)
    variance_metrics(batch[1:], books[1], 0.5)
    assert over_ranks(*books) == pytest.approx(compute(batch, 0.5))

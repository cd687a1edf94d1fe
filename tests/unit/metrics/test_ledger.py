import pytest

from ppo_lightning.metrics.data import data_metrics
from ppo_lightning.metrics.ledger import ledger
from ppo_lightning.metrics.throughput import throughput_metrics
from ppo_lightning.metrics.values import MetricBook


def test_worked_example():
    # 2 prompts x 2 rollouts, prompts of 3 and 2 tokens, R = 8
    found = ledger([3, 3, 2, 2], [8, 4, 0, 8], width=8, seconds=5.0, devices=2)
    assert (found.sequences, found.response_tokens, found.total_tokens) == (4, 20, 30)
    assert (found.write_positions, found.masked_positions) == (4, 1)
    assert found.token_weight == 0.05
    assert found.response_length_mean == 5.0
    assert found.clip_ratio == 0.5
    assert found.non_aborted_mean == pytest.approx(20 / 3)
    assert found.aborted_ratio == 0.25
    assert found.throughput == 3.0


def test_agrees_with_the_metrics_of_a_batch(make_batch):
    batch = make_batch([5, 0, 2, 5], [1, 2, 3, 4])
    book = MetricBook()
    data_metrics(batch, book, use_critic=False)
    throughput_metrics(batch, 2.5, book, devices=2)
    logged, found = book.compute(), ledger([1, 2, 3, 4], [5, 0, 2, 5], width=5, seconds=2.5, devices=2)
    assert found.response_length_mean == logged["response_length/mean"]
    assert found.clip_ratio == logged["response_length/clip_ratio"]
    assert found.non_aborted_mean == logged["response_length_non_aborted/mean"]
    assert found.aborted_ratio == logged["response/aborted_ratio"]
    assert found.total_tokens == logged["perf/total_num_tokens"]
    assert found.throughput == logged["perf/throughput"]


def test_all_aborted_has_no_weight():
    found = ledger([2, 2], [0, 0], width=4, seconds=1.0)
    assert found.token_weight is None
    assert found.non_aborted_mean is None
    assert found.aborted_ratio == 1.0


@pytest.mark.parametrize(
    ("prompts", "responses", "seconds", "words"),
    [
        ([], [], 1.0, "one prompt length per response"),
        ([1], [1, 2], 1.0, "one prompt length per response"),
        ([1], [5], 1.0, r"must lie in 0\.\.4"),
        ([1], [2], 0.0, "needs time and devices"),
    ],
)
def test_what_cannot_be_is_refused(prompts, responses, seconds, words):
    with pytest.raises(ValueError, match=words):
        ledger(prompts, responses, width=4, seconds=seconds)

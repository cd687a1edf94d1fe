import pytest

from ppo_lightning.metrics.timing import timing_metrics
from ppo_lightning.metrics.values import MetricBook


def test_worked_example(make_batch):
    book = MetricBook()
    # 7 response and 6 prompt tokens
    timing_metrics(make_batch([5, 2, 0]), {"gen": 1.4, "ref": 2.6, "step": 9.0, "align": 0.5}, book)
    assert book.compute() == pytest.approx(
        {
            "timing_s/gen": 1.4,
            "timing_per_token_ms/gen": 200.0,
            "timing_s/ref": 2.6,
            "timing_per_token_ms/ref": 200.0,
            "timing_s/step": 9.0,
            "timing_s/align": 0.5,
        }
    )


def test_ranks_share_the_wall_clock_and_add_their_tokens(make_batch, over_ranks):
    books = MetricBook(), MetricBook()
    timing_metrics(make_batch([5, 2]), {"gen": 2.0}, books[0], ranks=2)
    timing_metrics(make_batch([1, 0]), {"gen": 4.0}, books[1], ranks=2)
    # 3 seconds on average, 8 tokens together
    assert over_ranks(*books) == pytest.approx({"timing_s/gen": 3.0, "timing_per_token_ms/gen": 375.0})


def test_pitfall_22_without_tokens_there_is_no_time_per_token(make_batch):
    book = MetricBook()
    timing_metrics(make_batch([0, 0], [0, 0]), {"gen": 1.0, "values": 1.0}, book)
    assert book.compute() == {"timing_s/gen": 1.0, "timing_s/values": 1.0}

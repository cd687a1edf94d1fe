from dataclasses import replace

import pytest

from ppo_lightning.metrics.flops import DenseShape
from ppo_lightning.metrics.throughput import mfu_metric, throughput_metrics
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.protocol.padding import pad_to_divisor

SHAPE = DenseShape(layer_weights=100, head_weights=10, attention_width=3, windows=(None, None))


def test_worked_example(make_batch):
    book = MetricBook()
    throughput_metrics(make_batch([5, 2, 0]), 2.0, book, devices=2)  # 7 + 6 tokens
    assert book.compute() == {"perf/total_num_tokens": 13.0, "perf/time_per_step": 2.0, "perf/throughput": 13 / 4}


def test_pitfall_59_padding_is_no_throughput(make_batch):
    batch = make_batch([5, 2, 0])
    padded, _ = pad_to_divisor(batch, 8)
    book = MetricBook()
    throughput_metrics(padded, 1.0, book)
    assert book.compute()["perf/throughput"] == 13.0
    assert padded.batch["attention_mask"].numel() == 8 * 9  # what counting entries would report
    assert int(padded.batch["attention_mask"].sum()) > 13  # and what counting the copies of rows would


def test_pitfall_59_every_rank_counts_its_own_devices(make_batch, over_ranks):
    books = MetricBook(), MetricBook()
    throughput_metrics(make_batch([5, 2, 0]), 2.0, books[0], devices=1)
    throughput_metrics(make_batch([1, 1, 1]), 2.0, books[1], devices=1)
    found = over_ranks(*books)
    assert found["perf/total_num_tokens"] == 22.0
    assert found["perf/throughput"] == 22 / (2.0 * 2)  # not 22 / 2.0, nor 13 / 2.0


def test_mfu_is_operations_over_what_the_devices_could_do(make_batch, over_ranks):
    books = MetricBook(), MetricBook()
    # rows of 7, 4 and 2 tokens (7 of them response), two layers: 4 * 3 * 2 * (49 + 16 + 4) / 2 = 828
    forward = 2 * (100 * 13 + 10 * 7) + 828
    for book in books:
        mfu_metric(make_batch([5, 2, 0]), "actor", 2.0, book, SHAPE, peak=10_000.0)
        mfu_metric(make_batch([5, 2, 0]), "actor_infer", 2.0, book, SHAPE, peak=10_000.0)
    assert over_ranks(*books) == pytest.approx(
        {"perf/mfu/actor": 3 * forward / 20_000, "perf/mfu/actor_infer": forward / 20_000}
    )


def test_mfu_counts_ppo_epochs(make_batch):
    book, twice = MetricBook(), MetricBook()
    mfu_metric(make_batch([5]), "actor", 1.0, book, SHAPE, peak=1e4)
    mfu_metric(make_batch([5]), "actor", 1.0, twice, SHAPE, peak=1e4, passes=2.0)
    assert twice.compute()["perf/mfu/actor"] == pytest.approx(2 * book.compute()["perf/mfu/actor"])


@pytest.mark.parametrize(("shape", "peak"), [(None, 1e12), (SHAPE, None)])
def test_mfu_is_absent_where_something_is_not_known(make_batch, shape, peak):
    book = MetricBook()
    mfu_metric(make_batch([5]), "actor", 1.0, book, shape, peak)
    assert book.compute() == {}


def test_pitfall_59_lora_does_not_compute_the_gradient_of_base_weights(make_batch):
    full, lora = MetricBook(), MetricBook()
    mfu_metric(make_batch([5]), "actor", 1.0, full, SHAPE, peak=1.0)
    mfu_metric(make_batch([5]), "actor", 1.0, lora, replace(SHAPE, adapter_weights=1), peak=1.0)
    gap = full.compute()["perf/mfu/actor"] - lora.compute()["perf/mfu/actor"]
    assert gap == 2 * (100 * 7 + 10 * 5) - 3 * 2 * 7  # less what the adapter's own weight costs


def test_mfu_counts_backward_passes_that_were_run(make_batch):
    """Half of the rows trained on: a forward pass of all, a backward pass of half of them."""
    books = MetricBook(), MetricBook()
    for book, trained in zip(books, (1.0, 0.5), strict=True):
        mfu_metric(make_batch([5]), "actor", 1.0, book, SHAPE, peak=1e4, trained=trained)
    whole, half = (book.compute()["perf/mfu/actor"] for book in books)
    assert half == pytest.approx(whole * 2 / 3)

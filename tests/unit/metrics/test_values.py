import json
import math
import os
import socket
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ppo_lightning.metrics.values import (
    NONFINITE_KEY,
    LossValue,
    MaxValue,
    MeanValue,
    MetricBook,
    MinValue,
    SumValue,
    reduce_metrics,
)


def book_of(**calls):
    book = MetricBook()
    for key, (method, *args) in calls.items():
        getattr(book, method)(key, *args)
    return book


def test_mean_is_over_the_data_not_over_updates():
    value = MeanValue()
    value.update(6.0, 3)  # 1 + 2 + 3
    value.update(10.0, 1)
    assert value.compute() == 4.0  # 16 / 4, not (2 + 10) / 2


def test_mean_of_python_numbers_keeps_float64():
    value = MeanValue()
    value.update(0.1)
    assert value.compute() == 0.1


def test_masked_mean_never_reads_masked_entries():
    book = MetricBook()
    book.masked_mean(
        "x", torch.tensor([[1.0, 2.0, math.nan], [5.0, math.inf, 7.0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    )
    assert book.compute() == {"x": 8.0 / 3.0}


def test_sum_min_max_over_tensors_and_updates():
    book = MetricBook()
    for values in (torch.tensor([3.0, -1.0]), torch.tensor([4.0]), torch.tensor([])):
        book.sum("s", values)
        book.min("lo", values)
        book.max("hi", values)
    assert book.compute() == {"s": 6.0, "lo": -1.0, "hi": 4.0}


def test_spread_writes_mean_max_min_of_kept_entries():
    book = MetricBook()
    book.spread("k", torch.tensor([1.0, 2.0, 9.0, -9.0]), torch.tensor([True, True, True, False]))
    assert book.compute() == {"k/mean": 4.0, "k/max": 9.0, "k/min": 1.0}


def test_loss_is_the_same_for_any_micro_batches_and_ranks(over_ranks):
    # global loss 0.5 = sum over 4 tokens / 4; each rank scales by dp_size = 2
    token_losses = [[0.2, 0.8], [0.9, 0.1]]
    dp_size, tokens = 2, 4
    books = []
    for mine in token_losses:
        book = MetricBook()
        for loss in mine:  # two micro-batches of one token each
            book.loss("actor/pg_loss", loss * dp_size / tokens)
        books.append(book)
    assert over_ranks(*books)["actor/pg_loss"] == pytest.approx(0.5, abs=1e-15)
    whole = book_of(**{"actor/pg_loss": ("loss", sum(map(sum, token_losses)) / tokens)})
    assert whole.compute()["actor/pg_loss"] == pytest.approx(0.5, abs=1e-15)


def test_loss_of_a_rank_without_micro_batches_still_divides_by_all_ranks(over_ranks):
    # dp_size 2, all tokens on rank 0: its scaled loss is 2 x 0.5, rank 1 adds nothing
    assert over_ranks(book_of(loss=("loss", 1.0)), MetricBook())["loss"] == 0.5


def test_loss_is_a_mean_over_mini_batches_joined_into_a_step(over_ranks):
    step = MetricBook()
    for losses in ([0.1, 0.2], [0.5]):
        mini = MetricBook()
        for loss in losses:
            mini.loss("loss", loss)
        step.update(mini)
    assert step.compute()["loss"] == pytest.approx((0.3 + 0.5) / 2)
    assert over_ranks(step, step)["loss"] == pytest.approx((0.3 + 0.5) / 2)


def test_update_joins_books():
    book = book_of(a=("mean", 3.0, 2), m=("max", 1.0))
    book.update(book_of(a=("mean", 1.0, 2), m=("max", 5.0), b=("sum", 7.0)))
    assert book.compute() == {"a": 1.0, "m": 5.0, "b": 7.0}
    assert "b" in book
    book.reset()
    assert book.compute() == {}


def test_keys_may_exist_on_one_rank_only(over_ranks):
    left = book_of(a=("mean", 3.0, 3), only=("min", 2.0))
    right = book_of(a=("mean", 9.0, 1), other=("max", -4.0), count=("sum", 1))
    assert over_ranks(left, right, MetricBook()) == {"a": 3.0, "only": 2.0, "other": -4.0, "count": 1.0}


def test_compute_gathers_exactly_once():
    calls = []
    book = book_of(**{f"k{i}": ("mean", 1.0, 1) for i in range(40)})
    book.compute(lambda mine: calls.append(mine) or [mine])
    assert len(calls) == 1
    assert calls[0][1].dtype == np.float64


def test_second_reduction_under_one_key_is_refused(over_ranks):
    book = book_of(a=("mean", 1.0, 1))
    with pytest.raises(AssertionError, match="metric a must have one reduction: it is MEAN, not MAX"):
        book.max("a", 1.0)
    with pytest.raises(AssertionError, match="metric a must have one reduction"):
        over_ranks(book, book_of(a=("sum", 1.0)))


def test_numbers_go_through_without_gradient():
    book = MetricBook()
    book.mean("a", torch.tensor(2.0, requires_grad=True), torch.tensor(4))
    assert book.compute() == {"a": 0.5}


def test_class_alone_updates_computes_and_resets():
    value = MinValue()
    value.update(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1, 0, 1]))
    assert value.compute() == 2.0
    value.update(0.5)
    assert value.compute() == 0.5
    value.reset()
    assert value.packed.tolist() == [-math.inf, 0.0, 0.0]


def test_pitfall_07_means_carry_counts_over_ranks_and_micro_batches(over_ranks):
    kl = torch.tensor([1.0] + [0.0] * 9)
    left, right = MetricBook(), MetricBook()
    left.masked_mean("actor/ppo_kl", kl[:1], torch.ones(1))
    right.masked_mean("actor/ppo_kl", kl[1:4], torch.ones(3))
    right.masked_mean("actor/ppo_kl", kl[4:], torch.ones(6))
    assert over_ranks(left, right)["actor/ppo_kl"] == 0.1
    naive = np.mean([kl[:1].mean(), np.mean([kl[1:4].mean(), kl[4:].mean()])])  # mean of means of means
    assert naive == 0.5


def test_pitfall_08_every_micro_batch_is_in_the_number():
    book = MetricBook()
    for clipped, tokens in ((1, 2), (0, 2), (3, 4)):
        book.mean("actor/pg_clipfrac", clipped, tokens)
    assert book.compute()["actor/pg_clipfrac"] == 0.5
    assert book.compute()["actor/pg_clipfrac"] != 3 / 4  # the last one alone


def test_pitfall_10_fractional_batch_shares_are_not_floored(over_ranks):
    # three rows on rank 0, four on rank 1: the mean weighs 3 and 4, an integer mean batch size would weigh 3 and 3
    books = book_of(x=("mean", 3 * 1.0, 3)), book_of(x=("mean", 4 * 8.0, 4))
    assert over_ranks(*books)["x"] == 5.0
    assert (3 * 1.0 + 3 * 8.0) / (2 * ((3 + 4) // 2)) == 4.5


def test_pitfall_11_sum_counts_past_two_to_the_24():
    value = SumValue()
    value.update(2**24)
    value.update(1)
    assert value.compute() == 2**24 + 1
    assert torch.tensor(2.0**24) + 1 == 2**24  # float32 stops


@pytest.mark.parametrize("kind", [MeanValue, SumValue, MinValue, MaxValue, LossValue])
@pytest.mark.parametrize(
    "cast", [lambda m: m.to(torch.bfloat16), lambda m: m.bfloat16(), lambda m: m.half(), lambda m: m.float()]
)
def test_pitfall_11_states_survive_a_cast_of_the_module(kind, cast):
    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.metric = kind()

    holder = Holder()
    holder.metric.update(257.0)
    cast(holder)
    assert holder.metric.packed.dtype == torch.float64
    assert holder.metric.compute() == 257.0
    holder.metric.reset()
    assert holder.metric.packed.dtype == torch.float64
    holder.metric.update(257.0)
    assert holder.metric.compute() == 257.0
    assert float(torch.tensor(257.0).to(torch.bfloat16)) == 256.0


def test_pitfall_11_torchmetrics_states_do_not_survive_the_cast():
    from torchmetrics import SumMetric

    stock = SumMetric()
    stock.update(257.0)
    stock.to(torch.bfloat16)
    assert float(stock.compute()) == 256.0


@pytest.mark.parametrize("kind", [MeanValue, SumValue, MinValue, MaxValue, LossValue])
@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_pitfall_11_never_updated_is_absent(kind):
    assert kind().compute() is None
    book = MetricBook()
    book.add("k", kind, kind.initial)
    assert book.compute() == {}


def test_pitfall_11_mean_over_nothing_is_absent():
    book = MetricBook()
    book.masked_mean("k", torch.tensor([math.nan]), torch.tensor([0]))
    book.spread("s", torch.empty(0))
    book.mean("m", 0.0, 0)
    assert book.compute() == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("method", ["mean", "sum", "min", "max", "loss"])
def test_pitfall_11_nonfinite_is_kept_and_counted(method, bad):
    book = MetricBook()
    for value in (1.0, bad, 2.0):
        getattr(book, method)("k", value)
    found = book.compute()
    if method in ("min", "max") and not math.isnan(bad) and (bad < 0) == (method == "max"):
        assert found["k"] == (2.0 if method == "max" else 1.0)  # an infinity on the far side is not the answer
    else:
        assert found["k"] is None
    assert found[NONFINITE_KEY] == 1.0
    json.dumps(found, allow_nan=False)


def test_pitfall_11_nonfinite_elements_are_counted_one_by_one_over_ranks(over_ranks):
    book = MetricBook()
    values = torch.tensor([math.nan, math.nan, 1.0, math.nan])
    book.masked_mean("k", values, torch.tensor([1, 1, 1, 0]))
    assert over_ranks(book, book_of(k=("mean", 1.0, 1))) == {"k": None, NONFINITE_KEY: 2.0}


def test_pitfall_12_reduction_is_declared_not_read_off_the_name():
    book = MetricBook()
    for score in (0.0, 1.0):
        book.mean("reward/minerva_acc", score)
    assert book.compute()["reward/minerva_acc"] == 0.5
    assert reduce_metrics({"reward/minerva_acc": [0.0, 1.0]})["reward/minerva_acc"] == 0.0  # the name says "min"


def test_reduce_metrics_tries_max_then_min_then_mean():
    assert reduce_metrics({"a/max": [1, 3], "min_b": [2, 1], "maxmin": [0, 5], "c": [1.0, 2.0]}) == {
        "a/max": 3.0,
        "min_b": 1.0,
        "maxmin": 5.0,
        "c": 1.5,
    }


def _gather(mine):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def _rank_main(rank, port, folder):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    book = MetricBook()
    values, mask = torch.arange(10.0), torch.ones(10)
    mine = slice(0, 3) if rank == 0 else slice(3, 10)
    book.masked_mean("mean", values[mine], mask[mine])
    book.max("max", values[mine])
    book.min("min", values[mine])
    book.sum("sum", values[mine])
    book.loss("loss", 1.0 if rank == 0 else 2.0)
    if rank == 1:
        book.mean("only_rank_1", 4.0, 2)
        book.max("nan", math.nan)
    found = book.compute(_gather)
    standalone = MeanValue()  # the class alone syncs through torchmetrics' own path
    standalone.update(float(rank), 1)
    found["standalone"] = standalone.compute()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def test_two_processes_equal_one():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_rank_main, args=(port, folder), nprocs=2, start_method="fork")
        left, right = (json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2))
    assert left == right
    assert left == {
        "mean": 4.5,
        "max": 9.0,
        "min": 0.0,
        "sum": 45.0,
        "loss": 1.5,
        "only_rank_1": 2.0,
        "nan": None,
        NONFINITE_KEY: 1.0,
        "standalone": 0.5,
    }

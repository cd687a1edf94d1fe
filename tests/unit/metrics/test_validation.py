import math
import time
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from ppo_lightning.errors import DataError
from ppo_lightning.metrics.bootstrap import Bootstrap, subset_sizes
from ppo_lightning.metrics.validation import pass_at_k, validation_metrics
from ppo_lightning.metrics.votes import normalise, vote_codes


def test_one_sample_gives_the_mean_only():
    found = validation_metrics(["s"] * 3, ["a", "b", "c"], {"reward": [1.0, 0.0, 0.5], "acc": [1.0, 0.0, 0.0]})
    assert found["val-core/s/acc/mean@1"] == pytest.approx(1 / 3)
    assert found["val-aux/s/reward/mean@1"] == 0.5
    assert found["val-aux/s/num_prompts"] == 3.0
    assert found["val-aux/s/acc/ci95@1"] == pytest.approx(1.959963984540054 * math.sqrt(1 / 3) / math.sqrt(3))
    assert not [key for key in found if "std@" in key or "best@" in key or "pass@" in key]


def test_one_prompt_has_no_interval():
    assert "val-aux/s/reward/ci95@1" not in validation_metrics(["s"], ["a"], {"reward": [1.0]})


def test_deviation_is_that_of_the_population():
    found = validation_metrics(["s"] * 2, ["a"] * 2, {"reward": [0.0, 1.0]})
    assert found["val-aux/s/reward/std@2"] == 0.5  # ddof 0; ddof 1 would be 0.707


def test_core_is_acc_else_reward_and_only_at_the_largest_size():
    columns = {"reward": [0.0, 1.0, 1.0, 1.0], "pred": ["3", "4", "4", "4"]}
    found = validation_metrics(["s"] * 4, ["a"] * 4, columns)
    assert {key for key in found if key.startswith("val-core/")} == {
        "val-core/s/reward/mean@4",
        "val-core/s/reward/best@4/mean",
        "val-core/s/reward/best@4/std",
        "val-core/s/reward/maj@4/mean",
        "val-core/s/reward/maj@4/std",
    }
    assert "val-aux/s/reward/best@2/mean" in found
    assert "val-aux/s/reward/worst@4/mean" in found
    with_acc = validation_metrics(["s"] * 4, ["a"] * 4, columns | {"acc": [0, 1, 1, 1]})
    assert "val-core/s/acc/mean@4" in with_acc
    assert "val-aux/s/reward/mean@4" in with_acc


def test_groups_are_by_source_and_uid_in_any_order():
    found = validation_metrics(["s", "t", "s", "t"], ["a", "a", "b", "a"], {"reward": [1.0, 0.0, 0.0, 1.0]})
    assert found["val-core/s/reward/mean@1"] == 0.5  # two prompts of one sample
    assert found["val-core/t/reward/mean@2"] == 0.5  # one prompt of two
    assert (found["val-aux/s/num_prompts"], found["val-aux/t/num_prompts"]) == (2.0, 1.0)
    assert (found["val-aux/s/num_samples"], found["val-aux/t/num_samples"]) == (2.0, 2.0)


def slow_bootstrap(values, preds, k):
    """Plain loops over draws, as the definition reads."""
    draws = np.random.RandomState(42).choice(len(values), size=(1000, k), replace=True)
    best, worst, major = [], [], []
    for draw in draws:
        best.append(max(values[i] for i in draw))
        worst.append(min(values[i] for i in draw))
        votes = Counter(preds[i] for i in draw)
        winner = next(preds[i] for i in draw if votes[preds[i]] == max(votes.values()))
        major.append(next(values[i] for i in draw if preds[i] == winner))
    return {name: (np.mean(x), np.std(x)) for name, x in (("best", best), ("worst", worst), ("maj", major))}


@pytest.mark.parametrize("samples", [2, 3, 5, 8])
def test_bootstrap_equals_plain_loops(samples):
    rng = np.random.RandomState(samples)
    values = rng.randn(3, samples)
    preds = [[str(p) for p in row] for row in rng.randint(0, 3, (3, samples))]
    found = validation_metrics(
        ["s"] * 3 * samples,
        [uid for uid in "abc" for _ in range(samples)],
        {"acc": values.ravel().tolist(), "pred": [p for row in preds for p in row]},
    )
    found = {key.split("/", 3)[3]: value for key, value in found.items() if key.count("/") > 2}
    for k in subset_sizes(samples):
        slow = [slow_bootstrap(values[row], preds[row], k) for row in range(3)]
        for name in ("best", "worst", "maj"):
            for place, moment in enumerate(("mean", "std")):
                expected = np.mean([one[name][place] for one in slow])
                assert found[f"{name}@{k}/{moment}"] == pytest.approx(expected, abs=1e-12)


def test_bootstrap_leaves_the_global_generator_alone():
    np.random.seed(7)
    expected = np.random.RandomState(7).rand()
    validation_metrics(["s"] * 4, ["a"] * 4, {"reward": [0.0, 1.0, 2.0, 3.0]})
    assert np.random.rand() == expected


def test_chunks_of_prompts_change_nothing():
    rng = np.random.RandomState(0)
    numbers, codes = rng.rand(150, 4), rng.randint(0, 3, (150, 4)).astype(np.uint8)
    together, alone = Bootstrap(42), Bootstrap(42)
    rows = [alone.majority(numbers[i : i + 1], codes[i : i + 1], 4)[0][0] for i in range(150)]
    assert together.majority(numbers, codes, 4)[0].tolist() == rows
    rows = [alone.extremes(numbers[i : i + 1], 2)["worst"][1][0] for i in range(150)]
    assert together.extremes(numbers, 2)["worst"][1].tolist() == rows


@pytest.mark.parametrize(("samples", "right"), [(4, 1), (4, 0), (4, 4), (6, 2), (7, 5)])
def test_pass_at_k_counts_subsets(samples, right):
    marks = [1] * right + [0] * (samples - right)
    for k in range(1, samples + 1):
        subsets = list(combinations(marks, k))
        expected = sum(any(subset) for subset in subsets) / len(subsets)
        assert pass_at_k(np.array([float(right)]), samples, k)[0] == pytest.approx(expected)


def test_one_right_of_four_is_solved_in_four_whatever_the_bootstrap_says():
    found = validation_metrics(["s"] * 4, ["a"] * 4, {"acc": [1, 0, 0, 0]})
    assert found["val-aux/s/acc/pass@4"] == 1.0
    assert found["val-aux/s/acc/pass@2"] == 0.5
    assert found["val-core/s/acc/best@4/mean"] == pytest.approx(0.687)


def test_pass_at_k_needs_right_or_wrong():
    found = validation_metrics(["s"] * 2, ["a"] * 2, {"acc": [0.5, 1.0]})
    assert not [key for key in found if "pass@" in key]


def test_votes_as_written_differ_from_normalised_votes():
    # as written: three answers of one vote each but "7" with two; normalised, 5 has three
    columns = {"acc": [1, 1, 1, 0, 0], "pred": ["5", "5.0", "$5", "7", "7"]}
    found = validation_metrics(["s"] * 5, ["a"] * 5, columns)
    assert found["val-core/s/acc/maj@5/mean"] < found["val-aux/s/acc/maj_norm@5/mean"]


@pytest.mark.parametrize(
    ("one", "other", "agree"),
    [
        ("5", " 5.00 ", True),
        ("5.", "$5", True),
        ("**5**", "5%", True),
        ("1,234", "1234", True),
        (r"\text{Yes}", "yes", True),
        (r"\boxed{12}", "12", True),
        ("x  + 1", "X + 1", True),
        ("5", "-5", False),
        ("1,23", "123", False),
        ("nan", "NaN", True),
        ("inf", "1e999999", False),
        ("A", "B", False),
    ],
)
def test_normalised_answers(one, other, agree):
    assert (normalise(one) == normalise(other)) is agree
    assert (vote_codes([[one, other]], normalise)[0].tolist() == [0, 0]) is agree


def test_no_votes_where_an_answer_is_missing():
    columns = {"acc": [1, 0, 1, 0], "pred": ["1", "2", None, "2"]}
    found = validation_metrics(["s"] * 4, ["a", "a", "b", "b"], columns)
    alone = validation_metrics(["s"] * 2, ["a"] * 2, {name: column[:2] for name, column in columns.items()})
    assert found["val-core/s/acc/maj@2/mean"] == alone["val-core/s/acc/maj@2/mean"]  # prompt b has none


def test_a_missing_value_is_absent_not_zero():
    found = validation_metrics(["s"] * 3, ["a", "b", "c"], {"reward": [0.0, 0.0, 0.0], "format": [1.0, None, None]})
    assert found["val-aux/s/format/mean@1"] == 1.0


def test_prompts_with_different_numbers_of_samples_each_have_their_keys():
    found = validation_metrics(["s"] * 5, ["a", "a", "b", "b", "b"], {"reward": [1.0, 1.0, 0.0, 0.0, 3.0]})
    assert found["val-aux/s/reward/mean@2"] == 1.0
    assert found["val-core/s/reward/mean@3"] == 1.0
    assert found["val-aux/s/reward/best@2/mean"] == pytest.approx((1.0 + 3.0 * _share_with(2, 3, 2)) / 2)


def _share_with(index, samples, k):
    draws = np.random.RandomState(42).choice(samples, size=(1000, k), replace=True)
    return float((draws == index).any(1).mean())


def test_text_is_no_metric_and_a_mixture_is_refused():
    assert not [key for key in validation_metrics(["s"], ["a"], {"reward": [1], "pred": ["4"]}) if "pred" in key]
    with pytest.raises(DataError, match="'odd' must hold numbers or text - got both"):
        validation_metrics(["s"] * 2, ["a", "b"], {"reward": [1, 1], "odd": [1.0, "x"]})


def test_unequal_lengths_are_refused():
    with pytest.raises(DataError, match=r"one value per sample - got lengths .*'acc': 1"):
        validation_metrics(["s"] * 2, ["a", "b"], {"acc": [1]})


def test_pitfall_56_every_sample_counts_once_and_the_number_is_reported():
    ids = [(0, 0), (1, 0), (2, 0)]
    columns = {"acc": [1, 0, 0]}
    found = validation_metrics(["s"] * 3, ["a", "b", "c"], columns, sample_ids=ids)
    assert found["val-aux/s/num_samples"] == 3.0
    with pytest.raises(DataError, match=r"counted once - \(0, 0\) came more often"):
        # two ranks, three rows: a padding sampler gives row 0 to both
        validation_metrics(["s"] * 4, ["a", "b", "c", "a"], {"acc": [1, 0, 0, 1]}, sample_ids=[*ids, ids[0]])
    unchecked = validation_metrics(["s"] * 4, ["a", "b", "c", "d"], {"acc": [1, 0, 0, 1]})
    assert unchecked["val-core/s/acc/mean@1"] == 0.5  # instead of 1/3, were nobody to look


def test_a_whole_test_set_takes_seconds_not_minutes():
    rng = np.random.RandomState(0)
    prompts, samples = 200, 8
    right = (rng.rand(prompts * samples) < 0.4).astype(float).tolist()
    columns = {"acc": right, "pred": [str(p) for p in rng.randint(0, 5, prompts * samples)]}
    start = time.perf_counter()
    validation_metrics(["s"] * prompts * samples, np.repeat(np.arange(prompts), samples).tolist(), columns)
    assert time.perf_counter() - start < 5.0

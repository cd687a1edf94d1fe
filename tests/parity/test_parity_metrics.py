"""Metrics of batches, timers, validations and model FLOPs against verl's numbers on the same inputs."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ppo_lightning.metrics.data import data_metrics
from ppo_lightning.metrics.flops import dense_shape, device_peak, training_flops
from ppo_lightning.metrics.mismatch import mismatch_metrics
from ppo_lightning.metrics.registry import lookup
from ppo_lightning.metrics.throughput import mfu_metric, throughput_metrics
from ppo_lightning.metrics.timing import timing_metrics
from ppo_lightning.metrics.validation import validation_metrics
from ppo_lightning.metrics.values import MetricBook, reduce_metrics
from ppo_lightning.metrics.variance import variance_metrics
from ppo_lightning.protocol.data_proto import DataProto

sys.path.insert(0, str(Path(__file__).parent))
import inputs_metrics as inputs

GOLDEN = json.loads((Path(__file__).parent / "golden" / "metrics.json").read_text())
TOLERANCE = 1e-6


def proto(arrays):
    return DataProto.from_dict({name: torch.tensor(array) for name, array in arrays.items()})


def write(function, batch, *args):
    book = MetricBook()
    function(batch, book, *args)
    return book.compute()


def gaps(ours, golden, relative=False):
    """Return the largest difference; verl's NaN must be absent here, and nothing else may be missing or be more."""
    there = {key: value for key, value in golden.items() if value != "nan"}
    assert ours.keys() == there.keys()
    return max((abs(ours[k] - v) / (max(1.0, abs(v)) if relative else 1.0) for k, v in there.items()), default=0.0)


def compare_steps(part, ours_of, relative=False):
    def compare():
        worst = [gaps(ours_of(seed), GOLDEN["steps"][seed][part], relative) for seed in range(inputs.BATCHES)]
        return len(worst), max(worst)

    return compare


def data(seed):
    return write(data_metrics, proto(inputs.batch(seed)), seed % 3 != 0)


def timing(seed):
    return time_of(inputs.batch(seed), inputs.seconds(seed)) | absent_timing(seed)


def time_of(arrays, seconds):
    book = MetricBook()
    timing_metrics(proto(arrays), seconds, book)
    return book.compute()


def absent_timing(seed):
    """Where a batch has no response token verl writes 0.0: a difference of its own (05)."""
    golden = GOLDEN["steps"][seed]["timing"]
    none = not inputs.batch(seed)["response_mask"].any()
    return {"timing_per_token_ms/gen": 0.0} if none and "timing_per_token_ms/gen" in golden else {}


def throughput(seed):
    book = MetricBook()
    throughput_metrics(proto(inputs.batch(seed)), inputs.seconds(seed)["step"], book, devices=2)
    return book.compute()


def mismatch(seed):
    return write(mismatch_metrics, proto(inputs.batch(seed)))


def variance(seed, empty=False, **changed):
    arrays, norm = inputs.variance_batch(seed, empty)
    return write(variance_metrics, proto(arrays | changed), norm)


def compare_variance():
    worst = []
    for seed in range(inputs.VARIANCES):
        ours, golden = variance(seed), dict(GOLDEN["variance"][seed])
        if len(inputs.variance_batch(seed)[0]["response_mask"]) == 1:
            assert golden.pop("variance_proxy/proxy3_pure_noise") == 0.0  # not defined for one row: absent here
        worst.append(gaps(ours, golden, relative=True))
    return len(worst), max(worst)


def compare_validation():
    worst = []
    for seed in range(inputs.VALIDATIONS):
        ours, golden = validation_metrics(*inputs.validation(seed)), GOLDEN["validation"][seed]
        assert golden.keys() <= ours.keys()
        assert all(key.startswith("val-aux/") for key in ours.keys() - golden.keys())
        worst.append(max(abs(ours[key] - value) for key, value in golden.items()))
    return len(worst), max(worst)


def flops(seed):
    """Return (our TFLOPs with the input embedding as a matrix, ours without, verl's)."""
    family, values, lengths = inputs.flops_case(seed)
    shape = dense_shape(SimpleNamespace(model_type=family, **values))
    ours = training_flops(shape, lengths) / 1e12
    return ours + 6 * values["vocab_size"] * values["hidden_size"] * sum(lengths) / 1e12, ours, GOLDEN["flops"][seed]


def compare_flops():
    pairs = [flops(seed) for seed in range(inputs.FLOPS)]
    return len(pairs), max(abs(ours - golden) / golden for ours, _, golden in pairs)


def compare_reduced():
    return len(inputs.REDUCED), gaps(reduce_metrics(inputs.REDUCED), GOLDEN["reduced"])


UTILS = "trainer.ppo.metric_utils"
COMPARISONS = [
    ("metrics.data.data_metrics", f"{UTILS}.compute_data_metrics", compare_steps("data", data, relative=True)),
    ("metrics.timing.timing_metrics", f"{UTILS}.compute_timing_metrics", compare_steps("timing", timing, True)),
    (
        "metrics.throughput.throughput_metrics",
        f"{UTILS}.compute_throughout_metrics",
        compare_steps("throughput", throughput, True),
    ),
    (
        "metrics.mismatch.mismatch_metrics",
        "utils.debug.metrics.calculate_debug_metrics",
        compare_steps("mismatch", mismatch),
    ),
    ("metrics.variance.variance_metrics", f"{UTILS}.compute_variance_proxy_metrics", compare_variance),
    (
        "metrics.validation.validation_metrics",
        "trainer.ppo.ray_trainer.RayPPOTrainer._val_metrics_update",
        compare_validation,
    ),
    ("metrics.flops.training_flops", "utils.flops_counter (llama, qwen2, qwen3, mistral)", compare_flops),
    ("metrics.values.reduce_metrics", "utils.metric.reduce_metrics", compare_reduced),
]

DIFFERENCES = [
    (
        "metrics.data.data_metrics",
        "NaN for whatever nothing was counted for (all rows aborted)",
        "the key is absent",
        "NaN breaks JSON, plots and every mean over steps; absence says the same",
    ),
    (
        "metrics.mismatch.mismatch_metrics",
        "deviation and correlation of a single token are NaN",
        "absent",
        "they are not defined",
    ),
    (
        "metrics.variance.variance_metrics",
        "rows without a token count as rows with advantage and score norm 0",
        "they count nowhere",
        "rows without tokens are in neither numerator nor denominator",
    ),
    (
        "metrics.variance.variance_metrics",
        "a token with importance weight 0 loses its score norm in the total power (0 / 1e-10)",
        "the norm of the unweighted token is used, as for every other weight",
        "the proxy is weight**2 x advantage**2 x W with the original W",
    ),
    (
        "metrics.timing.timing_metrics",
        "0.0 ms per token for a batch without tokens",
        "absent",
        "the stage took time: 0 reads as infinitely fast",
    ),
    (
        "metrics.variance.variance_metrics",
        "signal and noise are 0.0 without a gradient norm",
        "absent",
        "0 is a value that a gradient can have",
    ),
    (
        "metrics.flops.training_flops",
        "looking up the input embedding costs 6 V H operations per token",
        "none",
        "a look-up multiplies nothing; small models with large vocabularies seem twice as fast",
    ),
    (
        "metrics.flops.dense_shape",
        "a critic is charged for a vocabulary head",
        "for one column",
        "that is what it has",
    ),
    (
        "metrics.flops.device_peak",
        "peak of an unknown device is infinite, so MFU is 0; an H100 PCIe has the peak of the SXM board",
        "MFU is absent; 756e12",
        "an unknown is no number; the data sheet has both boards",
    ),
    (
        "metrics.validation.validation_metrics",
        "seeds numpy's global generator with 42",
        "draws from a generator of its own",
        "validation must not change what training draws",
    ),
]


@pytest.mark.parametrize(("ours", "verl", "compare"), COMPARISONS, ids=[entry[0] for entry in COMPARISONS])
def test_equals_verl(ours, verl, compare):
    cases, difference = compare()
    assert cases > 0
    assert difference <= TOLERANCE


def test_golden_values_belong_to_these_inputs():
    assert GOLDEN["inputs"] == inputs.fingerprint()


def test_every_key_of_verl_is_declared():
    keys = {key for step in GOLDEN["steps"] for part in step.values() for key in part}
    keys |= {key for part in (*GOLDEN["variance"], *GOLDEN["validation"]) for key in part}
    assert len(keys) > 150
    for key in keys:
        assert lookup(key).matches(key)


def finite(golden):
    return {key: value for key, value in golden.items() if value not in ("nan", "inf")}


def test_difference_01_nothing_counted_is_absent():
    golden = GOLDEN["differences"]["all_aborted"]
    ours = write(data_metrics, proto(inputs.batch(9)), True)
    assert golden["critic/score/mean"] == "nan"
    assert "critic/score/mean" not in ours
    assert ours == pytest.approx(finite(golden))


def test_difference_02_what_one_token_does_not_define_is_absent():
    arrays, golden = inputs.batch(0, rows=1), GOLDEN["differences"]["one_token"]
    arrays["response_mask"][:] = 0
    arrays["response_mask"][0, 0] = 1
    assert golden["training/rollout_probs_diff_std"] == "nan"
    assert write(mismatch_metrics, proto(arrays)) == pytest.approx(finite(golden), abs=TOLERANCE)


def test_difference_03_rows_without_tokens_count_nowhere():
    golden, ours = GOLDEN["differences"]["variance_empty_rows"], variance(0, empty=True)
    arrays, _ = inputs.variance_batch(0, empty=True)
    rows, given = len(arrays["response_mask"]), int(arrays["response_mask"].any(-1).sum())
    assert 1 < given < rows
    for key in ("expected_a_squared", "expected_w", "proxy2_total_power"):
        key = f"variance_proxy/{key}"
        assert ours[key] == pytest.approx(golden[key] * rows / given, abs=TOLERANCE)


def test_difference_04_a_token_of_weight_zero_keeps_its_norm():
    arrays, _ = inputs.variance_batch(3)
    arrays["rollout_is_weights"][:, 0] = 0.0
    mask = arrays["response_mask"].astype(bool)
    norm = np.where(mask, 1 - 2 * np.exp(arrays["old_log_probs"]) + arrays["sum_pi_squared"], 0.0)
    lost = np.where(arrays["rollout_is_weights"] == 0, 0.0, norm)
    tokens = mask.sum(-1)
    factor = [(np.where(mask, arrays[k], 0).sum(-1) / tokens) ** 2 for k in ("rollout_is_weights", "advantages")]
    golden = GOLDEN["differences"]["variance_zero_weights"]["variance_proxy/proxy2_total_power"]
    assert golden == pytest.approx((factor[0] * factor[1] * lost.sum(-1).clip(0)).mean(), abs=TOLERANCE)
    ours = variance(3, rollout_is_weights=arrays["rollout_is_weights"])["variance_proxy/proxy2_total_power"]
    assert ours == pytest.approx((factor[0] * factor[1] * norm.sum(-1).clip(0)).mean(), abs=TOLERANCE)
    assert abs(ours - golden) > 1e-3


def test_difference_05_no_tokens_no_time_per_token():
    arrays = inputs.batch(9)
    arrays["attention_mask"] *= 0
    assert GOLDEN["differences"]["no_tokens_timing"]["timing_per_token_ms/gen"] == 0.0
    assert time_of(arrays, {"gen": 1.0}) == {"timing_s/gen": 1.0}


def test_difference_06_without_a_gradient_norm_there_is_no_signal():
    golden = GOLDEN["differences"]["variance_without_norm"]
    ours = write(variance_metrics, proto(inputs.variance_batch(0)[0]))
    assert golden["variance_proxy/proxy1_signal_strength"] == golden["variance_proxy/proxy3_pure_noise"] == 0.0
    assert ours.keys() == golden.keys() - {"variance_proxy/proxy1_signal_strength", "variance_proxy/proxy3_pure_noise"}


def test_difference_07_an_embedding_lookup_costs_nothing():
    for seed in range(inputs.FLOPS):
        _, ours, golden = flops(seed)
        _, values, lengths = inputs.flops_case(seed)
        lookups = 6 * values["vocab_size"] * values["hidden_size"] * sum(lengths) / 1e12
        assert golden - ours == pytest.approx(lookups, rel=1e-6)


def test_difference_08_a_critic_has_one_column():
    family, values, lengths = inputs.flops_case(0)
    config = SimpleNamespace(model_type=family, **values)
    actor, critic = (training_flops(dense_shape(config, outputs), lengths) for outputs in (None, 1))
    assert actor - critic == 6 * (values["vocab_size"] - 1) * values["hidden_size"] * sum(lengths)


def test_difference_09_unknown_peaks_are_absent():
    assert GOLDEN["differences"]["unknown_device"] == "inf"
    assert GOLDEN["differences"]["h100_pcie"] == 989e12
    assert device_peak("NVIDIA X9000", "bfloat16") is None
    assert device_peak("NVIDIA H100 PCIe", "bfloat16") == 756e12
    book = MetricBook()
    family, values, _ = inputs.flops_case(0)
    shape = dense_shape(SimpleNamespace(model_type=family, **values))
    mfu_metric(proto(inputs.batch(0)), "actor", 1.0, book, shape, peak=None)
    assert book.compute() == {}


def test_difference_10_validation_leaves_the_global_generator_alone():
    np.random.seed(7)
    validation_metrics(*inputs.validation(1))
    assert np.random.rand() == np.random.RandomState(7).rand()
    assert not math.isclose(GOLDEN["differences"]["random_after_validation"], np.random.RandomState(7).rand())

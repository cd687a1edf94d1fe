import dataclasses
import subprocess
import sys
import time

import pytest
import torch

from ppo_lightning.config.schema import Config
from ppo_lightning.errors import ConfigError
from ppo_lightning.metrics.data import column_metrics, data_metrics
from ppo_lightning.metrics.flops import DenseShape
from ppo_lightning.metrics.listing import explain, listing
from ppo_lightning.metrics.mismatch import mismatch_metrics
from ppo_lightning.metrics.registry import METRICS, lookup
from ppo_lightning.metrics.throughput import mfu_metric, throughput_metrics
from ppo_lightning.metrics.timing import timing_metrics
from ppo_lightning.metrics.validation import validation_metrics
from ppo_lightning.metrics.values import MetricBook
from ppo_lightning.metrics.variance import variance_metrics
from ppo_lightning.protocol.data_proto import DataProto

DEFAULT = Config()


def changed(**sections):
    """Return the default configuration with some options of some sections set."""
    parts = {name: dataclasses.replace(getattr(DEFAULT, name), **values) for name, values in sections.items()}
    return dataclasses.replace(DEFAULT, **parts)


def everything(make_batch):
    """Write whatever this package writes about a batch into one book."""
    batch = make_batch([5, 2, 0, 3], sum_pi_squared=torch.rand(4, 5))
    batch.union(DataProto.from_dict(non_tensors={"acc": [1, 0, 1, 0]}))
    book = MetricBook()
    data_metrics(batch, book, use_critic=True)
    column_metrics(batch, book, ["acc"])
    mismatch_metrics(batch, book)
    variance_metrics(batch, book, 1.0)
    timing_metrics(batch, {"gen": 1.0, "ref": 1.0, "values": 1.0, "adv": 1.0, "update_actor": 1.0, "mine": 2.0}, book)
    throughput_metrics(batch, 1.0, book)
    for name in ("actor", "critic", "actor_infer"):
        mfu_metric(batch, name, 1.0, book, DenseShape(1, 1, 1, (None,)), 1.0)
    return book


def test_every_key_that_is_written_is_declared_with_the_reduction_it_has(make_batch):
    book = everything(make_batch)
    assert len(book.kinds) > 55
    for key, kind in book.kinds.items():
        assert lookup(key).reduction == kind.reduction, key


def test_every_validation_key_is_declared():
    columns = {"reward": [0.0, 1.0, 1.0, 0.0], "acc": [0, 1, 1, 0], "pred": ["a", "b", "b", "c"]}
    found = validation_metrics(["open/gsm8k"] * 4, ["u", "u", "v", "v"], columns)
    for key in found:
        assert lookup(key).matches(key)
    assert lookup("val-core/open/gsm8k/acc/maj@2/mean").key == "val-core/<data_source>/<variable>/maj@<k>/mean"


def test_a_default_run_says_why_kl_is_absent_and_has_a_critic():
    assert lookup("actor/kl_loss").absent_because(DEFAULT) == "actor.use_kl_loss=false: no KL in the loss"
    why = lookup("actor/reward_kl_penalty").absent_because(DEFAULT)
    assert why == "algorithm.use_kl_in_reward=false: no KL in the reward"
    assert lookup("critic/vf_loss").absent_because(DEFAULT) is None


@pytest.mark.parametrize(
    ("key", "sections"),
    [
        ("actor/kl_loss", {"actor": {"use_kl_loss": True}}),
        ("timing_s/ref", {"actor": {"use_kl_loss": True}}),
        ("actor/reward_kl_penalty", {"algorithm": {"use_kl_in_reward": True}}),
        ("actor/entropy_loss", {"actor": {"entropy_coeff": 0.01}}),
        ("rollout_corr/rollout_is_mean", {"rollout_correction": {"rollout_is": "token"}}),
        (
            "rollout_corr/rollout_is_oob_ratio",
            {"rollout_correction": {"rollout_is": "token", "rollout_is_threshold": "0.5_2.0"}},
        ),
        ("rollout_corr/rollout_rs_token_k1_mean", {"rollout_correction": {"rollout_rs": "token_k1"}}),
        ("training/num_gen_batches", {"algorithm": {"filter_groups": True}}),
        ("global_seqlen/mean", {"trainer": {"devices": 2}}),
        ("variance_proxy/expected_w", {"algorithm": {"adv_estimator": "optimal_token_baseline"}}),
        ("perf/mfu/actor", {"model": {"dtype": "bfloat16"}}),
        ("val-core/s/acc/best@4/mean", {"validation": {"samples_per_prompt": 4}}),
        ("timing_s/old_log_prob", {"update": {"ppo_epochs": 2}}),
    ],
)
def test_the_switch_that_a_reason_names_turns_the_metric_on(key, sections):
    spec = lookup(key)
    why = spec.absent_because(DEFAULT)
    assert why is not None
    assert spec.absent_because(changed(**sections)) is None


@pytest.mark.parametrize(
    ("key", "sections", "words"),
    [
        ("critic/values/mean", {"algorithm": {"adv_estimator": "grpo"}}, "adv_estimator=grpo needs no critic"),
        ("actor/pg_clipfrac", {"actor": {"policy_loss": "reinforce"}}, "clips no ratio"),
        ("actor/pg_clipfrac_lower", {"actor": {"policy_loss": "clip_cov"}}, "no dual clip"),
        ("actor/ppo_kl", {"actor": {"policy_loss": "reinforce"}}, "reinforce"),
        ("actor/entropy", {"rollout_correction": {"bypass_mode": True}, "update": {"ppo_epochs": 2}}, "bypass_mode"),
        ("val-core/s/acc/mean@1", {"data": {"val": None}}, "data.val=null"),
        ("perf/mfu/actor", {"trainer": {"accelerator": "cpu"}}, "accelerator=cpu"),
        ("timing_s/save_checkpoint", {"checkpoint": {"every_steps": 0}}, "checkpoint.every_steps=0"),
        ("global_seqlen/min", {"trainer": {"devices": 2, "balance_batch": False}}, "balance_batch=false"),
    ],
)
def test_what_is_switched_off_names_its_switch(key, sections, words):
    assert words in lookup(key).absent_because(changed(**sections))


def test_families_match_their_keys_and_nothing_else():
    assert lookup("reward/timeout").key == "reward/timeout"
    assert lookup("reward/format/mean").key == "reward/<column>/mean"
    assert lookup("timing_s/my_timer").key == "timing_s/<timer>"
    assert lookup("rollout_corr/rollout_rs_seq_masked_fraction").key == "rollout_corr/rollout_rs_seq_masked_fraction"
    assert lookup("rollout_corr/rollout_rs_token_k1_seq_std").key == "rollout_corr/rollout_rs_<rule>_seq_std"
    with pytest.raises(ConfigError):
        lookup("val-core/s/acc/mean@many")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("actor/pg_los", "actor/pg_loss"),
        ("critic/score/avg", "critic/score/"),
        ("responce_length/mean", "response_length/mean"),
        ("metrics/clip_ratio", "clip_ratio"),
    ],
)
def test_an_unknown_key_names_the_nearest(wrong, right):
    with pytest.raises(ConfigError, match=f"got '{wrong}' - did you mean .*{right}"):
        lookup(wrong)


def test_pitfall_12_reductions_are_declared():
    plain = {"MEAN", "SUM", "MIN", "MAX", "LOSS"}
    moments = {"STD", "PEARSON", "EXPLAINED_VARIANCE", "PURE_NOISE"}
    assert {spec.reduction for spec in METRICS.values()} <= plain | moments
    for spec in METRICS.values():
        assert spec.numerator
        assert spec.denominator
        assert spec.unit
        assert (spec.reduction in ("MIN", "MAX")) <= (spec.denominator == "-"), spec.key


def test_listing_names_every_metric_once_under_logged_or_its_switch():
    text = listing(DEFAULT)
    logged, absent = text.split("metrics are not, because of:")
    for key, spec in METRICS.items():
        home, other = (logged, absent) if spec.absent_because(DEFAULT) is None else (absent, logged)
        assert f" {key}  " in home or f" {key}\n" in f"{home}\n"
        assert f" {key} " not in other
    assert "actor.use_kl_loss=false" in absent


def test_explain_gives_the_denominator_and_the_switch():
    text = explain("response_length_non_aborted/mean")
    assert "rows with at least one response token" in text
    assert "logged" not in text
    assert "no: actor.use_kl_loss=false" in explain("actor/kl_loss", DEFAULT)
    assert explain("val-aux/s/acc/pass@4").startswith("val-aux/s/acc/pass@4  (one of val-aux/<data_source>/")


def test_a_listing_takes_less_than_a_second_and_no_torch():
    script = (
        "import sys; from ppo_lightning.config.schema import Config; "
        "from ppo_lightning.metrics.listing import listing; "
        "print(len(listing(Config())), 'torch' in sys.modules)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == "False"
    assert int(done.stdout.split()[0]) > 5000
    assert time.perf_counter() - start < 5.0  # a loaded machine is no fault

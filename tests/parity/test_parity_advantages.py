"""Advantage estimators against golden values of verl 0.9.1, and every deliberate difference."""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from inputs_advantages import Case, cases, difference_cases, digest, drawn_scores

from ppo_lightning.algorithms import ADVANTAGES
from ppo_lightning.algorithms.group_filter import rows_with_signal
from ppo_lightning.algorithms.groups import group_ids
from ppo_lightning.algorithms.pf_ppo import resample, row_weights
from ppo_lightning.algorithms.tables import resolve

GOLDEN = Path(__file__).parent / "golden" / "advantages.npz"
TOLERANCE = 1e-6
WHITENED = ("gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo")
GROUP_WHITENED = ("reinforce_plus_plus_baseline", "gdpo")


@cache
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return {name: file[name] for name in file.files}


@cache
def inputs() -> list[Case]:
    return cases()


def ours(name: str, case: Case, **options: object) -> tuple[Tensor, Tensor]:
    """Call an estimator of the table on a case."""
    entry = ADVANTAGES[name]
    fields = {
        "token_level_rewards": torch.from_numpy(case.rewards),
        "values": torch.from_numpy(case.values),
        "response_mask": torch.from_numpy(case.mask),
        "group": group_ids(case.uid),
        "reward_baselines": torch.from_numpy(case.baselines),
        "old_log_probs": torch.from_numpy(case.old_log_probs),
        "sum_pi_squared": torch.from_numpy(case.sum_pi_squared),
        "rollout_is_weights": torch.from_numpy(case.is_weights),
        "reward_parts": torch.from_numpy(case.parts).double(),
        "gamma": case.gamma,
        "lam": case.lam,
        "norm_adv_by_std_in_grpo": True,
        "gdpo_reward_weights": [1.0, 0.5],
        "handle_zero_tail": True,
        "f_norm": 1.0,
        **options,
    }
    wanted = [*entry.reads, *entry.options, *(key for key in entry.optional if fields[key] is not None)]
    return resolve(entry.path)(**{key: fields[key] for key in wanted})


def tokens_told_apart(case: Case) -> np.ndarray:
    """Mark rows whose group has two rows with tokens and not one return at all tokens (B,)."""
    rewards = case.rewards.astype(np.float64) * case.mask
    returns = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1]
    told = np.zeros(len(case.uid), dtype=bool)
    for uid in set(case.uid):
        rows = case.uid == uid
        seen = returns[rows][case.mask[rows] == 1]
        told[rows] = (case.mask[rows].any(1).sum() > 1) and seen.max() != seen.min()
    return told


def rows_to_compare(name: str, case: Case) -> np.ndarray:
    """Mark the rows on which verl is right (B,); the others belong to DIFFERENCES."""
    if name in WHITENED and not case.whitens():
        return np.zeros(len(case.uid), dtype=bool)
    if name in GROUP_WHITENED and case.has_lone_rows():
        return np.zeros(len(case.uid), dtype=bool)
    if name == "grpo_passk" and case.has_lone_rows():
        return np.zeros(len(case.uid), dtype=bool)
    if "token_baseline" in name:
        return tokens_told_apart(case)
    return case.companions() > 1 if ADVANTAGES[name].grouped else np.ones(len(case.uid), dtype=bool)


def compare(name: str, key: str, output: int = 0, **options: object) -> Callable[[], tuple[int, float]]:
    """Return a comparison of one output of one estimator with golden values over all cases."""

    def largest_difference() -> tuple[int, float]:
        expected, per_row = golden()[key], name in OUTCOME
        at, worst, compared, batches = 0, 0.0, 0, 0
        for case in inputs():
            mask = torch.from_numpy(case.mask).bool()
            kept, got = mask.any(-1).numpy(), ours(name, case, **options)[output]
            assert got.dtype == torch.float32
            assert not got[~mask].any(), "under the mask stands 0"
            right = np.repeat(rows_to_compare(name, case)[:, None], mask.shape[1], axis=1)
            if per_row:
                first = got.gather(1, mask.long().argmax(-1, keepdim=True))
                assert torch.equal(torch.where(mask, got, first), first.expand_as(got))
                got, right = first[kept, 0].numpy(), right[kept, 0]
            else:
                got, right = got[mask].numpy(), right[mask.numpy()]
            want, at = expected[at : at + len(got)], at + len(got)
            if name in WHITENED and len(got) and np.ptp(want) == 0 and not got.any():
                right[:] = False  # equal values: test_difference_04
            compared, batches = compared + int(right.sum()), batches + bool(right.any())
            worst = max(worst, float(np.abs(got - want)[right].max(initial=0)))
        assert at == len(expected)
        assert compared > 400
        return batches, worst

    return largest_difference


OUTCOME = ("grpo", "grpo_vectorized", "grpo_passk", "gdpo", "reinforce_plus_plus_baseline", "rloo")
OUTCOME += ("rloo_vectorized", "opo", "gpg")
_V = "core_algos.compute_"
COMPARISONS = [
    ("gae: advantages", f"{_V}gae_advantage_return", compare("gae", "gae")),
    ("gae: returns", f"{_V}gae_advantage_return", compare("gae", "gae.returns", 1)),
    ("grpo", f"{_V}grpo_outcome_advantage", compare("grpo", "grpo")),
    (
        "grpo without std",
        f"{_V}grpo_outcome_advantage",
        compare("grpo", "grpo_no_std", norm_adv_by_std_in_grpo=False),
    ),
    ("grpo_vectorized", f"{_V}grpo_vectorized_outcome_advantage", compare("grpo_vectorized", "grpo_vectorized")),
    ("grpo_passk", f"{_V}grpo_passk_outcome_advantage", compare("grpo_passk", "grpo_passk")),
    (
        "grpo_passk without std",
        f"{_V}grpo_passk_outcome_advantage",
        compare("grpo_passk", "grpo_passk_no_std", norm_adv_by_std_in_grpo=False),
    ),
    ("gdpo", f"{_V}gdpo_outcome_advantage", compare("gdpo", "gdpo")),
    ("gdpo without std", f"{_V}gdpo_outcome_advantage", compare("gdpo", "gdpo_no_std", norm_adv_by_std_in_grpo=False)),
    (
        "reinforce_plus_plus: advantages",
        f"{_V}reinforce_plus_plus_outcome_advantage",
        compare("reinforce_plus_plus", "reinforce_plus_plus"),
    ),
    (
        "reinforce_plus_plus: returns",
        f"{_V}reinforce_plus_plus_outcome_advantage",
        compare("reinforce_plus_plus", "reinforce_plus_plus.returns", 1),
    ),
    (
        "reinforce_plus_plus_baseline",
        f"{_V}reinforce_plus_plus_baseline_outcome_advantage",
        compare("reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline"),
    ),
    ("rloo", f"{_V}rloo_outcome_advantage", compare("rloo", "rloo")),
    ("rloo_vectorized", f"{_V}rloo_vectorized_outcome_advantage", compare("rloo_vectorized", "rloo_vectorized")),
    ("opo", f"{_V}opo_outcome_advantage", compare("opo", "opo")),
    ("remax: advantages", f"{_V}remax_outcome_advantage", compare("remax", "remax")),
    ("remax: returns", f"{_V}remax_outcome_advantage", compare("remax", "remax.returns", 1)),
    ("gpg", f"{_V}gpg_outcome_advantage", compare("gpg", "gpg")),
    (
        "optimal_token_baseline",
        f"{_V}optimal_token_baseline_advantage",
        compare("optimal_token_baseline", "optimal_token_baseline"),
    ),
    (
        "optimal_token_baseline, own return as tail baseline",
        f"{_V}optimal_token_baseline_advantage",
        compare(
            "optimal_token_baseline", "optimal_token_baseline_tail", handle_zero_tail=False, rollout_is_weights=None
        ),
    ),
    (
        "tir_optimal_token_baseline",
        f"{_V}multi_turn_optimal_token_baseline_advantage",
        compare("tir_optimal_token_baseline", "tir_optimal_token_baseline", rollout_is_weights=None),
    ),
]


def drawn_rows(method: str) -> Callable[[], tuple[int, float]]:
    """Compare the rows that PF-PPO draws under the same seeds: 0.0 if they are the same."""

    def differ() -> tuple[int, float]:
        rows = []
        for seed in range(50):
            weights = row_weights(torch.from_numpy(drawn_scores(seed)), method, 1.5)
            rows.append(resample(weights, torch.Generator().manual_seed(seed)).numpy())
        return len(rows), float(not np.array_equal(np.concatenate(rows), golden()[f"pf_ppo.{method}"]))

    return differ


COMPARISONS += [
    (f"pf_ppo: {method}", f"{_V}pf_ppo_reweight_data", drawn_rows(method))
    for method in ("pow", "max_min", "max_random")
]

DIFFERENCES = [
    (
        "grpo (and every group estimator)",
        "16 equal scores of 0.7 get advantage 0.056",
        "exactly 0",
        "float32 residue of the mean divided by a tiny std; largest == smallest is the test, as in the group filter",
    ),
    (
        "grpo, rloo, opo, gpg, gdpo, reinforce_plus_plus_baseline, grpo_passk",
        "a row without companions gets its raw score (grpo_passk and rloo_vectorized: an error, 0)",
        "0, and it does not count in a whitening",
        "a raw score is no comparison; with a group estimator one rollout per prompt is an error of configuration",
    ),
    (
        "masked.whiten",
        "raises when the batch has no or one valid token",
        "0",
        "nothing to compare is no reason to stop",
    ),
    (
        "masked.whiten",
        "equal values become a residue (up to 1e-3)",
        "exactly 0",
        "a spread below float32's resolution of the mean is rounding",
    ),
    ("gae", "a NaN of the critic on padding makes everything NaN", "changes nothing", "`nan * 0` is NaN; we select"),
    (
        "gae, remax, reinforce_plus_plus, token baselines",
        "leaves numbers under the mask",
        "0 under the mask",
        "a number there has no meaning and invites to be averaged",
    ),
    (
        "gae, remax, reinforce_plus_plus, token baselines",
        "a reward on a masked token (a tool's output at the end) is lost",
        "it belongs to the last valid token before it",
        "group estimators count it in both; only a row with no valid token has nobody to credit",
    ),
    ("opo", "a group without any token gets NaN", "0", "0 / 0"),
    (
        "optimal_token_baseline, tir_optimal_token_baseline",
        "equal rewards give the raw reward on the tail of the longest row, or on the only row with tokens",
        "exactly 0",
        "a group with nothing to tell apart has no signal in any estimator",
    ),
    (
        "group_filter.rows_with_signal",
        "np.std == 0: three scores of 0.7 pass as different; a lone row passes",
        "largest != smallest; a lone row is dropped",
        "the std of equal float64 numbers need not be 0; a lone row's advantage is 0",
    ),
]


def difference(name: str) -> tuple[np.ndarray, Tensor, Tensor]:
    """Return verl's advantages, ours, and the mask."""
    estimator, case = difference_cases()[name]
    return golden()[f"difference.{name}"], ours(estimator, case)[0], torch.from_numpy(case.mask).bool()


def test_difference_01_equal_scores_give_exactly_zero():
    verl, got, _ = difference("equal")
    assert verl.min() > 0.05
    assert not got.any()


@pytest.mark.parametrize("name", ["grpo", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline", "grpo_passk", "gdpo"])
def test_difference_02_a_lone_row_gets_zero(name):
    verl, _, _ = difference("lone")
    assert verl[2, 0] == pytest.approx(2.7, abs=1e-4)
    got = ours(name, difference_cases()["lone"][1])[0]
    assert not got[2].any()
    assert got[3:].any()


def test_difference_03_one_valid_token_whitens_to_zero():
    verl, got, _ = difference("one_token")
    assert verl.size == 0, "verl raises"
    assert not got.any()


def test_difference_04_equal_values_whiten_to_exactly_zero():
    verl, got, mask = difference("level")
    assert (np.abs(verl[mask.numpy()]) > 1e-5).all()
    assert not got.any()


def test_difference_05_nan_on_padding_changes_nothing():
    verl, got, _ = difference("junk_values")
    assert np.isnan(verl).all()
    assert torch.equal(got, difference("under_mask")[1])


def test_difference_06_zero_under_the_mask():
    verl, got, mask = difference("under_mask")
    assert (verl[~mask.numpy()] != 0).all()
    assert not got[~mask].any()


def test_difference_07_a_reward_on_a_masked_token_is_credited():
    verl, got, mask = difference("on_tool")
    assert not verl.any(), "verl loses it"
    assert torch.equal(got, mask.float())


def test_difference_08_a_group_without_tokens_stays_finite():
    verl, got, _ = difference("no_tokens")
    assert np.isnan(verl[:2]).all()
    assert torch.isfinite(got).all()
    np.testing.assert_allclose(got[3:].numpy(), verl[3:], atol=1e-6)


def test_difference_09_equal_rewards_give_zero_on_the_tail_too():
    verl, got, _ = difference("tail")
    assert verl[0, 3] == pytest.approx(0.7)
    assert not got.any()


def test_difference_10_three_equal_scores_are_equal():
    scores = torch.tensor([0.7] * 3 + [1.0], dtype=torch.float64)
    assert np.std([0.7] * 3) != 0
    assert rows_with_signal(scores, torch.tensor([0, 0, 0, 1])).tolist() == [False] * 4


def test_golden_values_are_of_these_inputs():
    assert str(golden()["inputs"]) == digest()


@pytest.mark.parametrize(("name", "theirs", "largest_difference"), COMPARISONS, ids=[row[0] for row in COMPARISONS])
def test_equals_verl(name, theirs, largest_difference):
    batches, worst = largest_difference()
    assert batches >= 50
    assert worst <= TOLERANCE

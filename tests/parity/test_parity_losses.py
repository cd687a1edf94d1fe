"""Losses, KL and rollout correction against verl's values and gradients on the same inputs, in float64."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ppo_lightning.algorithms import POLICY_LOSSES
from ppo_lightning.algorithms.aggregation import LossCounts, aggregate
from ppo_lightning.algorithms.kl import kl, row_mean, subtract_kl
from ppo_lightning.algorithms.kl_control import AdaptiveKLController
from ppo_lightning.algorithms.policy_losses.arguments import loss_arguments
from ppo_lightning.algorithms.rollout_correction.correct import correct
from ppo_lightning.algorithms.rollout_correction.settings import read_settings
from ppo_lightning.algorithms.tables import resolve
from ppo_lightning.algorithms.value_loss import value_loss
from ppo_lightning.config.schema import ActorConfig, RolloutCorrectionConfig

sys.path.insert(0, str(Path(__file__).parent))
import inputs_losses as inputs

GOLDEN = np.load(Path(__file__).parent / "golden" / "losses.npz")
METRICS = ("actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl")
TOLERANCE = 1e-6


def tensor(array):
    return None if array is None else torch.tensor(array, dtype=torch.float64)


def counts(case):
    return LossCounts(case["tokens"], case["sequences"], case["dp_size"])


def actor(case):
    options = {
        "tau_pos": 1.0 + case["low"],
        "tau_neg": 1.0 + case["high"],
        "clip_cov_ratio": 1.0,
        "clip_cov_lb": -0.5,
        "clip_cov_ub": 2.0,
        "kl_cov_ratio": case["high"],
        "ppo_kl_coef": case["ceiling"],
        "dro_beta": case["ceiling"],
    }
    return ActorConfig(
        clip_ratio_low=case["low"], clip_ratio_high=case["high"], clip_ratio_c=case["ceiling"], loss_options=options
    )


def masked_mean(values, mask):
    return (torch.where(mask.bool(), values, 0.0).sum() / mask.sum()).item()


def projected(loss, variable):
    (gradient,) = torch.autograd.grad(loss, variable)
    return [float((gradient.numpy() * direction).sum()) for direction in inputs.directions(tuple(variable.shape))]


def policy(name, case, weights="case", mask=None):
    record = POLICY_LOSSES[name]
    function = resolve(record.path)
    mask = torch.tensor(case["mask"]) if mask is None else mask
    log_prob = tensor(case["log_prob"]).requires_grad_()
    fixed = (tensor(case["old_log_prob"]), log_prob, tensor(case["advantages"]), mask)
    options = loss_arguments(function, actor(case))
    if record.selection:
        select = resolve(record.selection)
        options["selection"] = select(*fixed, **loss_arguments(select, actor(case)))
    weights = tensor(case["weights"]) if isinstance(weights, str) else weights
    token_loss, metrics = function(*fixed, weights, **options)
    loss = aggregate(token_loss, mask, record.loss_agg_mode or case["mode"], counts(case), case["horizon"])
    shown = [masked_mean(metrics[key], mask) if key in metrics and mask.any() else 0.0 for key in METRICS]
    return [loss.item(), *shown, *projected(loss, log_prob)]


def difference(ours, golden, columns=None):
    """Return (cases, largest difference relative to max(1, |golden|)); rows where verl has no value are left out."""
    ours, golden = np.array(ours), np.array(golden)
    there = ~np.isnan(golden).any(1)
    ours, golden = ours[there], golden[there]
    if columns is not None:
        ours, golden = ours[:, columns], golden[:, columns]
    return len(golden), float((np.abs(ours - golden) / np.maximum(1.0, np.abs(golden))).max())


def exponents_within(case, limit=20.0):
    return np.abs((case["log_prob"] - case["old_log_prob"]) * case["mask"]).max() < limit


def advantages_vary(case):
    return np.ptp(case["advantages"][case["mask"].astype(bool)]) > 0


def compare_loss(name, columns=None, where=None, empty_rows=True):
    def compare():
        cases = [inputs.policy_case(seed, empty_rows) for seed in range(inputs.CASES)]
        chosen = [index for index, case in enumerate(cases) if where is None or where(case)]
        cases = [cases[index] for index in chosen]
        if name == "geo_mean":  # verl takes the plain mean over the rows of the micro-batch
            cases = [case | {"sequences": len(case["mask"]), "dp_size": 1} for case in cases]
        return difference([policy(name, case) for case in cases], GOLDEN[name][chosen], columns)

    return compare


LOSS_AND_GRADIENT = [0, 4, 5]
ALL_BUT_CLIPFRAC = [0, 3, 4, 5]


# Equal covariances are a tie, which verl breaks by chance.
compare_kl_cov = compare_loss("kl_cov", where=lambda case: exponents_within(case) and advantages_vary(case))
compare_geo_mean = compare_loss("geo_mean", ALL_BUT_CLIPFRAC, exponents_within, empty_rows=False)


def compare_bypass_ppo_clip():
    cases = [inputs.policy_case(seed) for seed in range(inputs.CASES)]
    return difference([policy("vanilla", case, weights=None) for case in cases], GOLDEN["bypass_ppo_clip"])


def compare_bypass_reinforce():
    results = []
    for seed in range(inputs.CASES):
        case = inputs.policy_case(seed, empty_rows=False)
        settings = read_settings(RolloutCorrectionConfig(**inputs.CORRECTIONS[seed % len(inputs.CORRECTIONS)]))
        found = correct(tensor(case["log_prob"]), tensor(case["old_log_prob"]), torch.tensor(case["mask"]), settings)
        results.append(policy("reinforce", case, weights=found.weights, mask=found.response_mask))
    return difference(results, GOLDEN["bypass_reinforce"])


def compare_value():
    results = []
    for seed in range(inputs.CASES):
        case = inputs.value_case(seed)
        predictions, mask = tensor(case["predictions"]).requires_grad_(), torch.tensor(case["mask"])
        token_loss, metrics = value_loss(
            predictions, tensor(case["values"]), tensor(case["returns"]), mask, case["cliprange"]
        )
        loss = aggregate(token_loss, mask, case["mode"], counts(case), case["horizon"])
        clipped = masked_mean(metrics["critic/vf_clipfrac"], mask)
        results.append([loss.item(), clipped, *projected(loss, predictions)])
    return difference(results, GOLDEN["value"])


def compare_aggregate():
    results = []
    for seed in range(inputs.CASES):
        case = inputs.policy_case(seed)
        loss = tensor(case["advantages"]).requires_grad_()
        result = aggregate(loss, torch.tensor(case["mask"]), case["mode"], counts(case), case["horizon"])
        results.append([result.item(), *projected(result, loss)])
    return difference(results, GOLDEN["aggregate"])


def compare_kl():
    results = []
    for seed in range(2 * inputs.CASES):
        case = inputs.kl_case(seed)
        log_prob = tensor(case["log_prob"]).requires_grad_()
        values = kl(log_prob, tensor(case["ref_log_prob"]), torch.tensor(case["mask"]), case["name"])
        weighted = values * torch.tensor(inputs.directions(tuple(values.shape))[0])
        results.append([values.sum().item(), weighted.sum().item(), *projected(values.sum(), log_prob)])
    return difference(results, GOLDEN["kl"])


def compare_penalty():
    results = []
    for seed in range(2 * inputs.CASES):
        case = inputs.kl_case(seed)
        mask = torch.tensor(case["mask"])
        values = kl(tensor(case["log_prob"]), tensor(case["ref_log_prob"]), mask, case["name"])
        rewards = subtract_kl(tensor(case["scores"]), values, mask, case["coefficient"]).numpy()
        total, rows = row_mean(values, mask)
        results.append([total / rows, *(float((rewards * way).sum()) for way in inputs.directions(rewards.shape))])
    return difference(results, GOLDEN["penalty"])


def compare_controller():
    results = []
    for seed in range(inputs.CASES):
        case = inputs.controller_case(seed)
        controller = AdaptiveKLController(case["value"], case["target"], case["horizon"])
        for seen in case["seen"]:
            controller.update(*seen)
        results.append([controller.value])
    return difference(results, GOLDEN["controller"])


def correction_row(seed, keys):
    case = inputs.correction_case(seed)
    settings = read_settings(RolloutCorrectionConfig(**case["options"]))
    found = correct(tensor(case["log_prob"]), tensor(case["rollout_log_prob"]), torch.tensor(case["mask"]), settings)
    applied = torch.zeros(case["mask"].shape) if found.weights is None else found.weights
    two = inputs.directions(case["mask"].shape)
    sums = [float((a.double().numpy() * way).sum()) for a in (applied, found.response_mask) for way in two]
    numbers = {key: total / count for key, (total, count) in found.metrics.means.items()}
    numbers |= found.metrics.maxima | found.metrics.minima
    return [*sums, *(numbers[key] for key in keys)], set(numbers) - set(keys)


def compare_correction(numbers):
    def compare():
        cases, largest = 0, 0.0
        for number in numbers:
            keys = json.loads(str(GOLDEN["correction_keys"]))[number]
            seeds = range(number, inputs.CORRECTION_CASES, len(inputs.CORRECTIONS))
            rows = [correction_row(seed, keys) for seed in seeds]
            assert not any(extra for _, extra in rows), rows[0][1]
            count, most = difference([row for row, _ in rows], GOLDEN[f"correction_{number}"])
            cases, largest = cases + count, max(largest, most)
        return cases, largest

    return compare


ALGO = "core_algos.compute_policy_loss_"
HOME = "policy_losses."
DIFFERENCES: list[tuple[str, str, str, str]] = []  # in test_parity_losses_differences.py
COMPARISONS = [
    ("aggregation.aggregate", "core_algos.agg_loss", compare_aggregate),
    (f"{HOME}ppo_clip.ppo_clip", f"{ALGO}vanilla", compare_loss("vanilla")),
    (f"{HOME}gspo.gspo", f"{ALGO}gspo", compare_loss("gspo")),
    (f"{HOME}sapo.sapo", f"{ALGO}sapo", compare_loss("sapo")),
    (f"{HOME}gpg.gpg", f"{ALGO}gpg", compare_loss("gpg", LOSS_AND_GRADIENT)),
    (f"{HOME}clip_cov.clip_cov", f"{ALGO}clip_cov", compare_loss("clip_cov", where=exponents_within)),
    (f"{HOME}kl_cov.kl_cov", f"{ALGO}kl_cov", compare_kl_cov),
    (f"{HOME}geo_mean.geo_mean", f"{ALGO}geo_mean", compare_geo_mean),
    (f"{HOME}cispo.cispo", f"{ALGO}cispo", compare_loss("cispo")),
    (f"{HOME}dppo.dppo_tv", f"{ALGO}dppo_tv", compare_loss("dppo_tv")),
    (f"{HOME}dppo.dppo_kl", f"{ALGO}dppo_kl", compare_loss("dppo_kl")),
    (f"{HOME}dro.dro", f"{ALGO}dro", compare_loss("dro")),
    (f"{HOME}ppo_clip.ppo_clip", f"{ALGO}bypass_mode (ppo_clip)", compare_bypass_ppo_clip),
    (f"{HOME}reinforce.reinforce", f"{ALGO}bypass_mode (reinforce)", compare_bypass_reinforce),
    ("value_loss.value_loss", "core_algos.compute_value_loss", compare_value),
    ("kl.kl", "core_algos.kl_penalty", compare_kl),
    ("kl.subtract_kl, kl.row_mean", "ray_trainer.apply_kl_penalty", compare_penalty),
    ("kl_control.AdaptiveKLController", "core_algos.AdaptiveKLController", compare_controller),
    (
        "rollout_correction.correct (weights)",
        "rollout_corr_helper.compute_rollout_correction_weights",
        compare_correction(range(6)),
    ),
    (
        "rollout_correction.correct (rejection)",
        "rollout_corr_helper.compute_rollout_rejection_mask",
        compare_correction(range(6, 19)),
    ),
    (
        "rollout_correction.correct (diagnostics)",
        "rollout_corr_helper.compute_offpolicy_metrics",
        compare_correction([19]),
    ),
]


def test_inputs_are_those_of_the_golden_values():
    assert str(GOLDEN["digest"]) == inputs.digest()


@pytest.mark.parametrize(("ours", "theirs", "compare"), COMPARISONS, ids=[f"{a}~{b}" for a, b, _ in COMPARISONS])
def test_parity(ours, theirs, compare):
    cases, largest = compare()
    assert cases >= 15
    assert largest <= TOLERANCE

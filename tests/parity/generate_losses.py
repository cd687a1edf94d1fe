"""Write golden/losses.npz: verl's values and gradients of losses, KL and rollout correction. Runs in the oracle."""

import json
from pathlib import Path

import inputs_losses as inputs
import numpy as np
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo import core_algos, ray_trainer
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config import ActorConfig
from verl.workers.config.actor import PolicyLossConfig

METRICS = ("actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl")
LOSSES = ("vanilla", "gspo", "sapo", "gpg", "kl_cov", "geo_mean", "cispo", "dppo_tv", "dppo_kl", "dro", "clip_cov")


def tensor(array):
    return None if array is None else torch.tensor(array, dtype=torch.float64)


def mask_of(case):
    return torch.tensor(case["mask"])


def counts(case):
    return {
        "dp_size": case["dp_size"],
        "batch_num_tokens": case["tokens"],
        "global_batch_size": case["sequences"],
        "loss_scale_factor": case["horizon"],
    }


def actor(case, **policy_loss):
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=case["low"],
        clip_ratio_high=case["high"],
        clip_ratio_c=case["ceiling"],
        tau_pos=1.0 + case["low"],
        tau_neg=1.0 + case["high"],
        policy_loss=PolicyLossConfig(
            clip_cov_ratio=1.0,
            clip_cov_lb=-0.5,
            clip_cov_ub=2.0,
            kl_cov_ratio=case["high"],
            ppo_kl_coef=case["ceiling"],
            dro_beta=case["ceiling"],
            **policy_loss,
        ),
    )
    config.global_batch_info.update(counts(case))
    return config


def projected(loss, variable):
    (gradient,) = torch.autograd.grad(loss, variable)
    return [float((gradient.numpy() * direction).sum()) for direction in inputs.directions(tuple(variable.shape))]


def policy(name, case, config=None, weights=True):
    log_prob = tensor(case["log_prob"]).requires_grad_()
    loss, metrics = core_algos.get_policy_loss_fn(name)(
        old_log_prob=tensor(case["old_log_prob"]),
        log_prob=log_prob,
        advantages=tensor(case["advantages"]),
        response_mask=mask_of(case),
        loss_agg_mode=case["mode"],
        config=config or actor(case),
        rollout_is_weights=tensor(case["weights"]) if weights else None,
    )
    return [loss.item(), *(metrics.get(key, 0.0) for key in METRICS), *projected(loss, log_prob)]


def bypass(kind, case, options):
    correction = RolloutCorrectionConfig(
        bypass_mode=True, loss_type=kind, **{"rollout_is": None, "rollout_rs": None, **options}
    )
    return policy("bypass_mode", case, actor(case, rollout_correction=correction))


def value(case):
    predictions = tensor(case["predictions"]).requires_grad_()
    loss, clipfrac = core_algos.compute_value_loss(
        vpreds=predictions,
        returns=tensor(case["returns"]),
        values=tensor(case["values"]),
        response_mask=mask_of(case),
        cliprange_value=case["cliprange"],
        loss_agg_mode=case["mode"],
        **counts(case),
    )
    return [loss.item(), clipfrac.item(), *projected(loss, predictions)]


def aggregated(case):
    loss = tensor(case["advantages"]).requires_grad_()
    result = core_algos.agg_loss(loss, mask_of(case), case["mode"], **counts(case))
    return [result.item(), *projected(result, loss)]


def kl(case):
    log_prob = tensor(case["log_prob"]).requires_grad_()
    values = core_algos.kl_penalty(log_prob, tensor(case["ref_log_prob"]), case["name"])
    kept = torch.where(mask_of(case).bool(), values, 0.0)
    weighted = kept * torch.tensor(inputs.directions(tuple(kept.shape))[0])
    return [kept.sum().item(), weighted.sum().item(), *projected(kept.sum(), log_prob)]


def penalty(case):
    keys = {"old_log_probs": "log_prob", "ref_log_prob": "ref_log_prob", "token_level_scores": "scores"}
    batch = {ours: tensor(case[theirs]) for ours, theirs in keys.items()} | {"response_mask": mask_of(case)}
    data = DataProto(batch=TensorDict(batch, batch_size=[len(case["mask"])]))
    controller = core_algos.FixedKLController(case["coefficient"])
    data, metrics = ray_trainer.apply_kl_penalty(data, controller, case["name"])
    rewards = data.batch["token_level_rewards"].numpy()
    projections = [float((rewards * direction).sum()) for direction in inputs.directions(rewards.shape)]
    return [metrics["actor/reward_kl_penalty"], *projections]


def controller(case):
    ours = core_algos.AdaptiveKLController(case["value"], case["target"], case["horizon"])
    for seen in case["seen"]:
        ours.update(*seen)
    return [float(ours.value)]


def correction(case):
    weights, mask, metrics = compute_rollout_correction_and_rejection_mask(
        old_log_prob=tensor(case["log_prob"]),
        rollout_log_prob=tensor(case["rollout_log_prob"]),
        response_mask=mask_of(case),
        **case["options"],
    )
    applied = torch.zeros(case["mask"].shape) if weights is None else weights.batch["rollout_is_weights"]
    two = inputs.directions(case["mask"].shape)
    sums = [float((array.double().numpy() * direction).sum()) for array in (applied, mask) for direction in two]
    return metrics, sums


def corrections():
    """Return metric keys and results per set of options; a row of NaN where verl divides by zero."""
    keys, rows = [], []
    for number in range(len(inputs.CORRECTIONS)):
        results = []
        for seed in range(number, inputs.CORRECTION_CASES, len(inputs.CORRECTIONS)):
            try:
                results.append(correction(inputs.correction_case(seed)))
            except ZeroDivisionError:
                results.append(None)
        keys.append(sorted(next(result for result in results if result)[0]))
        width = 4 + len(keys[-1])
        rows.append(
            np.array(
                [[*found[1], *(found[0][key] for key in keys[-1])] if found else [np.nan] * width for found in results]
            )
        )
    return keys, rows


def small(old, new, advantages, mask, **options):
    """Return an actor configuration, and the arguments of a policy loss, for a few tokens written by hand."""
    settings = {"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1} | options
    log_prob = torch.tensor(new, dtype=torch.float64).requires_grad_()
    arguments = {
        "old_log_prob": torch.tensor(old, dtype=torch.float64),
        "log_prob": log_prob,
        "advantages": torch.tensor(advantages, dtype=torch.float64),
        "response_mask": torch.tensor(mask),
        "config": ActorConfig(**settings),
    }
    return log_prob, arguments


def loss_of(name, *tokens, mode="token-mean", info=None, **options):
    log_prob, arguments = small(*tokens, **options)
    arguments["config"].global_batch_info.update(info or {})
    loss, metrics = core_algos.get_policy_loss_fn(name)(loss_agg_mode=mode, **arguments)
    (gradient,) = torch.autograd.grad(loss, log_prob)
    return loss.item(), gradient.flatten().tolist(), metrics


def raises(error, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except error:
        return 1.0
    return 0.0


def evidence():
    """Return what verl does on the inputs that `test_difference_*` are about."""
    nan = float("nan")
    far = torch.tensor([[-3.0, 0.5, 12.0]], dtype=torch.float64, requires_grad=True)
    k3 = core_algos.kl_penalty(far, torch.zeros(1, 3), "low_var_kl")
    one = torch.tensor([[1.0, nan], [3.0, 5.0]])
    kept = torch.tensor([[1, 0], [1, 1]])
    nothing = torch.zeros_like(kept)
    rows, band = [[-1.0, -1.0], [-1.0, -1.0]], {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
    batch = {
        "old_log_probs": torch.tensor([[1.0, 1.0], [1.0, 1.0]]),
        "ref_log_prob": torch.zeros(2, 2),
        "token_level_scores": torch.zeros(2, 2),
        "response_mask": torch.tensor([[1, 1], [0, 0]]),
    }
    data = DataProto(batch=TensorDict(batch, batch_size=[2]))
    penalised = ray_trainer.apply_kl_penalty(data, core_algos.FixedKLController(1.0), "kl")[1]
    broken = core_algos.AdaptiveKLController(0.1, 0.1, 100)
    broken.update(nan, 10)
    correct = compute_rollout_correction_and_rejection_mask
    half = torch.log(torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64))
    with_empty = correct(half, half * 2, torch.tensor([[1, 1], [0, 0]]), rollout_is="token")[2]
    rejecting = {"rollout_rs": "token_k2", "rollout_rs_threshold": "0.01"}
    rejected = correct(half, half * 2, torch.tensor([[1, 1], [0, 0]]), **rejecting)[2]
    far_off = correct(torch.tensor([[100.0]]), torch.zeros(1, 1), torch.ones(1, 1).long())[2]
    nothing_left = {"rollout_is": "token", "rollout_is_threshold": "0.9_1.1"}
    geo = ("geo_mean", rows, [[0.0, -1.0], [-1.0, -1.0]], [[1.0, 1.0], [1.0, 1.0]])
    return {
        "k3": [*k3[0].tolist(), *torch.autograd.grad(k3.sum(), far)[0][0].tolist()],
        "nan_row_mean": core_algos.agg_loss(one, kept, "seq-mean-token-mean").item(),
        "nan_gradient": loss_of("vanilla", rows, rows, [[1.0, nan], [1.0, 1.0]], kept.tolist())[1],
        "empty": core_algos.agg_loss(kept.float(), nothing, "token-mean").item(),
        "horizon": [
            core_algos.agg_loss(torch.ones(1, width), torch.arange(width)[None] < 2, "seq-mean-token-sum-norm").item()
            for width in (2, 4)
        ],
        "geo_empty_row": loss_of(*geo, [[1, 1], [0, 0]], **band)[0],
        "geo_counts": [
            loss_of(*geo, [[1, 1], [1, 1]], info={"dp_size": size, "global_batch_size": 4}, **band)[0]
            for size in (1, 2)
        ],
        "geo_clipfrac": loss_of("geo_mean", [[0.0]], [[-1.0]], [[1.0]], [[1]], **band)[2]["actor/pg_clipfrac"],
        "overflow": [loss_of(name, [[-800.0]], [[0.0]], [[-1.0]], [[1]], **band)[0] for name in ("clip_cov", "kl_cov")],
        "reward_kl": penalised["actor/reward_kl_penalty"],
        "clip_ratio": loss_of("vanilla", [[-1.0]], [[-1.0 + np.log(1.4)]], [[1.0]], [[1]], clip_ratio=0.5)[0],
        "controller": broken.value,
        "empty_row_metrics": [
            with_empty[f"rollout_corr/{key}"]
            for key in ("training_ppl", "chi2_seq", "rollout_is_seq_mean", "rollout_is_seq_min")
        ],
        "empty_row_rejected": rejected["rollout_corr/rollout_rs_seq_masked_fraction"],
        "k3_kl": far_off["rollout_corr/k3_kl"],
        "nothing_left": raises(ZeroDivisionError, correct, half, half * 2, kept, **nothing_left),
        "no_tokens": raises(ValueError, correct, half, half * 2, nothing),
    }


def main():
    cases = [inputs.policy_case(seed) for seed in range(inputs.CASES)]
    full = [inputs.policy_case(seed, empty_rows=False) for seed in range(inputs.CASES)]
    golden = {}
    for name in LOSSES:
        golden[name] = [policy(name, case) for case in (full if name == "geo_mean" else cases)]
    options = inputs.CORRECTIONS
    golden["bypass_ppo_clip"] = [bypass("ppo_clip", case, {}) for case in cases]
    golden["bypass_reinforce"] = []
    for seed, case in enumerate(full):
        try:
            golden["bypass_reinforce"].append(bypass("reinforce", case, options[seed % len(options)]))
        except ZeroDivisionError:
            golden["bypass_reinforce"].append([np.nan] * 6)
    golden["value"] = [value(inputs.value_case(seed)) for seed in range(inputs.CASES)]
    golden["aggregate"] = [aggregated(case) for case in cases]
    golden["kl"] = [kl(inputs.kl_case(seed)) for seed in range(2 * inputs.CASES)]
    golden["penalty"] = [penalty(inputs.kl_case(seed)) for seed in range(2 * inputs.CASES)]
    golden["controller"] = [controller(inputs.controller_case(seed)) for seed in range(inputs.CASES)]
    keys, rows = corrections()
    arrays = {key: np.array(values) for key, values in golden.items()}
    arrays |= {f"correction_{number}": array for number, array in enumerate(rows)}
    arrays |= {f"evidence_{key}": np.array(found) for key, found in evidence().items()}
    path = Path(__file__).parent / "golden" / "losses.npz"
    np.savez_compressed(path, digest=inputs.digest(), correction_keys=json.dumps(keys), **arrays)
    print(path, path.stat().st_size, "bytes", evidence())  # noqa: T201


if __name__ == "__main__":
    main()

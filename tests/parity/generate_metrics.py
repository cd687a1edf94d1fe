"""Write golden/metrics.json: verl's metrics of batches, timers, validations and model FLOPs. Runs in the oracle."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import inputs_metrics as inputs
import numpy as np
import torch
from verl import DataProto
from verl.trainer.ppo.metric_utils import (
    compute_data_metrics,
    compute_throughout_metrics,
    compute_timing_metrics,
    compute_variance_proxy_metrics,
)
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils.debug.metrics import calculate_debug_metrics
from verl.utils.flops_counter import ESTIMATE_FUNC, get_device_flops
from verl.utils.metric import reduce_metrics

DIGITS = 12


def proto(arrays):
    batch = DataProto.from_dict({name: torch.tensor(array) for name, array in arrays.items()})
    batch.meta_info["global_token_num"] = arrays["attention_mask"].sum(-1).tolist()
    return batch


def plain(metrics):
    """Return {key: float with enough digits, or "nan" / "inf"}."""
    found = {}
    for key, value in metrics.items():
        value = float(value)
        found[key] = float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return found


def step(seed):
    batch, seconds = proto(inputs.batch(seed)), inputs.seconds(seed)
    return {
        "data": plain(compute_data_metrics(batch, use_critic=seed % 3 != 0)),
        "timing": plain(compute_timing_metrics(batch, seconds)),
        "throughput": plain(compute_throughout_metrics(batch, seconds, n_gpus=2)),
        "mismatch": plain(calculate_debug_metrics(batch)),
    }


def variance(seed, empty=False, **changed):
    arrays, norm = inputs.variance_batch(seed, empty)
    return plain(compute_variance_proxy_metrics(proto(arrays | changed), norm))


def flops(seed):
    family, values, lengths = inputs.flops_case(seed)
    return ESTIMATE_FUNC[family](SimpleNamespace(**values), sum(lengths), lengths, 1.0)


def seeds_global_generator():
    np.random.seed(7)
    RayPPOTrainer._val_metrics_update(None, *inputs.validation(1), [])
    return float(np.random.rand())


def differences():
    no_tokens, one_token = inputs.batch(9), inputs.batch(0, rows=1)
    one_token["response_mask"][:] = 0
    one_token["response_mask"][0, 0] = 1
    zero = inputs.variance_batch(3)[0]["rollout_is_weights"].copy()
    zero[:, 0] = 0.0
    return {
        "all_aborted": plain(compute_data_metrics(proto(no_tokens), use_critic=True)),
        "one_token": plain(calculate_debug_metrics(proto(one_token))),
        "no_tokens_timing": plain(
            compute_timing_metrics(proto(no_tokens | {"attention_mask": no_tokens["attention_mask"] * 0}), {"gen": 1.0})
        ),
        "variance_empty_rows": variance(0, empty=True),
        "variance_zero_weights": variance(3, rollout_is_weights=zero),
        "variance_without_norm": plain(compute_variance_proxy_metrics(proto(inputs.variance_batch(0)[0]), None)),
        "h100_pcie": get_device_flops("B", "NVIDIA H100 PCIe"),
        "unknown_device": str(get_device_flops("B", "NVIDIA X9000")),
        "random_after_validation": seeds_global_generator(),
    }


def main():
    golden = {
        "inputs": inputs.fingerprint(),
        "steps": [step(seed) for seed in range(inputs.BATCHES)],
        "variance": [variance(seed) for seed in range(inputs.VARIANCES)],
        "validation": [
            plain(RayPPOTrainer._val_metrics_update(None, *inputs.validation(seed), []))
            for seed in range(inputs.VALIDATIONS)
        ],
        "flops": [flops(seed) for seed in range(inputs.FLOPS)],
        "reduced": plain(reduce_metrics(dict(inputs.REDUCED))),
        "differences": differences(),
    }
    path = Path(__file__).parent / "golden" / "metrics.json"
    path.write_text(json.dumps(golden, separators=(",", ":"), sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

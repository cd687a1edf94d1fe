"""Inputs of the loss, KL and rollout-correction comparisons, made from seeds. numpy only; both environments import it.

Inputs are float32 numbers; both sides compute on them in float64, so that what is compared is the formula.
"""

import hashlib
import json

import numpy as np

MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
CASES = 240
KL_NAMES = (
    "kl",
    "k1",
    "abs",
    "mse",
    "k2",
    "low_var_kl",
    "k3",
    "kl+",
    "k1+",
    "abs+",
    "mse+",
    "k2+",
    "low_var_kl+",
    "k3+",
)
CORRECTIONS = (
    {"rollout_is": "token", "rollout_is_threshold": "2.0"},
    {"rollout_is": "token", "rollout_is_threshold": "0.5_1.5"},
    {"rollout_is": "token", "rollout_is_threshold": "1.2", "rollout_is_batch_normalize": True},
    {"rollout_is": "sequence", "rollout_is_threshold": "2.0"},
    {"rollout_is": "sequence", "rollout_is_threshold": "0.3_3.0"},
    {"rollout_is": "sequence", "rollout_is_threshold": "1.5", "rollout_is_batch_normalize": True},
    {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.6_1.4"},
    {"rollout_rs": "token_k1", "rollout_rs_threshold": "1.5"},
    {"rollout_rs": "token_k2", "rollout_rs_threshold": "0.1"},
    {"rollout_rs": "token_k3", "rollout_rs_threshold": "0.1"},
    {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.5"},
    {"rollout_rs": "seq_sum_k2", "rollout_rs_threshold": "0.4"},
    {"rollout_rs": "seq_sum_k3", "rollout_rs_threshold": "0.4"},
    {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.8_1.2"},
    {"rollout_rs": "seq_mean_k2", "rollout_rs_threshold": "0.1"},
    {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": "0.1"},
    {"rollout_rs": "seq_max_k2", "rollout_rs_threshold": "0.3"},
    {"rollout_rs": "seq_max_k3", "rollout_rs_threshold": "0.3"},
    {
        "rollout_is": "token",
        "rollout_is_threshold": "2.0",
        "rollout_rs": "token_k1,seq_mean_k3",
        "rollout_rs_threshold": "0.5_2.0,0.2",
    },
    {},
)
CORRECTION_CASES = 20 * len(CORRECTIONS)


def policy_case(seed, empty_rows=True):
    """Return one micro-batch with its options: arrays (b, R) and the counts of a mini-batch that it is part of."""
    random = np.random.RandomState(seed)
    shape = (random.randint(1, 6), random.randint(1, 8))
    spread = (0.05, 0.3, 1.5, 12.0)[seed % 4]
    log_prob = -random.exponential(1.0, shape)
    old_log_prob = np.minimum(log_prob + spread * random.randn(*shape), 0.0)
    if seed % 7 == 0:
        old_log_prob = log_prob.copy()
    advantages = random.randn(*shape) * (random.rand(*shape) > 0.1)
    if seed % 3 == 0:
        advantages = np.repeat(advantages[:, :1], shape[1], 1)
    lengths = random.randint(0 if empty_rows else 1, shape[1] + 1, shape[0])
    lengths[random.randint(shape[0])] = random.randint(1, shape[1] + 1)
    mask = np.arange(shape[1])[None] < lengths[:, None]
    if seed % 5 == 0 and shape[1] > 2:
        mask[:, 1] &= ~((lengths > 2) & (random.rand(shape[0]) < 0.5))
    shrink = random.randint(2)
    return {
        "log_prob": log_prob.astype(np.float32),
        "old_log_prob": old_log_prob.astype(np.float32),
        "advantages": advantages.astype(np.float32),
        "mask": mask.astype(np.int64),
        "weights": random.uniform(0.1, 2.0, shape).astype(np.float32) if seed % 2 else None,
        "mode": MODES[(seed // 2) % 5],
        "tokens": int(mask.sum() + shrink * random.randint(10)),
        "sequences": int(mask.any(-1).sum() + shrink * random.randint(4)),
        "dp_size": int(1 + shrink),
        "horizon": int(shape[1] + random.randint(3)),
        "low": float(np.float32(random.uniform(0.05, 0.4))),
        "high": float(np.float32(random.uniform(0.05, 0.4))),
        "ceiling": float(np.float32(random.uniform(1.5, 4.0))),
    }


def value_case(seed):
    """Return one micro-batch of values: arrays (b, R) besides those of `policy_case`."""
    case = policy_case(seed)
    random = np.random.RandomState(10_000 + seed)
    shape = case["mask"].shape
    case["values"] = random.randn(*shape).astype(np.float32)
    case["predictions"] = (case["values"] + (0.1, 0.5, 2.0)[seed % 3] * random.randn(*shape)).astype(np.float32)
    case["returns"] = (2 * random.randn(*shape)).astype(np.float32)
    case["cliprange"] = float(np.float32(random.uniform(0.1, 0.6)))
    return case


def kl_case(seed):
    """Return log-probabilities of policy and reference (b, R) whose k3 stays below its limit."""
    random = np.random.RandomState(20_000 + seed)
    shape = (random.randint(1, 6), random.randint(1, 8))
    log_prob = -random.exponential(1.0, shape)
    gap = np.clip((0.01, 0.5, 3.0)[seed % 3] * random.randn(*shape), -2.6, 10.9)
    return {
        "log_prob": log_prob.astype(np.float32),
        "ref_log_prob": (log_prob - gap).astype(np.float32),
        "scores": random.randn(*shape).astype(np.float32),
        "mask": (np.arange(shape[1])[None] < random.randint(1, shape[1] + 1, shape[0])[:, None]).astype(np.int64),
        "name": KL_NAMES[seed % len(KL_NAMES)],
        "coefficient": float(np.float32(random.uniform(0.001, 0.5))),
    }


def controller_case(seed):
    """Return the settings of an adaptive controller and the KL values and batch sizes that it sees."""
    random = np.random.RandomState(30_000 + seed)
    return {
        "value": float(random.uniform(1e-3, 0.5)),
        "target": float(random.uniform(0.01, 1.0)),
        "horizon": int(random.randint(100, 20_000)),
        "seen": [(float(random.exponential(0.2)), int(random.randint(1, 512))) for _ in range(20)],
    }


def correction_case(seed):
    """Return a batch without empty rows, and the options of its correction."""
    random = np.random.RandomState(40_000 + seed)
    shape = (random.randint(1, 9), random.randint(1, 9))
    trainer = -random.exponential(1.0, shape)
    engine = np.minimum(trainer + (0.02, 0.3, 1.0)[(seed // len(CORRECTIONS)) % 3] * random.randn(*shape), 0.0)
    lengths = random.randint(1, shape[1] + 1, shape[0])
    return {
        "log_prob": trainer.astype(np.float32),
        "rollout_log_prob": engine.astype(np.float32),
        "mask": (np.arange(shape[1])[None] < lengths[:, None]).astype(np.int64),
        "options": CORRECTIONS[seed % len(CORRECTIONS)],
    }


def directions(shape):
    """Return two fixed arrays (b, R) that a gradient is projected on, to store it in two numbers."""
    random = np.random.RandomState(50_000)
    return random.uniform(0.5, 1.5, (2, *shape)) * np.sign(random.randn(2, *shape))


def digest():
    """Return the sha256 of all inputs, stored with the golden values."""
    total = hashlib.sha256()
    groups = ((policy_case, CASES), (value_case, CASES), (kl_case, 2 * CASES), (controller_case, CASES))
    for make, number in (*groups, (correction_case, CORRECTION_CASES)):
        for seed in range(number):
            for key, value in sorted(make(seed).items()):
                total.update(key.encode())
                total.update(value.tobytes() if isinstance(value, np.ndarray) else json.dumps(value).encode())
    return total.hexdigest()

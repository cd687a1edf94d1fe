"""Inputs of the metric comparisons, made from seeds. numpy only; both environments import it.

Tensors are float64 on both sides, so that what is compared is the definition.
"""

import hashlib
import json

import numpy as np

BATCHES = 80
VARIANCES = 30
VALIDATIONS = 14
FLOPS = 24
TIMERS = ("gen", "ref", "values", "adv", "update_critic", "update_actor", "reward", "step")
REDUCED = {"loss": [1.0, 2.5, 4.0], "reward/max": [1.0, 3.0, 2.0], "length/min": [5.0, 2.0], "minerva_acc": [0.0, 1.0]}


def lengths_of(rng, rows, width, empty=True):
    """Return response lengths with full and (if allowed) aborted rows among them."""
    lengths = rng.randint(0 if empty else 1, width + 1, rows)
    lengths[rng.rand(rows) < 0.2] = width
    if empty:
        lengths[rng.rand(rows) < 0.2] = 0
    return lengths


def batch(seed, empty=True, rows=None):
    """Return the arrays of one batch; every masked entry is junk. Every tenth batch is aborted as a whole."""
    rng = np.random.RandomState(seed)
    rows, width, prompt_width = rng.randint(1, 10) if rows is None else rows, rng.randint(1, 13), rng.randint(1, 9)
    lengths = lengths_of(rng, rows, width, empty)
    if empty and seed % 10 == 9:
        lengths[:] = 0
    prompts = rng.randint(1, prompt_width + 1, rows)
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    prompt_mask = (np.arange(prompt_width) >= prompt_width - prompts[:, None]).astype(np.int64)
    arrays = {
        "prompts": np.zeros((rows, prompt_width), np.int64),
        "responses": np.zeros((rows, width), np.int64),
        "attention_mask": np.concatenate([prompt_mask, mask], 1),
        "response_mask": mask,
    }
    for name in ("token_level_scores", "token_level_rewards", "advantages", "returns", "values"):
        arrays[name] = rng.randn(rows, width)
    arrays["old_log_probs"] = -rng.exponential(1.0, (rows, width))
    arrays["rollout_log_probs"] = arrays["old_log_probs"] + 0.1 * rng.randn(rows, width)
    return arrays


def seconds(seed):
    """Return wall seconds by timer; not every stage runs."""
    rng = np.random.RandomState(1000 + seed)
    return {name: float(rng.rand() * 10) for name in TIMERS if name == "step" or rng.rand() < 0.8}


def variance_batch(seed, empty=False):
    """Return a batch with what the variance proxies read, weights on every second seed, and a gradient norm."""
    arrays, rng = batch(2000 + seed, empty), np.random.RandomState(3000 + seed)
    shape = arrays["response_mask"].shape
    arrays["sum_pi_squared"] = rng.rand(*shape)
    if seed % 2:
        arrays["rollout_is_weights"] = 0.2 + rng.rand(*shape)
    return arrays, float(rng.rand())


def validation(seed):
    """Return data sources, uids and columns of one validation, in shuffled order."""
    rng = np.random.RandomState(4000 + seed)
    samples = (1, 2, 3, 4, 5, 8, 6)[seed % 7]
    sources, uids, rows = [], [], []
    for source in ("openai/gsm8k", "math")[: 1 + seed % 2]:
        for uid in range(rng.randint(1, 4)):
            number = samples + (1 if seed % 5 == 4 and uid == 0 else 0)
            sources += [source] * number
            uids += [f"{source}-{uid}"] * number
            rows += [(float(rng.rand() < 0.5), float(rng.randn()), str(rng.randint(0, 3))) for _ in range(number)]
    order = rng.permutation(len(rows))
    columns = {"reward": [rows[i][1] for i in order]}
    if seed % 3:
        columns["acc"] = [rows[i][0] for i in order]
    if seed % 4:
        columns["pred"] = [rows[i][2] for i in order]
    if seed % 6 == 5:
        columns["format"] = [None if rng.rand() < 0.3 else float(rng.rand() < 0.5) for _ in order]
    return [sources[i] for i in order], [uids[i] for i in order], columns


def flops_case(seed):
    """Return (family, config values, sequence lengths)."""
    rng = np.random.RandomState(5000 + seed)
    heads, key_heads, head_size = (4, 2, 16) if seed % 2 else (8, 8, 8)
    values = {
        "hidden_size": heads * head_size,
        "intermediate_size": int(rng.randint(100, 300)),
        "num_hidden_layers": int(rng.randint(1, 6)),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": head_size,
        "vocab_size": int(rng.randint(100, 1000)),
    }
    return ("llama", "qwen2", "qwen3", "mistral")[seed % 4], values, [int(n) for n in rng.randint(1, 200, 7)]


def fingerprint():
    """Return the sha256 of all inputs."""
    digest = hashlib.sha256()
    for arrays in [batch(seed) for seed in range(BATCHES)] + [variance_batch(seed)[0] for seed in range(VARIANCES)]:
        for name in sorted(arrays):
            digest.update(name.encode() + arrays[name].tobytes())
    rest = [
        [seconds(seed) for seed in range(BATCHES)],
        [variance_batch(seed)[1] for seed in range(VARIANCES)],
        [validation(seed) for seed in range(VALIDATIONS)],
        [flops_case(seed) for seed in range(FLOPS)],
        REDUCED,
    ]
    digest.update(json.dumps(rest, sort_keys=True).encode())
    return digest.hexdigest()

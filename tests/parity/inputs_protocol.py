"""Batches, operations and sequence lengths of the protocol and balancing comparisons; runs in both environments."""

import hashlib
import json

import numpy as np

CASES = 24
BALANCE_CASES = ((64, 2), (64, 4), (96, 3), (128, 8), (256, 8), (512, 4), (1024, 8), (4096, 8))
STATISTICS_CASES = 4
"""The first so many balance cases are small enough to keep verl's partitions."""


def layers(seed):
    """Return tensors (numpy), columns and meta of one batch of 4 to 16 rows, divisible by 4."""
    random = np.random.RandomState(seed)
    rows = 4 * random.randint(1, 5)
    scores = random.randn(rows, 3).astype(np.float32)
    tensors = {"row": np.arange(rows), "tokens": random.randint(0, 99, size=(rows, 5)), "scores": scores}
    number = random.randn(rows)
    number[random.rand(rows) < 0.2] = np.nan
    texts = [f"u{random.randint(0, 9)}-{row}" for row in range(rows)]
    objects = [{"row": row, "list": random.randint(0, 9, size=2).tolist()} for row in range(rows)]
    return tensors, {"uid": texts, "extra_info": objects, "number": number}, {"step": int(random.randint(9)), "t": 0.5}


def choices(seed, rows):
    """Return the arguments of the operations on a batch of `rows` rows."""
    random = np.random.RandomState(1000 + seed)
    return {
        "times": int(random.randint(1, 4)),
        "divisor": int(random.randint(1, 3 * rows)),
        "size": int(random.randint(1, rows + 1)),
        "rows": random.randint(-rows, rows, size=random.randint(1, 2 * rows)),
        "keep": random.rand(rows) < 0.5,
        "order": random.permutation(rows),
        "cut": (int(random.randint(0, rows)), int(random.randint(0, rows + 3)), int(random.randint(1, 3))),
    }


def lengths(case):
    """Return the sequence lengths and the number of ranks of a balance case."""
    rows, ranks = BALANCE_CASES[case]
    drawn = np.random.RandomState(case).lognormal(6.0, 0.8, size=rows)
    return np.clip(drawn, 1, 8192).astype(np.int64), ranks


def column(values):
    """Return a one-dimensional object array."""
    made = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        made[row] = value
    return made


def operations(seed, make, pad, tensor):
    """Run every operation on case `seed` and return {name: list of batches}.

    Args:
        seed: Number of the case.
        make: (tensors, columns, meta) -> a fresh batch of the library under test.
        pad: (batch, divisor) -> (padded batch, pad size).
        tensor: numpy array -> tensor.
    """
    tensors, columns, meta = layers(seed)
    chosen = choices(seed, len(tensors["row"]))

    def fresh(keys=None, new=None):
        kept = {key: tensor(value) for key, value in tensors.items() if keys is None or key in keys}
        objects = {key: column(value) for key, value in columns.items() if keys is None or key in keys}
        return make(kept, objects, dict(meta if new is None else new))

    reordered = fresh()
    reordered.reorder(tensor(chosen["order"]))
    left = fresh(["row", "tokens", "uid", "number"])
    padded, size = pad(fresh(), chosen["divisor"])
    return {
        "chunk": fresh().chunk(4),
        "split": fresh().split(chosen["size"]),
        "repeat_interleaved": [fresh().repeat(chosen["times"], interleave=True)],
        "repeat_tiled": [fresh().repeat(chosen["times"], interleave=False)],
        "select_idxs": [fresh().select_idxs(chosen["rows"]), fresh().select_idxs(chosen["keep"])],
        "slice": [fresh().slice(*chosen["cut"]), fresh()[chosen["cut"][0] :], fresh()[:-1]],
        "reorder": [reordered],
        "concat": [type(reordered).concat([fresh(), fresh(new={**meta, "more": 1})])],
        "union": [left.union(fresh(["row", "scores", "extra_info", "number"], {"t": 0.5, "other": 2}))],
        "pop": [fresh().pop(["tokens"], ["uid"], ["t"])],
        "select": [fresh().select(["row"], ["uid", "number"], ["step"])],
        "pad_to_divisor": [padded, padded[: len(padded) - size]],
    }


def flat(batches):
    """Return everything that batches hold as one string, without the marker of padding rows, which verl lacks."""
    found = []
    for batch in batches:
        tensors = {} if batch.batch is None else {key: value.tolist() for key, value in batch.batch.items()}
        tensors.pop("is_padding", None)
        objects = {key: value.tolist() for key, value in batch.non_tensor_batch.items()}
        found.append([len(batch), tensors, objects, batch.meta_info])
    return json.dumps(found, sort_keys=True)


def fingerprint(text):
    """Return the sha256 of a text as 8 bytes: what golden files keep of a whole batch."""
    return np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], dtype=np.uint64)[0]


def digest():
    """Return the sha256 of all inputs, stored with the golden values."""
    total = hashlib.sha256()
    for seed in range(CASES):
        tensors, columns, meta = layers(seed)
        chosen = choices(seed, len(tensors["row"]))
        for value in (tensors, columns, meta, chosen):
            total.update(json.dumps(value, sort_keys=True, default=lambda array: array.tolist()).encode())
    for case in range(len(BALANCE_CASES)):
        total.update(lengths(case)[0].tobytes())
    return total.hexdigest()

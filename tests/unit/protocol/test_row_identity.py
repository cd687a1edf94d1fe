"""Random sequences of operations keep every row together across both row layers."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.protocol.padding import pad_to_divisor, unpad


def make(rows):
    ids = torch.arange(rows)
    return DataProto.from_dict(
        {"row": ids, "tokens": ids[:, None] * 10 + torch.arange(3)},
        {
            "uid": [f"u{i}" for i in range(rows)],
            "extra_info": [{"row": i} for i in range(rows)],
            "number": np.arange(rows),
        },
        {"step": 1},
    )


def identities(batch):
    ids = batch.batch["row"].tolist()
    assert batch.batch["tokens"].tolist() == [[10 * i, 10 * i + 1, 10 * i + 2] for i in ids]
    assert batch.non_tensor_batch["uid"].tolist() == [f"u{i}" for i in ids]
    assert [info["row"] for info in batch.non_tensor_batch["extra_info"]] == ids
    assert batch.non_tensor_batch["number"].tolist() == ids
    objects = [id(info) for info in batch.non_tensor_batch["extra_info"]]
    assert len(set(objects)) == len(objects), "two rows share one object"
    return ids


# Each operation: (batch, model as a plain list of row ids, a source of choices) -> the same for both.


def select(batch, ids, draw):
    index = draw(st.lists(st.integers(-len(ids), len(ids) - 1), max_size=8)) if ids else []
    return batch.select_idxs(index), [ids[i] for i in index]


def mask(batch, ids, draw):
    keep = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    return batch[np.array(keep, dtype=bool)], [i for i, kept in zip(ids, keep, strict=True) if kept]


def cut(batch, ids, draw):
    bounds = st.none() | st.integers(-10, 10)
    chosen = slice(draw(bounds), draw(bounds), draw(st.sampled_from([None, 1, 2, -1, -3])))
    return batch[chosen], ids[chosen]


def reorder(batch, ids, draw):
    order = draw(st.permutations(range(len(ids))))
    batch.reorder(order)
    return batch, [ids[i] for i in order]


def repeat(batch, ids, draw):
    times, interleave = draw(st.integers(1, 3)), draw(st.booleans())
    expected = [i for i in ids for _ in range(times)] if interleave else ids * times
    return (batch.repeat(times, interleave), expected) if len(expected) <= 64 else (batch, ids)


def split_and_concat(batch, ids, draw):
    if not ids:
        return batch, ids
    parts, size = batch.split(draw(st.integers(1, 5))), None
    order = draw(st.permutations(range(len(parts))))
    size = len(parts[0])
    return DataProto.concat([parts[i] for i in order]), [
        i for place in order for i in ids[place * size : (place + 1) * size]
    ]


def chunk_and_concat(batch, ids, draw):
    divisors = [k for k in range(1, 9) if len(ids) % k == 0]
    return DataProto.concat(batch.chunk(draw(st.sampled_from(divisors)))), ids


def fold_and_unfold(batch, ids, draw):
    divisors = [k for k in range(1, 9) if len(ids) % k == 0]
    return (batch.fold(draw(st.sampled_from(divisors))).unfold(), ids) if ids else (batch, ids)


def pad_and_unpad(batch, ids, draw):
    return unpad(*pad_to_divisor(batch, draw(st.integers(1, 9)))), ids


def pop_and_union(batch, ids, draw):
    popped = batch.pop(["tokens"], draw(st.sampled_from([["uid"], ["extra_info"], []])))
    return batch.union(popped), ids


def rename_there_and_back(batch, ids, draw):
    return batch.rename(["row", "uid"], ["uid2", "row2"]).rename(["uid2", "row2"], ["row", "uid"]), ids


OPERATIONS = [
    select,
    mask,
    cut,
    reorder,
    repeat,
    split_and_concat,
    chunk_and_concat,
    fold_and_unfold,
    pad_and_unpad,
    pop_and_union,
    rename_there_and_back,
]


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_rows_stay_together(data):
    rows = data.draw(st.integers(0, 9))
    batch, expected = make(rows), list(range(rows))
    for operation in data.draw(st.lists(st.sampled_from(OPERATIONS), max_size=6)):
        batch, expected = operation(batch, expected, data.draw)
        assert identities(batch) == expected
        assert batch.meta_info == {"step": 1}
        assert len(batch) == len(expected)


def test_the_check_sees_a_row_that_falls_apart():
    batch = make(3)
    batch.non_tensor_batch["uid"] = batch.non_tensor_batch["uid"][[1, 0, 2]]
    failed = False
    try:
        identities(batch)
    except AssertionError:
        failed = True
    assert failed

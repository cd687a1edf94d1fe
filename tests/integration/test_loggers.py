"""W&B offline: the run's numbers are in its files on one step axis, and a resumed run keeps its id."""

import json
import struct

from wandb.proto import wandb_internal_pb2

BLOCK, FILE_HEADER, HEADER = 32768, 7, 7
FULL, LAST = 1, 4


def chunks(data):
    """Cut W&B's file (blocks of LevelDB's log format) into the bytes of each record."""
    place, record = FILE_HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
        record += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (FULL, LAST):
            yield record
            record = b""


def records(folder):
    """Read the records of every offline run below a folder."""
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for data in chunks(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            yield record


def history(folder):
    rows = []
    for record in records(folder):
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            rows.append({key: json.loads(value) for key, value in items.items()})
    return rows


def test_wandb_offline_holds_every_step_and_resume_keeps_the_run(run, lines):
    options = ["logging.wandb=offline", "data.val=null", "algorithm.adv_estimator=grpo", "checkpoint.every_steps=1"]
    _, folder, _ = run(*options, "trainer.steps=2")
    run(*options, "trainer.steps=3", resume="auto")
    steps = [row["training/global_step"] for row in history(folder)]
    assert steps == [1, 2, 3]
    assert history(folder)[2]["critic/score/mean"] == lines(folder)[2]["critic/score/mean"]
    ids = {record.run.run_id for record in records(folder) if record.WhichOneof("record_type") == "run"}
    state = json.loads((folder / "checkpoints" / "step_000003" / "state.json").read_text())
    assert ids == {state["wandb_id"]}

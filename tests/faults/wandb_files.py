"""Reads what W&B wrote offline: blocks of LevelDB's log format with one protobuf record each."""

import json
import struct

from wandb.proto import wandb_internal_pb2

BLOCK, FILE_HEADER, HEADER = 32768, 7, 7
FULL, LAST = 1, 4


def chunks(data):
    """Cut a file into the bytes of each record."""
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


def records(folder, kind):
    """Return the records of one kind of every offline run below a run directory."""
    found = []
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for data in chunks(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == kind:
                found.append(getattr(record, kind))
    return found


def history(folder):
    """Return one dict per logged row."""
    rows = []
    for record in records(folder, "history"):
        rows.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.item})
    return rows

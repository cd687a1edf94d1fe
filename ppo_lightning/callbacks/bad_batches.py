"""bad_batches/step_N.safetensors: the batch of a step that updated nothing, to be looked at with DataProto.load."""

import json
from pathlib import Path
from typing import Any

from ppo_lightning.module import PPOModule
from ppo_lightning.protocol.columns import as_column
from ppo_lightning.protocol.data_proto import DataProto
from ppo_lightning.stages.finite import Fault

FOLDER = "bad_batches"

ADVICE = {
    "rollout": "the engine sampled from logits that overflow: look at the model, its dtype and rollout.dtype",
    "score": "the reward gave it: run `reward-check` on the responses in the batch",
    "update": "lower actor.lr or critic.lr, or actor.grad_clip; in bfloat16 try model.dtype=float32",
}
ELSE = "look at the rows named: the models' forward overflows on them, or a number before it was extreme"


def dump(run_dir: Path, batch: DataProto, fault: Fault, module: PPOModule) -> Path:
    """Write this rank's rows without pickle; what JSON cannot hold is written as its repr."""
    folder = run_dir / FOLDER
    folder.mkdir(exist_ok=True)
    rank = f"_rank{module.ranks.rank}" if module.ranks.size > 1 else ""
    file = folder / f"step_{module.step:06d}{rank}.safetensors"
    columns = {name: as_column([_plain(value) for value in column]) for name, column in batch.non_tensor_batch.items()}
    meta_info = {key: _plain(value) for key, value in batch.meta_info.items()} | {"fault": str(fault)}
    DataProto(batch.batch, columns, meta_info).save(file)
    return file


def diagnosis(fault: Fault, steps: int, step: int, file: Path) -> str:
    """Say why a run ends, what is safe, and where to look."""
    return (
        f"{steps} steps in a row had no update (trainer.max_skipped_steps), the last of them step {step}: {fault}. "
        f"Weights are as before them. {ADVICE.get(fault.stage, ELSE)}. The batch is in {file}"
    )


def _plain(value: Any) -> Any:
    try:
        plain = json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return repr(value)
    return plain if plain == value and type(plain) is type(value) else repr(value)

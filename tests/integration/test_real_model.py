"""GSM8K with the real model: all nine stages, old and new log-probs agree, engine and trainer agree."""

import os
from pathlib import Path

import lightning as L
import pytest
import torch

from ppo_lightning.build import quiet
from ppo_lightning.config.load import load
from ppo_lightning.config.validate import validate
from ppo_lightning.engines.kv_cache import SharedCache
from ppo_lightning.run import fit
from ppo_lightning.stages import STAGES
from ppo_lightning.stages.forward import log_probs, without_grad

GSM8K = Path(os.environ.get("PPO_LIGHTNING_GSM8K", Path(__file__).resolve().parents[3] / "shared" / "data" / "gsm8k"))
CUT = [
    "data.max_train_rows=20",
    "data.max_val_rows=2",
    "data.prompts_per_step=2",
    "rollout.rollouts_per_prompt=2",
    "rollout.response_tokens=24",
    "update.sequences_per_minibatch=2",
    "trainer.steps=1",
    "actor.lr=0.0",
    "critic.lr=0.0",
    "actor.use_kl_loss=true",
    "checkpoint.every_steps=0",
    "reward.workers=1",
]


class Ratios(L.Callback):
    """With learning rates of 0 the policy after the step is the one before it: its log-probs must be the old ones."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.recorded = list(pl_module.context.recorded)
        self.sharing, self.cache = pl_module.context.sharing, pl_module.context.roller.engine.cache
        temperature, context = batch.meta_info["temperature"], pl_module.context
        (new,) = without_grad(
            batch,
            pl_module.config.update,
            context.sharing,
            lambda chunk: log_probs(pl_module.actor, chunk, temperature, entropy=False)[:1],
        )
        valid = batch.batch["response_mask"].bool()
        ratio = (new - batch.batch["old_log_probs"]).exp()[valid]
        engine = batch.batch["rollout_log_probs"].exp() - batch.batch["old_log_probs"].exp()
        self.off_ratio = (ratio - 1).abs().max().item()
        self.gap = engine.abs()[valid].mean().item()
        self.reference = (batch.batch["ref_log_prob"] - batch.batch["old_log_probs"]).abs().max().item()


@pytest.mark.slow
@pytest.mark.skipif(
    not (GSM8K / "train.jsonl").exists(), reason="GSM8K is not beside the repository (PPO_LIGHTNING_GSM8K)"
)
@pytest.mark.usefixtures("real_model")
def test_gsm8k_runs_all_nine_stages_and_log_probs_agree(tmp_path, lines):
    quiet()
    torch.set_num_threads(2)
    files = [f"data.train={GSM8K}/train.jsonl", f"data.val={GSM8K}/test.jsonl", f"output_dir={tmp_path}"]
    loaded = load("recipes/gsm8k.yaml", [*files, *CUT])
    validate(loaded.config)
    ratios = Ratios()
    assert fit(loaded, callbacks=[ratios]) == 0
    assert ratios.recorded == [stage.name for stage in STAGES]
    assert ratios.sharing  # the real model's rounding is no reason to compute prompts again for every response
    assert ratios.cache is SharedCache
    assert ratios.off_ratio <= 1e-4
    assert ratios.gap <= 1e-4
    assert ratios.reference <= 1e-4
    step = lines(tmp_path / "gsm8k")[-1]
    assert "val-core/openai/gsm8k/acc/mean@1" in step
    assert {"reward/gsm8k/mean", "reward/gsm8k_format/mean"} <= set(step)

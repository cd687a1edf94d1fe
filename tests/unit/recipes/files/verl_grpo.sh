#!/usr/bin/env bash
set -x
# a comment with main_ppo
MODEL=${MODEL:-Qwen/Qwen2.5-0.5B-Instruct}
n=8
export MAX=1024
train_files="$HOME/data/gsm8k/train.parquet"
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files=$train_files \
    data.val_files="['$HOME/data/gsm8k/test.parquet']" \
    data.train_batch_size=256 data.max_prompt_length=512 \
    data.max_response_length=$((MAX * 2)) \
    data.filter_overlong_prompts=True \
    data.truncation='error' \
    actor_rollout_ref.model.path=$MODEL \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=40 \
    actor_rollout_ref.actor.use_kl_loss=True \
    actor_rollout_ref.actor.clip_ratio=0.3 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=$n \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    trainer.logger='["console","wandb"]' \
    trainer.n_gpus_per_node=1 trainer.nnodes=1 \
    trainer.save_freq=20 trainer.test_freq=5 \
    trainer.foo=3 trainer.experiment_name=qwen_$UNKNOWN \
    trainer.total_epochs=15 $@ 2>&1 | tee log.txt

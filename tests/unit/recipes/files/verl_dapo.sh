# Settings in arrays, arithmetic, and a token budget.
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 4))
sp_size=2
n_resp=16
NNODES=${NNODES:-2}

DATA=(
    data.train_files=rows.parquet
    data.max_prompt_length=${max_prompt_length}
    data.max_response_length=${max_response_length}
    data.train_batch_size=512
    data.truncation='left'   # cut from the left
)
ACTOR=(
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(((max_prompt_length + max_response_length) * 2))
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=${sp_size}
    actor_rollout_ref.actor.ppo_mini_batch_size=32
    actor_rollout_ref.actor.clip_ratio_high=0.28
    actor_rollout_ref.actor.optim.lr_warmup_steps=10
)
python3 -m verl.trainer.main_ppo "${DATA[@]}" "${ACTOR[@]}" \
    algorithm.adv_estimator=grpo \
    +algorithm.filter_groups.enable=True \
    algorithm.filter_groups.max_num_gen_batches=10 \
    actor_rollout_ref.rollout.name=sglang \
    actor_rollout_ref.rollout.n=${n_resp} \
    reward_model.reward_manager=dapo \
    +reward_model.reward_kwargs.overlong_buffer_cfg.enable=True \
    +reward_model.reward_kwargs.overlong_buffer_cfg.len=$((1024 * 1)) \
    +reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0 \
    trainer.nnodes="${NNODES}" \
    trainer.logger=['console'] \
    "$@" > log 2>&1

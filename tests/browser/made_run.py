"""A run directory that no training made: for pages of any length, with every kind of trouble in it."""

import json
import math
import random

WORDS = ("the", "sum", "of", "two", "is", "five", "because", "we", "count", "on", "and", "carry", "<b>one</b>", "&")
CONFIG = """\
name: {name}
seed: 1
data:
  prompts_per_step: {prompts}
  max_prompt_tokens: 64
rollout:
  rollouts_per_prompt: {samples}
  response_tokens: {width}
  temperature: 1.0
actor:
  lr: {lr}
  loss_options: {{}}
trainer:
  steps: {planned}
  devices: 2
  nodes: 1
"""
WARNING = {
    "step": 3, "event": "begins", "rule": "entropy collapse", "key": "actor/entropy", "value": 0.0123,
    "bound": "< 0.05", "advice": "raise actor.entropy_coeff",
}  # fmt: skip
HOSTILE = '</script><script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">'


def make_run(
    folder, steps, prompts=1, samples=5, width=16, planned=None, lr=1e-5, validate_every=0, seed=0, dump_every=1
):
    """Write a run directory of `steps` steps with prompts x samples responses each, and return it."""
    folder.mkdir(parents=True)
    (folder / "rollouts").mkdir()
    draw = random.Random(seed)
    text = CONFIG.format(
        name=folder.name, prompts=prompts, samples=samples, width=width, planned=planned or steps, lr=lr
    )
    (folder / "config.yaml").write_text(text)
    (folder / "warnings.jsonl").write_text(json.dumps(WARNING) + "\n")
    with (folder / "metrics.jsonl").open("w") as lines:
        if validate_every:
            lines.write(json.dumps({"step": 0, "val-core/sums/acc/mean@1": 0.1, "timing_s/testing": 2.0}) + "\n")
        for step in range(1, steps + 1):
            rows = [_row(draw, step, place, samples, width, steps) for place in range(prompts * samples)]
            lines.write(json.dumps(_metrics(draw, step, rows, width, steps, lr, validate_every)) + "\n")
            if step % dump_every == 0 or step == steps:
                dump = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
                (folder / "rollouts" / f"step_{step:06d}.jsonl").write_text(dump)
    return folder


def _row(draw, step, place, samples, width, steps):
    length = 0 if draw.random() < 0.03 else draw.randint(1, width)
    words = [f" {draw.choice(WORDS)}" for _ in range(length)]
    right = draw.random() < 0.2 + 0.7 * step / steps
    group = place // samples
    number = group + step
    return {
        "input": [{"role": "user", "content": f"What is {number} + 3? {HOSTILE if step == 2 else ''}"}],
        "output": "".join(words) if step != 2 else HOSTILE,
        "gts": str(number + 3), "score": float(right), "step": step, "uid": f"{step}-0-{group}", "data_source": "sums",
        "extra_info": {}, "prompt_length": 40 + group % 8, "response_length": length, "trained_tokens": length,
        "finish_reason": "length" if length == width else "stop" if length else "abort",
        "advantage": round(right - 0.5, 3), "acc": float(right), "pred": str(number + 3) if right else None,
        "tokens": {
            "text": words,
            "log_prob": [round(-draw.expovariate(1.5), 3) for _ in words],
            "gap": [round(draw.gauss(0, 0.01), 5) for _ in words],
            "advantage": round(right - 0.5, 3),
        },
    }  # fmt: skip


def _metrics(draw, step, rows, width, steps, lr, validate_every):
    share = step / steps
    lengths, given = (
        [row["response_length"] for row in rows],
        [row["response_length"] for row in rows if row["response_length"]],
    )
    scores = [row["score"] for row in rows]
    prompt = sum(row["prompt_length"] for row in rows)
    total, count = prompt + sum(lengths), len(rows)
    gen, update = 2 + draw.random(), 3 + draw.random() * (1 + share)
    seconds = gen + update + 0.4
    found = {
        "step": step,
        "actor/pg_loss": draw.gauss(0, 0.05), "actor/entropy": 2.5 * math.exp(-3 * share) + 0.05 * draw.random(),
        "actor/lr": lr, "actor/grad_norm": 1 + draw.random(), "actor/ppo_kl": 1e-4 * draw.random(),
        "actor/pg_clipfrac": 0.01 * draw.random(), "critic/score/mean": sum(scores) / count,
        "critic/score/max": max(scores), "critic/score/min": min(scores), "critic/rewards/mean": sum(scores) / count,
        "critic/advantages/mean": draw.gauss(0, 0.01), "critic/advantages/max": 0.5, "critic/advantages/min": -0.5,
        "response_length/mean": sum(lengths) / count, "response_length/max": max(lengths),
        "response_length/min": min(lengths),
        "response_length/clip_ratio": sum(length == width for length in lengths) / count,
        "prompt_length/mean": prompt / count, "prompt_length/max": 47, "prompt_length/min": 40,
        "response/aborted_ratio": (count - len(given)) / count,
        "training/rollout_probs_diff_mean": 1e-6 * (1 + draw.random()), "training/global_step": step,
        "timing_s/gen": gen, "timing_s/align": 0.01, "timing_s/reward": 0.2, "timing_s/adv": 0.05,
        "timing_s/update": update,
        "timing_s/update_actor": update, "timing_s/update_weights": 0.1, "timing_s/step": seconds,
        "timing_per_token_ms/gen": 1000 * gen / max(sum(lengths), 1),
        "perf/total_num_tokens": total, "perf/time_per_step": seconds, "perf/throughput": total / (seconds * 2),
        "custom/of_my_own": step * 0.5,
    }  # fmt: skip
    if given:
        found["response_length_non_aborted/mean"] = sum(given) / len(given)
    if step == 5:
        found["actor/grad_norm"] = None
    if step == steps // 2:
        found["actor/pg_loss"] = 3.0  # one peak that thinning must keep
    if validate_every and step % validate_every == 0:
        found |= {"val-core/sums/acc/mean@1": 0.1 + 0.8 * share, "timing_s/testing": 2.0}
    return found | {f"reward/part_{number}/mean": draw.random() for number in range(40)}

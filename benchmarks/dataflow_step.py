"""Time all data-flow code of one step: python benchmarks/dataflow_step.py [--rows 512 --tokens 256 --rollouts 8].

Everything between the models' calls: the calls are those of the stages, in their order, for GRPO and for PPO with a
critic; models, engine, rewards and dumps are left out. Medians of processor time on one thread.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from dataflow_inputs import PROMPT_TOKENS, Size, columns, fields  # noqa: E402

from ppo_lightning.algorithms.advantages.gae import gae  # noqa: E402
from ppo_lightning.algorithms.advantages.grpo import grpo  # noqa: E402
from ppo_lightning.config.schema import UpdateConfig  # noqa: E402
from ppo_lightning.metrics.data import data_metrics  # noqa: E402
from ppo_lightning.metrics.mismatch import mismatch_metrics  # noqa: E402
from ppo_lightning.metrics.throughput import throughput_metrics  # noqa: E402
from ppo_lightning.metrics.timing import timing_metrics  # noqa: E402
from ppo_lightning.metrics.values import MetricBook  # noqa: E402
from ppo_lightning.parallel.balance import balance  # noqa: E402
from ppo_lightning.parallel.micro_batches import restore, token_lengths  # noqa: E402
from ppo_lightning.protocol.contract import check_fields  # noqa: E402
from ppo_lightning.protocol.data_proto import DataProto  # noqa: E402
from ppo_lightning.protocol.padding import group_ids, verify_convention  # noqa: E402
from ppo_lightning.stages.actor_loss import ActorLoss  # noqa: E402
from ppo_lightning.stages.chunks import READ_BY_MODELS, micros  # noqa: E402
from ppo_lightning.stages.critic_loss import CriticLoss  # noqa: E402
from ppo_lightning.stages.optimise import cut_minibatches  # noqa: E402

STAGES, RANKS, MINIBATCHES = 9, 8, 4
UPDATE = UpdateConfig(sequences_per_microbatch=16)
Part = Iterator[tuple[str, Callable[[], Any]]]


class Step:
    """The batch of one step, and the calls that carry it through."""

    def __init__(self, size: Size, critic: bool) -> None:
        self.size, self.critic = size, critic
        self.given = {key: torch.from_numpy(value.copy()) for key, value in _rollout(size).items()}
        self.given["token_level_rewards"] = self.given["token_level_scores"]  # as without a KL penalty in the reward
        small = Size(size.rows // size.rollouts, size.tokens, 1)
        self.prompts = DataProto.from_dict(None, columns(small))
        self.batch = self.prompts
        self.modelled = torch.zeros(size.rows, size.tokens)

    def parts(self) -> Part:
        """Yield name and call of each part, in order."""
        yield "repeat", self.repeat
        yield "union", lambda: self.batch.union(DataProto.from_dict(dict(self.given)))
        yield "convention", lambda: verify_convention(self.batch)
        yield "balancing", lambda: balance(np.add(*token_lengths(self.batch)), RANKS, len(self.batch) // MINIBATCHES)
        yield "contract", lambda: [check_fields(self.batch) for _ in range(2 * STAGES)]
        forwards = 2 if self.critic else 1
        yield "log-probs and values", lambda: [self.forward() for _ in range(forwards)]
        yield "advantages", self.advantages
        losses = (ActorLoss, CriticLoss)[:forwards]
        yield "mini- and micro-batches", lambda: [self.minibatches(loss) for loss in losses]
        yield "metrics", self.metrics

    def repeat(self) -> None:
        """Repeat the prompt rows."""
        self.batch = self.prompts.repeat(self.size.rollouts)

    def forward(self) -> None:
        """Plan micro-batches of the whole batch and put what a model returned back into its order."""
        read = self.batch.select(READ_BY_MODELS)
        chunks = micros(read, UPDATE, sharing=True)
        found = [(chunk.rows, self.modelled[: len(chunk.rows), : chunk.mask.shape[1]]) for chunk in chunks]
        restore(found, len(self.batch), self.size.tokens)

    def advantages(self) -> None:
        """Run the estimator."""
        tensors = self.batch.batch
        rewards, mask = tensors["token_level_rewards"], tensors["response_mask"]
        if self.critic:
            found = gae(rewards, tensors["values"], mask, 1.0, 1.0)
        else:
            found = grpo(rewards, mask, group_ids(self.batch), True)
        tensors["advantages"], tensors["returns"] = found

    def minibatches(self, loss: type[ActorLoss | CriticLoss]) -> None:
        """Cut one epoch into mini-batches, in order, and those into micro-batches."""
        rows = np.arange(len(self.batch))
        for mini in cut_minibatches(self.batch, np.split(rows, MINIBATCHES), loss.reads):
            for _ in micros(mini, UPDATE, sharing=True):
                pass

    def metrics(self) -> None:
        """Write and compute the metrics of the batch."""
        book = MetricBook()
        data_metrics(self.batch, book, self.critic)
        mismatch_metrics(self.batch, book)
        timing_metrics(self.batch, {"gen": 1.0, "adv": 1.0, "update_actor": 1.0, "step": 1.0}, book)
        throughput_metrics(self.batch, 1.0, book)
        book.compute()


def _rollout(size: Size) -> dict[str, np.ndarray]:
    """Make what the rollout and the models wrote, as wide as the table of fields says."""
    data = fields(size)
    names = ("token_level_scores", "values", "response_mask", "attention_mask", "prompts")
    made = {name: data[name] for name in (*names, "responses", "old_log_probs")}
    ids = np.concatenate([data["prompts"], data["responses"]], axis=1)
    positions = np.clip(data["attention_mask"].cumsum(1) - 1, 0, PROMPT_TOKENS + size.tokens)
    return {**made, "rollout_log_probs": data["old_log_probs"], "input_ids": ids, "position_ids": positions}


def measure(size: Size, critic: bool, repeats: int) -> dict[str, float]:
    """Return the median milliseconds of each part."""
    step = Step(size, critic)
    taken: dict[str, list[float]] = {}
    for _ in range(repeats + 1):
        for name, call in step.parts():
            start = time.process_time()
            call()
            taken.setdefault(name, []).append(time.process_time() - start)
    return {name: statistics.median(seconds[1:]) * 1e3 for name, seconds in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=512, help="B")
    parser.add_argument("--tokens", type=int, default=256, help="R")
    parser.add_argument("--rollouts", type=int, default=8, help="n")
    parser.add_argument("--repeats", type=int, default=21)
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = Size(options.rows, options.tokens, options.rollouts)
    found = [measure(size, critic, options.repeats) for critic in (False, True)]
    print(f"B = {size.rows}, R = {size.tokens}, n = {size.rollouts}, one thread, medians of {options.repeats}, ms")
    print(f"{'part':28s} {'GRPO':>8s} {'PPO':>8s}")
    for name in found[0]:
        print(f"{name:28s} {found[0][name]:8.2f} {found[1][name]:8.2f}")
    print(f"{'all':28s} {sum(found[0].values()):8.2f} {sum(found[1].values()):8.2f}")


if __name__ == "__main__":
    main()

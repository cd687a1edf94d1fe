import pytest
import torch

from ppo_lightning.algorithms import POLICY_LOSSES
from ppo_lightning.algorithms.aggregation import LossCounts, aggregate
from ppo_lightning.algorithms.policy_losses.arguments import loss_arguments
from ppo_lightning.algorithms.tables import resolve
from ppo_lightning.config.schema import ActorConfig

OPTIONS = {"dro_beta": 0.7, "clip_cov_ratio": 0.2, "clip_cov_lb": -1.0, "clip_cov_ub": 2.0, "kl_cov_ratio": 0.2}


def random_tokens(seed=0, rows=6, width=5, spread=0.4):
    generator = torch.Generator().manual_seed(seed)
    log_prob = -torch.rand(rows, width, generator=generator, dtype=torch.float64) * 3
    lengths = torch.tensor([1, 2, 3, width, 0, 4])[torch.arange(rows) % 6]
    return {
        "old_log_prob": log_prob + spread * torch.randn(rows, width, generator=generator, dtype=torch.float64),
        "log_prob": log_prob,
        "advantages": torch.randn(rows, width, generator=generator, dtype=torch.float64),
        "response_mask": (torch.arange(width)[None] < lengths[:, None]).long(),
        "rollout_is_weights": torch.rand(rows, width, generator=generator, dtype=torch.float64) + 0.5,
    }


def call(name, tokens, selection=None, **changes):
    """Call a loss by its table entry; the selection is made over these tokens unless it is given."""
    record, actor = POLICY_LOSSES[name], ActorConfig(loss_options=OPTIONS, **changes)
    function = resolve(record.path)
    options = loss_arguments(function, actor)
    if record.selection:
        options["selection"] = select(name, tokens) if selection is None else selection
    return function(**tokens, **options)


def select(name, tokens, **more):
    function = resolve(POLICY_LOSSES[name].selection)
    four = {key: value for key, value in tokens.items() if key != "rollout_is_weights"}
    return function(**four, **more, **loss_arguments(function, ActorConfig(loss_options=OPTIONS)))


def total(name, tokens, counts, mode="token-mean", selection=None):
    loss, _ = call(name, tokens, selection)
    return aggregate(loss, tokens["response_mask"], POLICY_LOSSES[name].loss_agg_mode or mode, counts, horizon=9)


def counts_of(mask, dp_size=1):
    return LossCounts(float(mask.sum()), float(mask.any(-1).sum()), dp_size)


def rows_of(tokens, rows):
    return {key: value[rows] for key, value in tokens.items()}


@pytest.fixture
def losses():
    """Return the helpers of this file as one namespace."""
    from types import SimpleNamespace

    return SimpleNamespace(
        random_tokens=random_tokens, call=call, select=select, total=total, counts_of=counts_of, rows_of=rows_of
    )

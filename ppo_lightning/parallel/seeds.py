"""Global random generators, for whatever draws from them: dropout, and code that is not ours."""

import random

import numpy as np
import torch


def seed_globals(*key: int) -> None:
    """Seed every global generator from a key such as (seed, step, rank), so that none has a past to be saved."""
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)

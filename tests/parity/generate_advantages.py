"""Write golden/advantages.npz: what verl 0.9.1 gives for the inputs of inputs_advantages.py. Runs in the oracle.

Outcome estimators give every valid token of a row the same number, which is stored once per row with tokens; the others
are stored at all valid tokens. Where verl raises, NaN is stored. verl's recursions run on float64 inputs: in float32
its whitening of nearly equal returns is off by up to 6e-6.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos

sys.path.insert(0, str(Path(__file__).parent))
from inputs_advantages import Case, cases, difference_cases, digest, drawn_scores

GOLDEN = Path(__file__).parent / "golden" / "advantages.npz"


class Config(SimpleNamespace):
    """What estimators ask of verl's algorithm section."""

    def get(self, key: str, default: object = None) -> object:
        """Return an option."""
        return getattr(self, key, default)


def arguments(case: Case, dtype: torch.dtype = torch.float32, **options: object) -> dict[str, object]:
    """Translate a case to verl's keywords."""
    return {
        "token_level_rewards": torch.from_numpy(case.rewards.copy()).to(dtype),
        "response_mask": torch.from_numpy(case.mask.copy()),
        "index": case.uid,
        "config": Config(gamma=case.gamma, **options),
    }


def by_token(case: Case) -> dict[str, torch.Tensor]:
    """Return what the token baselines read besides."""
    return {
        "old_log_probs": torch.from_numpy(case.old_log_probs),
        "sum_pi_squared": torch.from_numpy(case.sum_pi_squared),
    }


def gae(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Call verl's GAE."""
    rewards, values = torch.from_numpy(case.rewards).double(), torch.from_numpy(case.values).double()
    return core_algos.compute_gae_advantage_return(rewards, values, torch.from_numpy(case.mask), case.gamma, case.lam)


def reinforce_plus_plus(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Call verl's REINFORCE++."""
    return core_algos.compute_reinforce_plus_plus_outcome_advantage(**arguments(case, torch.float64))


def float32_plus_plus(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Call verl's REINFORCE++ in the type that a run has."""
    return core_algos.compute_reinforce_plus_plus_outcome_advantage(**arguments(case))


def grpo(case: Case, by_std: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Call verl's GRPO."""
    return core_algos.compute_grpo_outcome_advantage(**arguments(case), norm_adv_by_std_in_grpo=by_std)


def gdpo(case: Case, by_std: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Call verl's GDPO on two parts, with weights."""
    keywords = arguments(case, gdpo_reward_keys=["a", "b"], gdpo_reward_weights=[1.0, 0.5])
    prompts = torch.ones(len(case.mask), 1, dtype=torch.int64)
    lengths = torch.from_numpy(case.mask).sum(-1, keepdim=True)
    attention = torch.arange(case.mask.shape[1]) < lengths
    return core_algos.compute_gdpo_outcome_advantage(
        **keywords,
        norm_adv_by_std_in_grpo=by_std,
        non_tensor_batch={"a": case.parts[:, 0], "b": case.parts[:, 1]},
        batch={"prompts": prompts, "attention_mask": torch.cat([prompts, attention.long()], dim=1)},
    )


def passk(case: Case, by_std: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Call verl's GRPO for pass@k."""
    return core_algos.compute_grpo_passk_outcome_advantage(**arguments(case, norm_adv_by_std_in_grpo=by_std))


ROWS: dict[str, Callable[[Case], tuple[torch.Tensor, torch.Tensor]]] = {
    "grpo": lambda case: grpo(case, True),
    "grpo_no_std": lambda case: grpo(case, False),
    "grpo_vectorized": lambda case: core_algos.compute_grpo_vectorized_outcome_advantage(**arguments(case)),
    "grpo_passk": lambda case: passk(case, True),
    "grpo_passk_no_std": lambda case: passk(case, False),
    "gdpo": lambda case: gdpo(case, True),
    "gdpo_no_std": lambda case: gdpo(case, False),
    "reinforce_plus_plus_baseline": lambda case: core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(
        **arguments(case)
    ),
    "rloo": lambda case: core_algos.compute_rloo_outcome_advantage(**arguments(case)),
    "rloo_vectorized": lambda case: core_algos.compute_rloo_vectorized_outcome_advantage(**arguments(case)),
    "opo": lambda case: core_algos.compute_opo_outcome_advantage(**arguments(case)),
    "gpg": lambda case: core_algos.compute_gpg_outcome_advantage(**arguments(case)),
}

TOKENS: dict[str, Callable[[Case], tuple[torch.Tensor, torch.Tensor]]] = {
    "gae": gae,
    "reinforce_plus_plus": reinforce_plus_plus,
    "remax": lambda case: core_algos.compute_remax_outcome_advantage(
        **arguments(case), reward_baselines=torch.from_numpy(case.baselines)
    ),
    "optimal_token_baseline": lambda case: core_algos.compute_optimal_token_baseline_advantage(
        **arguments(case), **by_token(case), rollout_is_weights=torch.from_numpy(case.is_weights)
    ),
    "optimal_token_baseline_tail": lambda case: core_algos.compute_optimal_token_baseline_advantage(
        **arguments(case), **by_token(case), handle_zero_tail=False
    ),
    "tir_optimal_token_baseline": lambda case: core_algos.compute_multi_turn_optimal_token_baseline_advantage(
        **arguments(case), **by_token(case)
    ),
}


def row_values(output: torch.Tensor, mask: torch.Tensor, name: str) -> np.ndarray:
    """Return one number per row with tokens, all of whose tokens must agree."""
    kept = mask.bool()
    rows = kept.any(-1)
    first = output.gather(1, kept.long().argmax(-1, keepdim=True))
    constant = (torch.where(kept, output - first, 0.0).nan_to_num() == 0).all()
    assert constant, f"{name} is no outcome estimator"
    return first[rows, 0].numpy().astype(np.float32)


def valid_values(output: torch.Tensor | None, mask: torch.Tensor, name: str, count: int) -> np.ndarray:
    """Return what is stored of one output: NaN where verl raised."""
    if output is None:
        return np.full(count, np.nan, dtype=np.float32)
    return row_values(output, mask, name) if name in ROWS else output[mask.bool()].numpy().astype(np.float32)


def golden() -> dict[str, np.ndarray]:
    """Run everything."""
    found: dict[str, list[np.ndarray]] = {}
    for case in cases():
        mask = torch.from_numpy(case.mask)
        for name, function in {**ROWS, **TOKENS}.items():
            count = int(mask.any(-1).sum()) if name in ROWS else int(mask.sum())
            try:
                advantages, returns = function(case)
            except ValueError:
                advantages = returns = None
            found.setdefault(name, []).append(valid_values(advantages, mask, name, count))
            if name in ("gae", "reinforce_plus_plus", "remax"):
                found.setdefault(f"{name}.returns", []).append(valid_values(returns, mask, name, count))
    return {name: np.concatenate(parts).astype(np.float32) for name, parts in found.items()}


def differences() -> dict[str, np.ndarray]:
    """Run the inputs on which we differ on purpose: advantages (B, R), or an empty array where verl raises."""
    functions = {**ROWS, **TOKENS}
    found = {}
    for name, (estimator, case) in difference_cases().items():
        try:
            function = float32_plus_plus if name == "level" else functions[estimator]
            found[f"difference.{name}"] = function(case)[0].numpy().astype(np.float32)
        except ValueError:
            found[f"difference.{name}"] = np.empty(0, dtype=np.float32)
    return found


def draws() -> dict[str, np.ndarray]:
    """Return the rows that PF-PPO draws."""
    found = {}
    for method in ("pow", "max_min", "max_random"):
        rows = []
        for seed in range(50):
            scores = torch.from_numpy(drawn_scores(seed)).unsqueeze(-1)
            batch = {"token_level_scores": scores, "row": torch.arange(len(scores))}
            torch.manual_seed(seed)
            drawn = core_algos.compute_pf_ppo_reweight_data(DataProto.from_dict(batch), method, 1.5)
            rows.append(drawn.batch["row"].numpy().astype(np.int16))
        found[f"pf_ppo.{method}"] = np.concatenate(rows)
    return found


if __name__ == "__main__":
    np.savez_compressed(GOLDEN, inputs=np.array(digest()), **golden(), **differences(), **draws())
    sys.stdout.write(f"{GOLDEN.name}: {GOLDEN.stat().st_size / 1024:.0f} KB\n")

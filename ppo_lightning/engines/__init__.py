"""What generates responses: a visible table of engines by the name that `rollout.engine` gives. Imports no torch.

An entry is `build(config, module) -> Engine` (engines/base.py), called once the strategy has set up its ranks. Your own
needs no entry: `rollout.engine=module:function`.
"""

from ppo_lightning.algorithms.tables import look_up

ENGINES = {
    "transformers": "ppo_lightning.engines.transformers:build_transformers",
    "vllm": "ppo_lightning.engines.vllm:build_vllm",
    "vllm_server": "ppo_lightning.engines.vllm_server:build_server_engine",
}
"""name -> module:function."""


def find_engine(name: str) -> str:
    """Return the `module:function` that builds the engine `rollout.engine` names.

    Raises:
        ConfigError: no entry has this name.
    """
    return name if ":" in name else look_up(ENGINES, name, "rollout.engine")

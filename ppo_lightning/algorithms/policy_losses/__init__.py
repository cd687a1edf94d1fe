"""Policy losses: token losses before aggregation, one file each, listed in `ppo_lightning.algorithms`."""

"""The verbs of the command line, one file each; `ppo_lightning.cli.VERBS` lists them. Imports no torch."""

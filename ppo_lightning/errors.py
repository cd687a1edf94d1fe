"""What a user can do wrong, as one small tree. The command line turns each into one message and exit code 2."""


class PPOLightningError(ValueError):
    """Something that the user or the data must change; its text says what, where and how."""


class ConfigError(PPOLightningError):
    """A key, a value or a combination of keys in the configuration."""


class DataError(PPOLightningError):
    """A file, a row or a batch that does not hold what it must."""


class RewardError(PPOLightningError):
    """A reward function, scorer or reward model that cannot be used or fails too often."""


class EngineError(PPOLightningError):
    """A rollout engine that cannot start, lacks a dependency or returned what it must not."""


class CheckpointError(PPOLightningError):
    """A checkpoint that is damaged, missing or belongs to another run."""


class DivergedError(PPOLightningError):
    """A run whose gradients are not finite, stopped before anything was damaged."""

"""What a user can do wrong, as one small tree. The command line turns each into one message and exit code 2."""


class PPOLightningError(ValueError):
    """Something that the user or the data must change; its text says what, where and how.

    Attributes:
        exit_code: what the command line ends with.
    """

    exit_code: int = 2


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


class RankFailedError(PPOLightningError):
    """Another rank of the run failed; raised on the first rank, with that rank's message and exit code."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code

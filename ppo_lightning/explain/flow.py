"""One step under one recipe as data: stages, what flows between them, and the reason for everything left out.

Imports no torch. The table, the page and the picture are drawn from this.
"""

from dataclasses import dataclass

from ppo_lightning.config.schema import Config
from ppo_lightning.explain.uses import READS, WRITES, uses_of
from ppo_lightning.protocol.fields import FIELDS, META, Field
from ppo_lightning.stages import STAGES

LOADER, LOADER_HOOK, PADDING = "data", "on_before_batch_transfer", "padding"
ONLY_INSIDE = {"entropys": "popped by its stage", "selection": "one mini-batch"}
"""Fields that no later stage can see."""

NO_PADDING = "only in a batch that was filled up, or where reward.on_error=drop took rows out"


@dataclass(frozen=True)
class Touch:
    """A field at a stage; `off`: why it is not there under this recipe."""

    field: Field
    off: str | None


@dataclass(frozen=True)
class StageView:
    """One stage under a recipe; `off`: why it does not run."""

    number: int
    name: str
    hook: str
    timer: str
    off: str | None
    reads: tuple[Touch, ...]
    writes: tuple[Touch, ...]


@dataclass(frozen=True)
class FieldView:
    """One field under a recipe.

    Attributes:
        field: its declaration.
        writers: stages that write it, in order.
        readers: stages that read it, in order.
        lifetime: from the first writer to the last reader, in words.
        off: why no stage writes it.
    """

    field: Field
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    lifetime: str
    off: str | None


@dataclass(frozen=True)
class Flow:
    """A step under a recipe: stage 0 is the loader."""

    config: Config
    stages: tuple[StageView, ...]
    fields: tuple[FieldView, ...]

    @property
    def axes(self) -> dict[str, int]:
        """Sizes of B, n, P, R and S."""
        rows, n = self.config.data.prompts_per_step, self.config.rollout.rollouts_per_prompt
        widths = self.config.data.max_prompt_tokens, self.config.rollout.response_tokens
        return {"B": rows * n, "n": n, "P": widths[0], "R": widths[1], "S": sum(widths)}


def flow(config: Config) -> Flow:
    """Return what one step does under a configuration."""
    stages = (_loader(), *(_stage(number, config) for number in range(len(STAGES))))
    return Flow(config, stages, tuple(_field(name, stages) for name in FIELDS))


def shape(field: Field) -> str:
    """Return axes and dtype in words: `(B, R) float32`, or `per step, int`."""
    return f"per step, {field.dtype}" if field.layer == META else f"({', '.join(field.axes)}) {field.dtype}"


def _loader() -> StageView:
    written = tuple(Touch(field, None) for field in FIELDS.values() if field.stage == LOADER)
    per_step = tuple(Touch(FIELDS[name], None) for name in ("eos_token_id", "pad_token_id"))
    return StageView(0, LOADER, LOADER_HOOK, "", None, (), (*written, *per_step))


def _stage(index: int, config: Config) -> StageView:
    stage = STAGES[index]
    off = stage.skipped_because(config)
    touches: dict[str, list[Touch]] = {READS: [], WRITES: []}
    for use in uses_of(stage):
        why = use.off(config) or off if use.way == WRITES else off or use.off(config)
        touches[use.way].append(Touch(FIELDS[use.key], why))
    return StageView(index + 1, stage.name, stage.hook, stage.timer, off, tuple(touches[READS]), tuple(touches[WRITES]))


def _field(name: str, stages: tuple[StageView, ...]) -> FieldView:
    field = FIELDS[name]
    writes = [(stage.name, touch.off) for stage in stages for touch in stage.writes if touch.field == field]
    writers = tuple(stage for stage, off in writes if off is None)
    readers = tuple(s.name for s in stages for touch in s.reads if touch.field == field and touch.off is None)
    if field.stage == PADDING:
        return FieldView(field, (), (), "-", NO_PADDING)
    if not writers:
        own = next((off for stage, off in writes if stage == field.stage), None)
        return FieldView(field, (), (), "-", own or (writes[0][1] if writes else "no stage writes it"))
    if name in ONLY_INSIDE:
        return FieldView(field, writers, readers, f"{writers[0]}: {ONLY_INSIDE[name]}", None)
    last = readers[-1] if readers else writers[-1]
    return FieldView(field, writers, readers, writers[0] if last == writers[0] else f"{writers[0]} -> {last}", None)

"""The table of stages and the table of fields tell one story (SPEC 4)."""

from ppo_lightning.algorithms import ADVANTAGES
from ppo_lightning.protocol.fields import FIELDS
from ppo_lightning.stages import STAGES

ORDER = ["rollout", "align", "score", "old_log_prob", "ref_log_prob", "values", "advantage", "update", "settle"]
BUILT_FOR_THE_CALL = {"group", "reward_parts"}
"""What estimators read that is no key of the batch: ids from `uid`, columns that the configuration names."""

ALSO_WRITTEN_BY = {
    ("response_mask", "align"),  # if the engine gave none
    ("old_log_probs", "update"),  # its own forward's, when the update is strictly on-policy
}


def test_order():
    assert [stage.name for stage in STAGES] == ORDER


def test_what_stages_read_and_write_is_declared():
    keys = {key for stage in STAGES for key in (*stage.reads, *stage.writes)}
    assert sorted(keys - FIELDS.keys()) == []


def test_fields_name_the_stage_that_writes_them():
    assert {declared.stage for declared in FIELDS.values()} - {"data", "padding"} <= set(ORDER)
    wrong = {
        (key, stage.name)
        for stage in STAGES
        for key in stage.writes
        if FIELDS[key].stage != stage.name and (key, stage.name) not in ALSO_WRITTEN_BY
    }
    assert wrong == set()


def test_nothing_is_read_before_it_is_written():
    for place, stage in enumerate(STAGES):
        for key in stage.reads:
            writer = FIELDS[key].stage
            assert writer in ("data", "padding") or ORDER.index(writer) <= place, (stage.name, key)


def test_what_estimators_read_is_declared():
    reads = {key for entry in ADVANTAGES.values() for key in (*entry.reads, *entry.optional)}
    assert sorted(reads - FIELDS.keys() - BUILT_FOR_THE_CALL) == []

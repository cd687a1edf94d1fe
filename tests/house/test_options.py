"""Every option has one home for its default, is read somewhere, and there are not too many."""

import ast
import dataclasses
import functools
import re

from house_sources import imported, modules

from ppo_lightning.algorithms import ADVANTAGES, POLICY_LOSSES
from ppo_lightning.config.schema import Config, leaves

LEAVES = 142
PENDING: set[str] = set()
"""Options that no code reads yet; to be empty at a release."""

EXPLAINS = "ppo_lightning/metrics/spec.py"
"""Says which option keeps a metric out of a run: acts on none of them."""

OURS = re.compile(r"((self|context)\.)?config\b")  # not the configuration of a model, `policy.config`


@functools.cache
def reads():
    """Return every attribute read outside config/, as (names it is taken from, attribute), and the files' texts.

    `config.reward.path` is ("reward", "path"); `self.config.path` in a file that names RewardConfig counts as well.
    """
    sections = {
        item.default_factory: item.name
        for item in dataclasses.fields(Config)
        if hasattr(item.type, "__dataclass_fields__")
    }
    found = set()
    for path, tree in modules().items():
        if path.startswith("ppo_lightning/config/") or path == EXPLAINS:
            continue
        named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        named |= {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        local = {section for cls, section in sections.items() if cls.__name__ in named}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                owner = node.value
                source = (
                    owner.attr
                    if isinstance(owner, ast.Attribute)
                    else owner.id
                    if isinstance(owner, ast.Name)
                    else None
                )
                found |= {(source, node.attr), *((section, node.attr) for section in local)}
    for section, table in (("algorithm", ADVANTAGES), ("actor", POLICY_LOSSES)):
        found |= {(section, name) for entry in table.values() for name in entry.options}
    return found


def unread():
    """Return the dotted keys that nothing reads; a name that only one section has counts from wherever it is taken."""
    found = reads()
    names = [key.rpartition(".")[2] for key in leaves()]
    anywhere = {name for _, name in found}
    missing = set()
    for key in leaves():
        section, _, name = key.rpartition(".")
        unique = names.count(name) == 1
        if not (name in anywhere if unique else (section or "config", name) in found):
            missing.add(key)
    return missing


def test_every_option_is_read():
    assert sorted(unread() - PENDING) == []


def test_pending_holds_only_options_that_nothing_reads_yet():
    assert sorted(PENDING - unread()) == [], "these are read now: delete them from PENDING"


def test_an_option_that_nothing_reads_is_seen():
    assert ("reward", "an_option_that_does_not_exist") not in reads()
    assert {name for _, name in reads()} > {"adv_estimator", "rollouts_per_prompt"}


def test_number_of_options():
    assert len(leaves()) <= LEAVES


def test_every_option_has_a_meaning():
    assert [key for key, item in leaves().items() if not item.metadata.get("doc")] == []


def test_defaults_live_in_the_schema_only():
    wrong = []
    for path, tree in modules().items():
        if not any(name.startswith("ppo_lightning.config") for name in imported(tree)):
            continue  # a `config` in there is a model's
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            target = ast.unparse(node.func)
            with_default = target.endswith(".get") and len(node.args) == 2 and OURS.match(target)
            getter = target == "getattr" and len(node.args) == 3 and OURS.match(ast.unparse(node.args[0]))
            if with_default or getter:
                wrong.append(f"{path}:{node.lineno} {ast.unparse(node)}")
    assert wrong == []

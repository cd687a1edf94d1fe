"""Files and functions stay small enough to be read in one go."""

import ast

from house_sources import ROOT, modules, tracked

FILE, MODULE, FUNCTION = 400, 250, 60


def test_files():
    files = [name for name in tracked() if name.endswith(".py")]
    assert files
    caps = {name: MODULE if name == "ppo_lightning/module.py" else FILE for name in files}
    lines = {name: len((ROOT / name).read_text().splitlines()) for name in files}
    assert {name: count for name, count in lines.items() if count > caps[name]} == {}


def test_functions():
    long = {}
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = node.end_lineno - node.lineno + 1
                if size > FUNCTION:
                    long[f"{name}:{node.name}"] = size
    assert long == {}


def test_helpers_live_with_their_users():
    assert [
        name for name in tracked() if name.rpartition("/")[2] in ("utils.py", "helpers.py", "common.py", "misc.py")
    ] == []

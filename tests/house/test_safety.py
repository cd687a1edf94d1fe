"""Nothing is unpickled, evaluated or imported from data."""

import ast

from house_sources import imported, modules

UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "os.system", "yaml.load", "yaml.unsafe_load"}
LOADERS = {"torch.load"}
TO_OWN_WORKERS = {
    # Requests go to processes that the run itself started; what comes back from them is JSON.
    "ppo_lightning/rewards/pool.py",
    "ppo_lightning/rewards/process.py",
    "ppo_lightning/rewards/worker.py",
}


def calls():
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield f"{path}:{node.lineno}", ast.unparse(node.func), {word.arg: word.value for word in node.keywords}


def constant(value):
    return value.value if isinstance(value, ast.Constant) else None


def test_no_pickle():
    found = {
        path for path, tree in modules().items() for name in imported(tree) if name.split(".")[0] in UNSAFE_MODULES
    }
    assert sorted(found - TO_OWN_WORKERS) == []


def test_torch_load_is_weights_only():
    assert [
        place for place, name, words in calls() if name in LOADERS and constant(words.get("weights_only")) is not True
    ] == []


def test_numpy_never_unpickles():
    assert [
        place for place, name, words in calls() if name.endswith(".load") and constant(words.get("allow_pickle"))
    ] == []


def test_no_evaluation():
    assert [(place, name) for place, name, _ in calls() if name in UNSAFE_CALLS] == []


def test_no_shell():
    assert [place for place, _, words in calls() if constant(words.get("shell"))] == []


def test_no_class_paths_in_data():
    hits = [
        f"{path}:{node.lineno}"
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value == "_target_"
    ]
    assert hits == []

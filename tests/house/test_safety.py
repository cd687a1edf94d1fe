"""Nothing is unpickled, evaluated or imported from data."""

import ast

import pytest
from house_sources import imported, modules

UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
UNSAFE_CALLS = {
    "eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "os.system", "os.popen", "yaml.load",
    "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "jinja2.Environment", "jinja2.Template",
}  # fmt: skip
BARE_LOADERS = {"torch.load", "numpy.load", "yaml.load", "yaml.unsafe_load", "os.system"}
"""Not to be imported by name: a bare `load` would be seen by none of the checks."""

TO_OWN_WORKERS = {
    # Requests go to processes that the run itself started; what comes back from them is JSON.
    "ppo_lightning/rewards/pool.py",
    "ppo_lightning/rewards/process.py",
    "ppo_lightning/rewards/worker.py",
}


def constant(value):
    return value.value if isinstance(value, ast.Constant) else None


def dangers(tree):
    """Yield (line, code) of everything that could run what a file holds."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name, words = ast.unparse(node.func), {word.arg: word.value for word in node.keywords}
        unsafe = (
            name in UNSAFE_CALLS
            or (name == "torch.load" and constant(words.get("weights_only")) is not True)
            or ("allow_pickle" in words and constant(words["allow_pickle"]) is not False)
            or ("shell" in words and constant(words["shell"]) is not False)
            or constant(words.get("trust_remote_code")) is True
            or name.endswith(("read_pickle", "to_pickle"))
        )
        if unsafe:
            yield node.lineno, ast.unparse(node)


def unsafe_imports(tree):
    """Return the names of modules that unpickle, and of loaders imported bare."""
    names = set(imported(tree))
    return {name for name in names if name.split(".")[0] in UNSAFE_MODULES or name in BARE_LOADERS}


def test_nothing_runs_what_a_file_holds():
    assert [(path, *found) for path, tree in modules().items() for found in dangers(tree)] == []


def test_no_pickle():
    found = {path: unsafe_imports(tree) for path, tree in modules().items() if path not in TO_OWN_WORKERS}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
        "np.load(f, allow_pickle=True)",
        "np.load(f, allow_pickle=x)",
        "yaml.load(f, Loader=yaml.Loader)",
        "yaml.unsafe_load(f)",
        "eval(x)",
        "exec(x)",
        "subprocess.run(x, shell=True)",
        "os.system(x)",
        "__import__(x)",
        "pandas.read_pickle(f)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
    ],
)
def test_the_check_sees(code):
    assert len(list(dangers(ast.parse(code)))) == 1


@pytest.mark.parametrize(
    "code", ["import pickle", "from pickle import loads", "import dill as d", "from torch import load"]
)
def test_the_check_sees_imports(code):
    assert len(unsafe_imports(ast.parse(code))) == 1


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(f, weights_only=True)",
        "np.load(f)",
        "np.load(f, allow_pickle=False)",
        "json.load(f)",
        "yaml.safe_load(f)",
        "AutoModel.from_pretrained(x, trust_remote_code=config.trust_remote_code)",
        "model.eval()",
        "subprocess.run([x])",
    ],
)
def test_the_check_lets_pass(code):
    assert list(dangers(ast.parse(code))) == []


def test_no_class_paths_in_data():
    hits = [
        f"{path}:{node.lineno}"
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value == "_target_"
    ]
    assert hits == []

"""The tiny model and runs of tests/integration, and runs that several tests of a file share."""

import contextlib
import importlib.util
import io
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
_spec = importlib.util.spec_from_file_location("integration_conftest", HERE.parent / "integration" / "conftest.py")
_integration = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_integration)
real_model, tiny_model, lines = _integration.real_model, _integration.tiny_model, _integration.lines


@pytest.fixture(scope="session")
def fit_tiny(tiny_model):
    """Return a function that runs overrides on the tiny model; it returns (exit code, run directory, what was said)."""

    def go(folder, *overrides, name="run", resume="never", callbacks=()):
        _integration.quiet()
        _integration.torch.set_num_threads(1)
        places = [f"model.path={tiny_model}", f"output_dir={folder}", f"name={name}"]
        loaded = _integration.load(None, [*_integration.SMALL, *places, *overrides])
        _integration.validate(loaded.config)
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = _integration.fit(loaded, resume, list(callbacks))
        return code, Path(folder) / name, said.getvalue()

    return go

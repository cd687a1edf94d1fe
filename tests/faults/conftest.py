import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "files"))


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Folder of a model that takes milliseconds per step."""
    from fault_rigs import save_model

    return save_model(tmp_path_factory.mktemp("model"))

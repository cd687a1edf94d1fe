"""What a bug report holds, and that it holds no secrets."""

from ppo_lightning import __version__
from ppo_lightning.environment import environment, in_words, versions


def test_it_names_versions_and_machine():
    known = environment()
    assert known["ppo_lightning"].startswith(__version__)
    assert known["packages"].startswith("torch ")
    assert "GiB" in known["memory"]
    assert known["versions"] not in in_words(known) or known["packages"].startswith(known["versions"])
    assert versions(("not-a-package-of-anybody",)) == {}


def test_values_of_variables_are_hidden(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "s3cret-value")
    monkeypatch.setenv("HF_TOKEN", "s3cret-value")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:s3cret-value@proxy")
    monkeypatch.setenv("OMP_NUM_THREADS", "s3cret-value")
    monkeypatch.setenv("MY_DIARY", "x")
    known = environment()
    assert "s3cret" not in in_words(known)
    assert {"WANDB_API_KEY", "HF_TOKEN", "HTTPS_PROXY"} <= set(known["variables"].split(", "))
    assert "MY_DIARY" not in known["variables"]

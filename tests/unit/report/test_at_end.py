import pytest

from ppo_lightning.report.at_end import leave_report
from ppo_lightning.report.reading import FAILURE, read_run


def test_a_run_that_ends_well(made):
    folder, said = made(), []
    (folder / FAILURE).write_text("of an earlier start")
    leave_report(folder, said.append)
    assert said == [f"report: {folder / 'report.html'}"]
    assert not (folder / FAILURE).exists()


def test_what_ended_the_run_is_kept_and_goes_on(made):
    folder, said = made(planned=20), []

    def run():
        try:
            raise RuntimeError("out of <memory>")
        finally:
            leave_report(folder, said.append)

    with pytest.raises(RuntimeError, match="out of <memory>"):
        run()
    assert read_run(folder).failure == "RuntimeError: out of <memory>"
    assert "ended after step 12 of 20: RuntimeError: out of &lt;memory&gt;" in (folder / "report.html").read_text()


def test_a_failing_report_is_said_and_hides_nothing(made):
    folder, said = made(), []
    (folder / "report.html").mkdir()
    leave_report(folder, said.append)
    assert "report: not written, DataError" in said[0]
    assert f"python -m ppo_lightning report {folder}" in said[0]
    leave_report(folder / "nowhere", said.append)
    assert "not written" in said[1]


@pytest.mark.parametrize("ended_by", [SystemExit(0), KeyboardInterrupt()])
def test_a_run_that_was_stopped_has_not_failed(made, ended_by):
    folder = made(planned=20)

    def run():
        try:
            raise ended_by
        finally:
            leave_report(folder, lambda line: None)

    with pytest.raises(type(ended_by)):
        run()
    assert read_run(folder).failure is None
    assert "it was stopped" in (folder / "report.html").read_text()

from ppo_lightning.errors import DataError, RankFailedError
from ppo_lightning.parallel.failure import described


def caught(error):
    try:
        raise error
    except (Exception, KeyboardInterrupt) as raised:  # noqa: BLE001 - any error will do
        return raised


def test_what_a_user_can_mend_is_told_without_a_traceback():
    assert described(caught(DataError("row 3 is bad"))) == (2, "row 3 is bad")


def test_a_bug_is_told_with_its_traceback_and_its_message_last():
    code, text = described(caught(ZeroDivisionError("by zero")))
    assert code == 1
    assert text.startswith("Traceback")
    assert text.splitlines()[-1] == "ZeroDivisionError: by zero"


def test_an_interruption_is_no_bug():
    assert described(caught(KeyboardInterrupt())) == (130, "interrupted")


def test_the_first_rank_ends_with_the_code_of_the_rank_that_failed():
    assert RankFailedError("rank 1 of 2 failed", 7).exit_code == 7
    assert DataError("x").exit_code == 2

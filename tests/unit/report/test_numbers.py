import pytest

from ppo_lightning.report.numbers import printed, rounded, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (1234567, "1,234,567"),
        (4.0, "4"),
        (6.015625, "6.01563"),  # an exact half: away from zero
        (1000.125, "1,000.13"),
        (-1000.125, "-1,000.13"),
        (0.05, "0.05"),
        (20 / 3, "6.66667"),
        (999999.5, "1,000,000"),
        (1 / 385, "0.0025974"),
        (1e-5, "0.00001"),
        (1.25e-7, "1.25e-7"),
        (2e-9, "2e-9"),
        (float("nan"), "nan"),
    ],
)
def test_printed(value, text):
    assert printed(value) == text


def test_formatting_by_python_rounds_the_half_to_even():
    assert f"{1000.125:.6g}" == "1000.12"
    assert printed(1000.125) == "1,000.13"


def test_rounded_keeps_six_digits_and_no_nan():
    assert rounded(1.23456789) == 1.23457
    assert rounded(3.0) == 3
    assert isinstance(rounded(3.0), int)
    assert [rounded(value) for value in (None, float("nan"), float("inf"), "text")] == [None] * 4


@pytest.mark.parametrize(
    ("value", "text"), [(4.26, "4.3 s"), (59.4, "59 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")]
)
def test_seconds(value, text):
    assert seconds(value) == text

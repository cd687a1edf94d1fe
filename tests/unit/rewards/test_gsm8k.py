"""The GSM8K scorers: a table of answer forms with the reason for each verdict, and every gold answer."""

import json
import os
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppo_lightning.rewards.scorers.gsm8k import extract, gsm8k, gsm8k_flexible, gsm8k_format, gsm8k_strict, shown
from ppo_lightning.rewards.scorers.numbers import read_number

ROOT = Path(__file__).parents[3]
TAIL = "\n\nLet me check that once more. " + "The steps above are all fine. " * 20
RIGHT = [
    # the marker
    ("#### 5", "5", "the form of the data set"),
    ("####5", "5", "no space after the marker"),
    ("####   5", "5", "more space"),
    ("####\n5", "5", "the number on the next line"),
    ("2 + 3 = 5\n#### 5", "5", "after the solution"),
    ("##### 5", "5", "a marker of five signs is still a marker"),
    ("\uff03\uff03\uff03\uff03 5", "5", "full-width marker"),
    ("#### 7\nno, wait\n#### 5", "5", "last marker wins"),
    ("#### 5\n#### none of the above", "5", "a later marker without a number says nothing"),
    ("#### Step 1\nadd 2 and 3\n#### 5", "5", "headings are no answers"),
    ("#### Step 1\nadd 2 and 3.\nThe answer is 5.", "5", "only headings: what the text states"),
    ("#### 5" + TAIL, "5", "a right answer followed by a tail of more than 300 characters"),
    ("#### 5\n\nQuestion: 3 + 4? The answer is 7", "5", "the model went on with a question of its own"),
    ("#### 5####", "5", "marker closed like a heading"),
    ("#### The answer is 5", "5", "words after the marker"),
    ("#### 3 + 2 = 5", "5", "of an equation the result"),
    ("#### x = 5", "5", "of an equation the result"),
    ("#### 5 (x = 3)", "5", "what comes after the number is a remark"),
    # no marker
    ("5", "5", "the number alone"),
    ("The answer is 5", "5", "stated"),
    ("The answer is: **$5.00**.", "5", "stated, in bold, with cents"),
    ("**Answer:** 5 eggs", "5", "stated"),
    ("Final answer = 5 because 2 + 3", "5", "stated before the reason"),
    ("So she has 2 + 3 = 5 eggs", "5", "last number of the text"),
    ("I get \\boxed{7}, no, \\boxed{5}", "5", "last box"),
    ("\\boxed{\\text{5 eggs}} of 12", "5", "a box wins over numbers after it"),
    # signs
    ("#### -3", "-3", "negative"),
    ("#### - 3", "-3", "space after the sign"),
    ("#### \u22123", "-3", "Unicode minus"),
    ("#### +5", "5", "plus"),
    ("#### -$3", "-3", "sign before the currency"),
    ("#### $-3", "-3", "sign after the currency"),
    # thousands
    ("#### 1,234", "1234", "comma"),
    ("#### 1,234,567", "1234567", "two commas"),
    ("#### 1,00,000", "100000", "Indian grouping"),
    ("#### 1 234", "1234", "space"),
    ("#### 1\u202f234", "1234", "narrow no-break space"),
    ("#### 1'234", "1234", "apostrophe"),
    ("#### 1_234", "1234", "underscore"),
    ("#### 1{,}234", "1234", "LaTeX comma"),
    ("#### 1\\,234", "1234", "LaTeX thin space"),
    ("#### $1,234.50", "1234.5", "comma and decimals"),
    # decimals
    ("#### 5.", "5", "full stop"),
    ("#### 5.00", "5", "zeros"),
    ("#### 5,", "5", "trailing comma"),
    ("#### .5", "0.5", "no leading zero"),
    ("#### 007", "7", "leading zeros"),
    # currency, units, percent
    ("#### $5", "5", "dollar"),
    ("#### \\$5", "5", "escaped dollar"),
    ("#### 5$", "5", "dollar behind"),
    ("#### \u20ac5", "5", "euro"),
    ("#### 5 USD", "5", "currency code"),
    ("#### USD5", "5", "currency code in front"),
    ("#### 5 dollars", "5", "unit"),
    ("#### 5kg", "5", "unit without space"),
    ("#### 5 m\u00b2", "5", "a superscript of a unit is no digit"),
    ("#### 5 m^2", "5", "nor is an exponent of a unit"),
    ("#### 5%", "5", "percent is a unit"),
    # wrappers
    ("#### **5**", "5", "bold"),
    ("#### `5`", "5", "code"),
    ("#### (5)", "5", "parentheses"),
    ("#### <5>", "5", "angle brackets"),
    ("#### $5$", "5", "LaTeX maths"),
    ("#### $\\boxed{5}$", "5", "LaTeX box"),
    ("#### \\(5\\)", "5", "LaTeX maths"),
    ("#### \\textbf{5}", "5", "LaTeX bold"),
    # fractions
    ("#### 1/2", "0.5", "fraction"),
    ("#### \\frac{1}{2}", "0.5", "LaTeX fraction"),
    ("#### \\dfrac12", "0.5", "LaTeX fraction without braces"),
    ("#### 1 1/2", "1.5", "mixed number"),
    ("#### 1\\frac{1}{2}", "1.5", "LaTeX mixed number"),
    ("#### 1\u00bd", "1.5", "Unicode fraction"),
    ("#### 10/2", "5", "a fraction that is whole"),
    # other digits and notations
    ("#### \uff15", "5", "full-width digit"),
    ("#### \u0665", "5", "Arabic digit"),
    ("#### 1e3", "1000", "scientific"),
    ("#### 1.2 \u00d7 10^3", "1200", "power of ten"),
    ("#### 1.2\u00d710\u00b3", "1200", "power of ten in superscript"),
    ("#### 1.2 \\times 10^{3}", "1200", "power of ten in LaTeX"),
    ("#### 123456789012345678901234567890", "123456789012345678901234567890", "exact beyond 64 bits"),
]
WRONG = [
    ("", "5", "empty"),
    ("   \n", "5", "white space"),
    ("I don't know", "5", "no number"),
    ("####", "5", "marker without anything"),
    ("5 eggs\n#### unknown", "5", "the marker line declines; a number elsewhere is no answer"),
    ("#### 6", "5", "another number"),
    ("#### -5", "5", "wrong sign"),
    ("#### 5\n#### 6", "5", "last marker wins, also when it is wrong"),
    ("#### 50", "5", "ten times as much"),
    ("#### 5.1", "5", "not rounded"),
    ("#### 5.0000000001", "5", "exact: no tolerance"),
    ("#### 12,34", "1234", "no grouping that anyone uses"),
    ("#### 1.234", "1234", "a point is a decimal point"),
    ("#### 0.05", "5", "5 % is not 0.05 here"),
    ("#### 5/0", "5", "division by zero is no number"),
    ("#### 5 million", "5000000", "number words are not read"),
    ("#### five", "5", "number words are not read"),
    ("#### 1e999999999", "5", "absurd exponent"),
    ("#### " + "9" * 5000, "5", "absurdly long"),
    ("#### 123456789012345678901234567891", "123456789012345678901234567890", "floats would call these equal"),
    ("\\boxed{6} 5", "5", "the box is the answer"),
    ("The answer is 6. (I first had 5)", "5", "what is stated is the answer"),
    ("version 2.5.5", "5", "part of a version number"),
    ("x5", "5", "part of a name"),
]


@pytest.mark.parametrize(("text", "gold", "why"), RIGHT)
def test_right_forms_score_one(text, gold, why):
    assert gsm8k(text, gold)["score"] == 1.0, why


@pytest.mark.parametrize(("text", "gold", "why"), WRONG)
def test_wrong_forms_score_zero(text, gold, why):
    result = gsm8k(text, gold)
    assert result["score"] == 0.0, why
    assert result["acc"] == 0.0


def test_the_table_is_large_enough():
    assert len(RIGHT) + len(WRONG) >= 60


def test_ground_truth_may_be_a_number_or_a_whole_solution():
    assert gsm8k("#### 1,000", 1000)["score"] == 1.0
    assert gsm8k("#### 2.5", 2.5)["score"] == 1.0
    assert gsm8k("#### 5", "2 + 3 = <<2+3=5>>5\n#### 5")["score"] == 1.0
    assert gsm8k("#### 0", 0)["score"] == 1.0


def test_zero_is_an_answer_and_missing_is_not_zero():
    assert extract("#### 0") == 0
    assert extract("") is None
    assert gsm8k("", "0")["score"] == 0.0


def test_a_ground_truth_without_a_number_is_an_error_and_not_a_wrong_answer():
    with pytest.raises(ValueError, match="ground truth must be a number"):
        gsm8k("#### 5", "n/a")


def test_the_answer_that_was_read_is_shown():
    assert gsm8k("#### $1,234.50", "7")["pred"] == "1234.5"
    assert gsm8k("#### 1/3", "7")["pred"] == "1/3"
    assert gsm8k("#### none", "7")["pred"] is None
    assert shown(Fraction(10**400)) == "huge"


@given(st.integers(-(10**15), 10**15), st.integers(0, 4))
def test_every_spelling_of_a_number_reads_back_exactly(number, decimals):
    value = Fraction(number, 10**decimals)
    spelled = f"{number // 10**decimals if number >= 0 else -(-number // 10**decimals)}"
    if decimals:
        sign = "-" if number < 0 else ""
        spelled = f"{sign}{abs(number) // 10**decimals:,}.{abs(number) % 10**decimals:0{decimals}d}"
    assert read_number(spelled) == value
    assert extract(f"#### ${spelled}.") == value
    assert gsm8k(f"so it is #### **{spelled}** dollars", spelled)["score"] == 1.0


def test_verls_strict_rule_by_name_keeps_its_limits():
    """verl reads the last 300 characters and compares text: the naive way that `gsm8k` replaces."""
    assert gsm8k_strict("#### 1,234", "1234")["score"] == 1.0
    assert gsm8k_strict("#### 5\n#### 6", "6")["score"] == 1.0
    for text in ("#### 5.", "#### 5.00", "#### $5", "#### **5**", "####5", "#### 5" + TAIL):
        assert gsm8k_strict(text, "5")["score"] == 0.0, text
        assert gsm8k(text, "5")["score"] == 1.0, text


def test_verls_flexible_rule_takes_the_last_number():
    assert gsm8k_flexible("5 or 6", "6")["score"] == 1.0
    assert gsm8k_flexible("it is 6 .", "6")["score"] == 1.0
    assert gsm8k_flexible("it is 6.", "6")["score"] == 0.0
    assert gsm8k_flexible("none", "6")["pred"] is None


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("so 5\n#### 5", 1.0),
        ("#### 1,234 \n", 1.0),
        ("#### 5 dollars", 0.0),
        ("#### 5\nthat is all", 0.0),
        ("#### 4\n#### 5", 0.0),
        ("5", 0.0),
        ("", 0.0),
    ],
)
def test_format_reward_wants_one_marker_on_the_last_line(text, score):
    assert gsm8k_format(text) == score


def gsm8k_folder() -> Path:
    for folder in (os.environ.get("PPO_LIGHTNING_GSM8K"), ROOT.parent / "shared" / "data" / "gsm8k"):
        if folder and (Path(folder) / "train.jsonl").is_file():
            return Path(folder)
    pytest.skip("GSM8K is not here: set PPO_LIGHTNING_GSM8K to a folder with train.jsonl and test.jsonl")


def test_every_gold_answer_of_gsm8k_scores_full_marks():
    """7,473 + 1,319 answers: the solution as it stands, and the bare answer as a response."""
    folder = gsm8k_folder()
    lines = [line for name in ("train", "test") for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    assert len(lines) == 8792
    solutions = [json.loads(line)["answer"] for line in lines]
    golds = [solution.rpartition("####")[2].strip() for solution in solutions]
    missed = [gold for solution, gold in zip(solutions, golds, strict=True) if gsm8k(solution, gold)["score"] != 1.0]
    assert missed == []
    bare = [
        gold for gold in sorted(set(golds)) if gsm8k(f"The answer is ${gold}.", gold.replace(",", ""))["score"] != 1.0
    ]
    assert bare == []

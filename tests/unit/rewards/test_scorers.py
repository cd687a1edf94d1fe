"""The further built-in scorers: matching, mathematics, form, generated problems, remote programs."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from ppo_lightning.rewards.adapters import load
from ppo_lightning.rewards.scorers import SCORERS
from ppo_lightning.rewards.scorers.code_sandbox import code_sandbox
from ppo_lightning.rewards.scorers.match import choice, exact, numeric, regex
from ppo_lightning.rewards.scorers.reasoning_gym import reasoning_gym
from ppo_lightning.rewards.scorers.shape import format_reward, length_penalty, repetition_penalty


@pytest.mark.parametrize("name", sorted(set(SCORERS) - {"math"}))
def test_every_scorer_of_the_table_loads_and_is_called_sample_by_sample(name):
    module, function = SCORERS[name].split(":")
    assert load(module, function, {}, is_file=False).style == "verl"


@pytest.mark.parametrize(
    ("text", "gold", "score"),
    [
        ("11", "11", 1.0),
        ("11.", 11, 1.0),
        ("3 + 8 = 11", "11", 1.0),
        ("The sum is **11**\n", "11", 1.0),
        ("-4", "-4", 1.0),
        ("0", "0", 1.0),
        ("11 or 12", "11", 0.0),
        ("111", "11", 0.0),
        ("", "0", 0.0),
        ("eleven", "11", 0.0),
    ],
)
def test_numeric_takes_the_last_number(text, gold, score):
    assert numeric(text, gold)["score"] == score


def test_numeric_options():
    assert numeric("3.14", "3.1416", tolerance=0.01)["score"] == 1.0
    assert numeric("3.1", "3.1416", tolerance=0.01)["score"] == 0.0
    assert numeric(" 11 ", "11", only=True)["score"] == 1.0
    assert numeric("it is 11", "11", only=True)["score"] == 0.0


def test_exact():
    assert exact(" Paris\n", "Paris")["score"] == 1.0
    assert exact("paris", "Paris")["score"] == 0.0
    assert exact("paris", ["London", "Paris"], ignore_case=True)["score"] == 1.0


def test_regex():
    assert regex("x=1, x=2", "2", pattern=r"x=(\d)")["score"] == 1.0
    assert regex("x=1, x=2", "1", pattern=r"x=(\d)")["score"] == 0.0
    assert regex("x=2.0", "2", pattern=r"x=([\d.]+)")["score"] == 1.0
    assert regex("no", "2", pattern=r"x=(\d)")["pred"] is None
    assert regex("yes", "yes", pattern="yes|no")["score"] == 1.0


@pytest.mark.parametrize(
    ("text", "picked"),
    [
        ("B", "B"),
        ("b", "B"),
        ("(C)", "C"),
        ("The answer is (C).", "C"),
        ("Answer: **D**", "D"),
        ("the correct option is d", "D"),
        ("answer is A. No, the answer is B", "B"),
        ("A is wrong. So \\boxed{\\text{B}}", "B"),
        ("I think a cat. B.", "B"),
        ("A cat sat", None),
        ("Answer: because", None),
        ("", None),
        ("\\boxed{AB}", None),
    ],
)
def test_choice(text, picked):
    assert choice(text, "A")["pred"] == picked


def test_choice_needs_a_letter_as_ground_truth():
    assert choice("B", "(b)")["score"] == 1.0
    with pytest.raises(ValueError, match="must be one of"):
        choice("B", "Paris")


def test_format_reward():
    assert format_reward("<think>a\nb</think>\n<answer>5</answer>") == 1.0
    assert format_reward("<think>a</think> 5") == 0.0
    assert format_reward("abc", pattern="a.c") == 1.0


def test_length_penalty():
    """Free up to 10, full at 20: 15 characters are half way."""
    assert [length_penalty("x" * count, 10, 20) for count in (0, 10, 15, 20, 99)] == [0.0, 0.0, -0.5, -1.0, -1.0]
    with pytest.raises(ValueError, match="must be above"):
        length_penalty("x", 10, 10)


def test_repetition_penalty():
    """'a b a b a b' has four runs of three, two of them new."""
    assert repetition_penalty("a b a b a b") == -0.5
    assert repetition_penalty("a b c d e") == 0.0
    assert repetition_penalty("a b") == 0.0
    assert repetition_penalty("") == 0.0


def test_reasoning_gym_numbers_are_compared_as_numbers():
    source = "reasoning_gym/gsm_symbolic"
    assert reasoning_gym("<answer>288</answer>", "288", source)["score"] == 1.0
    assert reasoning_gym("so the total is 288.0", "288", source)["score"] == 1.0
    assert reasoning_gym("<answer>0</answer> 7", "0", source)["score"] == 1.0
    assert reasoning_gym("<answer>1</answer><answer>288</answer>", "288", source)["score"] == 1.0
    assert reasoning_gym("<answer>1288</answer>", "288", source)["score"] == 0.0


def test_reasoning_gyms_own_rule_pays_for_digits_that_happen_to_be_there():
    """Negative control: why numbers are not left to it."""
    pytest.importorskip("reasoning_gym")
    own = reasoning_gym("<answer>1288</answer>", "288", "reasoning_gym/chain_sum", own_rule=True)
    assert own["score"] == 0.75
    assert own["acc"] == 0.0


@pytest.fixture
def sandbox():
    """A stand-in for a sandbox that 'runs' programs by looking at them: `print(input())` echoes its input."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, request))
            good = "print(input())" in request["code"]
            result = {"stdout": f"{request['stdin']}\n"}
            body = json.dumps({"status": "Success" if good else "Failed", "run_result": result}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()


CASES = {"inputs": ["1", "2"], "outputs": ["1", "3"]}
PROGRAM = "Here:\n```python\nprint('draft')\n```\nBetter:\n```python\nprint(input())\n```\n"


def test_code_is_run_by_the_sandbox_only(sandbox):
    url, seen = sandbox
    assert code_sandbox(PROGRAM, CASES, url=url) == {"score": 0.5, "acc": 0.0, "passed": 1, "cases": 2}
    assert code_sandbox(PROGRAM, json.dumps(CASES), url=url, all_or_nothing=True)["score"] == 0.0
    assert code_sandbox("```\nimport os; os._exit(1)\n```", CASES, url=url)["score"] == 0.0
    assert [path for path, _ in seen] == ["/run_code"] * 6
    assert seen[0][1] == {"code": "print(input())\n", "language": "python", "run_timeout": 5.0, "stdin": "1"}


def test_code_without_a_block_scores_zero_and_a_lost_sandbox_is_an_error(sandbox):
    url, seen = sandbox
    assert code_sandbox("print(input())", CASES, url=url)["score"] == 0.0
    assert seen == []
    with pytest.raises(OSError, match="refused"):
        code_sandbox(PROGRAM, CASES, url="http://127.0.0.1:9")
    with pytest.raises(ValueError, match="must start with http"):
        code_sandbox(PROGRAM, CASES, url="file:///etc/passwd")
    with pytest.raises(ValueError, match="at least one test case"):
        code_sandbox(PROGRAM, {"inputs": [], "outputs": []}, url=url)

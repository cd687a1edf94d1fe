"""PITFALLS 47 and 51: math-verify in the pool - right off the main thread, never hanging a step, last box counts."""

import threading

import pytest

from ppo_lightning.config.schema import RewardConfig
from ppo_lightning.rewards.pool import RewardPool
from ppo_lightning.rewards.sample import Sample

math_verify = pytest.importorskip("math_verify")

EQUAL = [
    ("\\boxed{\\frac{1}{2}}", "0.5"),
    ("first \\boxed{3}, then \\boxed{x+1}", "1+x"),
    ("it is $\\sqrt{8}$", "2\\sqrt{2}"),
    ("\\boxed{(1,2)}", "(1,2)"),
    ("\\boxed{x=5}", "5"),
    ("\\boxed{\\text{east}}", "\\text{east}"),
    ("\\boxed{7}", "So the answer is \\boxed{7}."),
]
UNEQUAL = [("\\boxed{5} or \\boxed{6}", "5"), ("", "5"), ("\\boxed{", "5"), ("no idea", "5"), ("\\boxed{}", "5")]
PATHOLOGICAL = [
    "\\boxed{9^{9^{9^{9^{9}}}}}",
    "\\boxed{" + "(" * 2000 + "1" + ")" * 2000 + "}",
    "\\boxed{" + "\\sqrt{" * 200 + "2" + "}" * 200 + "}",
    "\\boxed{10!!!!!!}",
    "\\boxed{" + "9" * 100_000 + "}",
    "\\boxed{(1+x)^{100000}}",
]


def test_meaning_is_compared_and_the_last_box_counts():
    samples = [Sample(row, "math", text, gold) for row, (text, gold) in enumerate(EQUAL + UNEQUAL)]
    with RewardPool(RewardConfig(workers=1, timeout_s=20)) as pool:
        scored = pool.score(samples)
    assert [(item.score, item.fault) for item in scored] == [(1.0, None)] * len(EQUAL) + [(0.0, None)] * len(UNEQUAL)


def test_pathological_answers_never_block_a_step():
    """Each either scores or is a fault of its own; the good one among them scores; the step ends."""
    texts = [*PATHOLOGICAL, "\\boxed{x+1}"]
    samples = [Sample(row, "math", text, "x+1") for row, text in enumerate(texts)]
    with RewardPool(RewardConfig(workers=2, timeout_s=1.0, max_error_share=1.0)) as pool:
        pool.score([Sample(row, "math", "\\boxed{1+x}", "x+1") for row in range(4)])
        scored = pool.score(samples)
    assert scored[-1].score == 1.0
    assert all(item.score == 0.0 or item.fault in ("timeout", "exception", "worker_death") for item in scored[:-1])
    assert all(item.seconds <= 1.5 for item in scored), "no sample may take longer than its limit"


def test_the_naive_way_in_a_thread_scores_every_right_answer_zero():
    """Negative control: math-verify with its own limits in a thread, wrapped in a blanket except."""
    scores = []

    def naive():
        try:
            scores.append(float(math_verify.verify(math_verify.parse("$5$"), math_verify.parse("$5$"))))
        except Exception:  # noqa: BLE001 - the fault that is shown
            scores.append(0.0)

    thread = threading.Thread(target=naive)
    thread.start()
    thread.join()
    assert scores == [0.0]

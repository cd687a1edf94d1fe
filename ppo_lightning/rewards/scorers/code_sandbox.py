"""Generated programs, run by a remote sandbox over HTTP and never on this machine.

Speaks the protocol of SandboxFusion: POST {code, stdin, language, run_timeout} to `<url>/run_code`. A sandbox that
cannot be reached is a fault of the sample, not a wrong program.
"""

import json
import re
import urllib.request
from typing import Any

CODE_BLOCK = re.compile(r"```[ \t]*([A-Za-z0-9+#_-]*)[^\n]*\n(.*?)```", re.DOTALL)


def code_sandbox(
    solution_str: str,
    ground_truth: Any,
    url: str,
    language: str = "python",
    run_timeout_s: float = 5.0,
    all_or_nothing: bool = False,
) -> dict[str, Any]:
    """Score the share of test cases whose output is right, outer space aside.

    Args:
        solution_str: the response; its last fenced code block is the program.
        ground_truth: {"inputs": [stdin, ...], "outputs": [stdout, ...]}, or the same as JSON text.
        url: address of the sandbox.
        language: the program's language, as the sandbox names it.
        run_timeout_s: seconds the sandbox gives one test case.
        all_or_nothing: score 1.0 only when every case is right.

    Raises:
        OSError: the sandbox cannot be reached or refuses the request.
        ValueError: the ground truth holds no test cases.
    """
    cases = json.loads(ground_truth) if isinstance(ground_truth, str) else ground_truth
    pairs = list(zip(cases["inputs"], cases["outputs"], strict=True))
    if not pairs:
        raise ValueError("the ground truth must hold at least one test case under inputs and outputs")
    blocks = CODE_BLOCK.findall(solution_str)
    if not blocks:
        return {"score": 0.0, "acc": 0.0, "passed": 0, "cases": len(pairs)}
    program = {"code": blocks[-1][1], "language": language, "run_timeout": run_timeout_s}
    passed = sum(run(url, {**program, "stdin": str(given)}) == str(wanted).strip() for given, wanted in pairs)
    share = passed / len(pairs)
    score = float(share == 1.0) if all_or_nothing else share
    return {"score": score, "acc": float(share == 1.0), "passed": passed, "cases": len(pairs)}


def run(url: str, request: dict[str, Any]) -> str | None:
    """Return what the program printed, stripped; None when it failed or took too long."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"url must start with http:// or https:// - got {url}")
    post = urllib.request.Request(
        f"{url.rstrip('/')}/run_code", json.dumps(request).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(post, timeout=request["run_timeout"] + 10) as reply:
        answer = json.load(reply)
    if answer["status"] != "Success":
        return None
    return str(answer["run_result"]["stdout"]).strip()

"""Time data-flow code against verl: python benchmarks/dataflow.py --oracle .venv-verl/bin/python.

Ours runs in this process, verl's in one of the oracle's environment (tests/parity/make_oracle.sh), in turn, on as many
threads each; the table shows medians, with one thread of processor time, which counts no waiting for other programs,
with more of wall time. Ratios carry over to other machines, milliseconds do not. `floor` is the time of memory alone:
every tensor that the case has to read is added up once and every tensor that it returns is filled once; verl / floor
is what no code could exceed that reads and writes all of that.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Freed memory is kept and used again: else the first touch of new pages, and not the arithmetic, is what is measured,
# and how much of it there is depends on what a process did before.
KEPT_BYTES = str(4 << 30)
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": KEPT_BYTES,
    "MALLOC_TRIM_THRESHOLD_": KEPT_BYTES,
}
if any(os.environ.get(key) != value for key, value in ENVIRONMENT.items()):
    os.execve(sys.executable, [sys.executable, __file__, *sys.argv[1:]], os.environ | ENVIRONMENT)
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from dataflow_inputs import Size, clock, fields  # noqa: E402
from dataflow_ours import CASES, read_by  # noqa: E402

SLOW_SECONDS = 5.0  # a call that takes longer is timed once


class Oracle:
    """A worker process that times verl's calls."""

    def __init__(self, python: str, size: Size, threads: int) -> None:
        numbers = (threads, size.rows, size.tokens, size.rollouts)
        command = [python, str(HERE / "dataflow_verl.py"), *map(str, numbers)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, **request: str) -> dict[str, Any]:
        """Time one call."""
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the oracle stopped (exit code {self.process.wait()}) on {request}")
        return json.loads(line)


def seconds(call: Callable[[], Any]) -> float:
    now = clock(torch.get_num_threads())
    start = now()
    call()
    return now() - start


def difference(name: str, call: Callable[[], Any], oracle: Oracle, size: Size) -> str:
    """Return the largest difference of the advantages on valid tokens."""
    if not name.startswith("advantages"):
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "advantages.npy")
        oracle.ask(case=name, save=path)
        theirs = np.load(path)
    return f"{np.abs(call()[0].numpy() - theirs)[fields(size)['response_mask'] == 1].max():.1e}"


def floor(name: str, result: Any, size: Size) -> Callable[[], Any] | None:
    """Return a call that only reads what a case reads and writes as much as its result; None without tensors."""
    read = read_by(name, size)
    tensors = [part for part in result if isinstance(part, torch.Tensor)] if isinstance(result, tuple) else []
    written = [torch.empty_like(part) for part in {part.data_ptr(): part for part in tensors}.values()]
    if not read:
        return None
    return lambda: ([part.sum() for part in read], [part.fill_(1.0) for part in written])


def measure(name: str, oracle: Oracle, size: Size, repeats: int) -> str:
    """Return one line of the table."""
    reply = oracle.ask(case=name)
    try:
        call = CASES[name](size)
    except ImportError as error:
        reply = {"error": str(error)}
    if "error" in reply:
        return f"{name:44s} skipped: {reply['error']}"
    off = difference(name, call, oracle, size)
    lowest = floor(name, call(), size)
    taken: dict[str, list[float]] = {"ours": [], "verl": [], "floor": []}
    for _ in range(repeats if reply["seconds"] < SLOW_SECONDS else 1):
        taken["ours"].append(seconds(call))
        taken["verl"].append(oracle.ask(case=name)["seconds"])
        taken["floor"].append(seconds(lowest) if lowest else float("nan"))
    mine, verl, least = (statistics.median(values) * 1e3 for values in taken.values())
    limits = f"{least:8.1f} {verl / least:10.1f}" if lowest else f"{'':8s} {'':10s}"
    return f"{name:44s} {mine:8.1f} {verl:8.1f} {verl / mine:9.1f} {limits} {off:>10s}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--oracle", default=str(HERE.parent / ".venv-verl/bin/python"), help="Python that imports verl")
    parser.add_argument("--rows", type=int, default=4096, help="B")
    parser.add_argument("--tokens", type=int, default=1024, help="R")
    parser.add_argument("--rollouts", type=int, default=8, help="n")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="PyTorch's threads, on both sides")
    parser.add_argument("--only", default="", help="run cases whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size = Size(options.rows, options.tokens, options.rollouts)
    oracle = Oracle(options.oracle, size, options.threads)
    shape = f"B = {size.rows}, R = {size.tokens}, n = {size.rollouts}"
    print(f"{shape}, threads: {options.threads}, medians of {options.repeats}")
    heads = (
        f"{'ours ms':>8s} {'verl ms':>8s} {'verl/ours':>9s} {'floor ms':>8s} {'verl/floor':>10s} {'difference':>10s}"
    )
    print(f"{'case':44s} {heads}")
    for name in CASES:
        if options.only in name:
            print(measure(name, oracle, size, options.repeats), flush=True)
    oracle.process.stdin.close()
    oracle.process.wait()


if __name__ == "__main__":
    main()

"""How large and how quick the report of a long run is: 10,000 steps and 50,000 responses, unless told otherwise.

`python -m benchmarks.report_page [STEPS] [RESPONSES_PER_STEP]`; with a Chromium on the PATH it is opened as well.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

from chromium import Chromium, find_chromium
from made_run import make_run

from ppo_lightning.report.page import write_report

STATUS = "document.querySelector('#samples-body [role=status]').textContent"


def main(steps=10_000, responses=5):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = make_run(Path(folder) / "run", steps, prompts=1, samples=responses, validate_every=100)
        start = time.process_time()
        page = write_report([run])
        print(f"{steps} steps, {steps * responses} responses: {page.stat().st_size / 1e6:.1f} MB")
        print(f"written in {time.process_time() - start:.1f} s of CPU time")
        path = find_chromium()
        if path is None:
            print("no Chromium: not opened")
            return
        browser = Chromium(path, Path(folder) / "profile")
        try:
            start = time.perf_counter()
            browser.open(page.as_uri())
            print(f"opened in {time.perf_counter() - start:.1f} s, {heap(browser):.0f} MB of JavaScript memory")
            start = time.perf_counter()
            browser.put("#sample-filter", "carry score=1 len<6")
            browser.wait(f"/match/.test({STATUS})")
            browser.evaluate("document.querySelector('#samples-body input[type=checkbox]').click()")
            browser.wait(f"{STATUS}.includes(' of {steps * responses:,} match')", seconds=120)
            print(f"searched in {time.perf_counter() - start:.1f} s: {browser.evaluate(STATUS)}")
        finally:
            browser.close()


def heap(browser):
    browser.send("HeapProfiler.collectGarbage")
    browser.send("Performance.enable")
    return (
        next(m["value"] for m in browser.send("Performance.getMetrics")["metrics"] if m["name"] == "JSHeapUsedSize")
        / 1e6
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""docs/parity.md has every comparison and every deliberate difference of the tests beside this file, and no others."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import report


def rows(page):
    """Return the first two cells of every row: what is compared, or what differs."""
    return [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("| `")]


def test_the_page_is_of_these_tests():
    expected = []
    for _, tests in report.topics():
        expected += [[f"| `{ours}`", f"`{theirs}`"] for ours, theirs, _ in tests.COMPARISONS]
        expected += rows("".join(report.row((f"`{ours}`", *rest)) for ours, *rest in tests.DIFFERENCES))
    assert len(expected) > 70
    assert rows(report.PAGE.read_text(encoding="utf-8")) == expected

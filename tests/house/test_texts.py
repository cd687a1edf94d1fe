"""Nothing that is published names a machine's folders, a person's tools or a rewritten past."""

import re

from house_sources import ROOT, tracked

FOLDERS = re.compile(r"(?<![\w.~-])/(?:" + "|".join(["work", "home", "root", "Users"]) + r")/\w")
# Put together from halves, so that this file does not hold them.
WORDS = [
    a + b for a, b in (("cla", "ude"), ("anthr", "opic"), ("copi", "lot"), ("sub", "agent"), ("co-authored", "-by"))
]
PAST = re.compile(r"#.*\b(?:formerly|used to be|was renamed|previously|TODO|FIXME|XXX)\b")


def found(pattern):
    hits = []
    for name in tracked():
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), start=1):
            if pattern.search(line):
                hits.append(f"{name}:{number}: {line.strip()[:100]}")
    return hits


def test_no_folders_of_a_machine():
    assert FOLDERS.search("open('/" + "work/x')")
    assert not FOLDERS.search("https://host/home/x and ~/home/x")
    assert found(FOLDERS) == []


def test_no_words_of_helper_tooling():
    hits = found(re.compile("|".join(WORDS), re.IGNORECASE))
    assert [hit for hit in hits if not hit.startswith(("requirements", "constraints"))] == []  # names of packages


def test_no_history_in_comments():
    assert PAST.search("x = 1  # was " + "renamed")
    assert [hit for hit in found(PAST) if hit.partition(":")[0].endswith(".py") and "test_texts.py" not in hit] == []


def test_no_conflict_markers():
    assert found(re.compile("^(?:<{7}|>{7}) ")) == []

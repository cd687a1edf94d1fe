import random

from ppo_lightning.report.curves import REST, definitions, sections, thin, trend


def noisy(count, peak):
    draw = random.Random(0)
    return [(step, 3.0 if step == peak else draw.gauss(0, 0.1)) for step in range(1, count + 1)]


def test_what_is_short_stays_as_it_is():
    points = noisy(50, 7)
    assert thin(points, 50) == points


def test_peaks_ends_and_gaps_survive_thinning():
    points = noisy(10_000, 5_003)
    points[777] = (778, None)
    kept = thin(points, 400)
    assert len(kept) <= 500
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert (5_003, 3.0) in kept
    assert (778, None) in kept
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})
    known = [value for _, value in points if value is not None]
    assert {min(known), max(known)} <= {value for _, value in kept}


def test_every_nth_point_loses_the_peak():
    points = noisy(10_000, 5_003)
    assert (5_003, 3.0) not in points[::25]


def test_each_stretch_keeps_its_range():
    """Slow oracle: in every stretch of the line the thinned one spans the same values."""
    points, limit = noisy(3_000, 100), 300
    kept = set(thin(points, limit))
    for number in range(limit // 4):
        part = points[len(points) * number // (limit // 4) : len(points) * (number + 1) // (limit // 4)]
        here = [value for step, value in part if (step, value) in kept]
        assert (min(here), max(here)) == (min(v for _, v in part), max(v for _, v in part))


def test_trend_is_the_mean_of_stretches():
    points = [(step, None if step == 2 else float(step)) for step in range(1, 201)]
    found = trend(points)
    assert len(found) == 100
    assert found[0] == (2, 1.0)  # steps 1 and 2, of which 2 has no value
    assert found[1] == (4, 3.5)


def test_sections_follow_the_panels_and_lose_nothing():
    keys = [
        "actor/entropy",
        "critic/score/mean",
        "critic/score/max",
        "critic/score/min",
        "mine/a/mean",
        "mine/a/max",
        "mine/b",
    ]
    found = sections(keys)
    assert [section["title"] for section in found] == ["reward", "training", REST]
    shown = [key for section in found for chart in section["charts"] for key in chart["keys"]]
    assert sorted(set(shown)) == sorted(keys)
    assert found[-1]["charts"] == [
        {"title": "mine/a", "keys": ["mine/a/max", "mine/a/mean"]},
        {"title": "mine/b", "keys": ["mine/b"]},
    ]
    assert sections([]) == []


def test_definitions_come_from_the_registry():
    found = definitions(["response_length/mean", "val-core/sums/acc/mean@1", "mine/b"])
    assert sorted(found) == ["response_length/mean", "val-core/sums/acc/mean@1"]
    assert found["response_length/mean"]["denominator"] == "rows, aborted ones included"
    assert found["response_length/mean"]["action"]

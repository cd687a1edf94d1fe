"""The interactive ledger: the page's numbers are the trainer's, to the last printed digit."""

import random

from made_run import make_run

from ppo_lightning.report.ledger_settings import ledger_at, settings_of_step
from ppo_lightning.report.ledger_words import ENTRIES
from ppo_lightning.report.numbers import printed
from ppo_lightning.report.page import ledger_html
from ppo_lightning.report.reading import read_run
from ppo_lightning.report.recorded import recorded_ledger


def draws(number):
    """Return random settings, legal ones, with exact halves among their ratios."""
    draw = random.Random(7)
    for _ in range(number):
        prompt, response = draw.randint(1, 4096), draw.randint(1, 8192)
        low, high = sorted((draw.randint(1, prompt), draw.randint(1, prompt)))
        short, long = sorted((draw.randint(0, response), draw.randint(0, response)))
        prompts, samples = draw.choice([1, 2, 8, 32, 64, 100]), draw.choice([1, 2, 5, 8, 16])
        yield {
            "prompts": prompts, "n": samples, "prompt_width": prompt, "prompt_shortest": low, "prompt_longest": high,
            "response_width": response, "response_shortest": short, "response_longest": long,
            "aborted": draw.choice([0, 0, 1, prompts * samples]) if prompts * samples > 1 else 0,
            "seconds": draw.choice([round(draw.uniform(0.1, 600), 1), 8.0, 0.5]), "devices": draw.choice([1, 2, 3, 8]),
        }  # fmt: skip


def test_two_hundred_settings_print_the_same(browser, pages, js):
    browser.open(pages["ledger"])
    cases = list(draws(200))
    entries = f"{js(cases)}.map(s => LedgerPage.compute(s).entries)"
    found = browser.evaluate(f"{entries}.map(e => {js(list(ENTRIES))}.map(n => [e[n], Page.printed(e[n])]))")
    halves = 0
    for settings, page in zip(cases, found, strict=True):
        ours = ledger_at(settings)
        expected = [[getattr(ours, name), printed(getattr(ours, name))] for name in ENTRIES]
        assert page == expected, settings
        halves += sum(value is not None and printed(value) != naive(value) for value, _ in expected)
    assert halves > 0, "no exact half among the numbers: the rounding rule was not tried"


def naive(value):
    """Return the number as Python's own formatting rounds it."""
    return f"{value:,}" if value == int(value) else f"{float(f'{value:.6g}'):,}"


def test_numbers_print_the_same(browser, pages, js):
    browser.open(pages["ledger"])
    draw = random.Random(3)
    numbers = [
        0,
        1,
        999,
        1000,
        1234567,
        1000.125,
        0.5,
        1e-5,
        1.5e-6,
        123456.5,
        99999.95,
        1e15,
        1.25e16,
        -0.25,
        -1234.5678,
    ]
    numbers += [draw.uniform(0, 1) * 10 ** draw.randint(-9, 12) for _ in range(300)]
    assert browser.evaluate(f"{js(numbers)}.map(Page.printed)") == [printed(number) for number in numbers]


def test_sliders_move_the_numbers_shown(browser, pages):
    browser.open(pages["ledger"])

    def shown():
        cells = "[...document.querySelectorAll('[data-entry]')]"
        return browser.evaluate(f"Object.fromEntries({cells}.map(c => [c.dataset.entry, c.textContent]))")

    assert shown()["sequences"] == "4"
    assert shown()["throughput"] == printed((10 + 23) / 10)  # prompts 3, 3, 2, 2; responses 8, 6, 5, 4 and 5 s x 2
    browser.put("#given-responses", "8, 4, 0, 8")
    now = shown()
    assert (now["response_tokens"], now["total_tokens"], now["masked_positions"]) == ("20", "30", "1")
    assert (now["token_weight"], now["response_length_mean"], now["non_aborted_mean"]) == ("0.05", "5", "6.66667")
    assert (now["clip_ratio"], now["aborted_ratio"], now["throughput"]) == ("0.5", "0.25", "3")
    assert browser.evaluate("document.querySelectorAll('#batch .row').length") == 4
    assert browser.evaluate("document.querySelectorAll('#batch .mark.lost').length") == 1
    browser.evaluate("document.getElementById('range-devices').focus()")
    browser.press("ArrowRight")
    assert shown()["throughput"] == "2"
    browser.evaluate("document.getElementById('reset').click()")
    assert shown()["response_tokens"] == "23"
    assert browser.errors == []


def test_what_cannot_be_is_brought_within_bounds(browser, pages, js):
    browser.open(pages["ledger"])
    wrong = {
        "prompts": -1, "n": 1e9, "prompt_width": 4, "prompt_shortest": 9, "prompt_longest": 8, "response_width": 3,
        "response_shortest": 2.4, "response_longest": "x", "aborted": 1e9, "seconds": 0, "devices": 0,
    }  # fmt: skip
    used = browser.evaluate(f"LedgerPage.compute({js(wrong)}).settings")
    assert used["prompts"] * used["n"] <= 65536
    assert (used["prompt_shortest"], used["prompt_longest"]) == (4, 4)
    assert (used["response_shortest"], used["response_longest"]) == (0, 0)
    assert used["aborted"] <= used["prompts"] * used["n"]
    assert (used["seconds"], used["devices"]) == (0.1, 1)


def test_a_recorded_step_opens_with_its_own_numbers(browser, pages, tmp_path):
    folder = make_run(tmp_path / "run", 3, prompts=3, samples=4, width=16)
    run = read_run(folder)
    file = tmp_path / "step.html"
    file.write_text(ledger_html(*settings_of_step(run, 2)))
    browser.open(file.as_uri())
    recorded = recorded_ledger(run, 2)
    cells = "[...document.querySelectorAll('[data-entry]')]"
    shown = browser.evaluate(f"Object.fromEntries({cells}.map(c => [c.dataset.entry, c.textContent]))")
    assert shown == {name: printed(getattr(recorded.entries, name)) for name in ENTRIES}
    assert browser.evaluate("document.getElementById('number-n').value") == "4"
    browser.put("#given-responses", "")
    assert (
        browser.evaluate("document.querySelector('[data-entry=response_tokens]').textContent")
        != shown["response_tokens"]
    )
    browser.evaluate("document.getElementById('reset').click()")
    assert (
        browser.evaluate("document.querySelector('[data-entry=response_tokens]').textContent")
        == shown["response_tokens"]
    )

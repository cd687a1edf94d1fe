"""The report in a real browser: drawn, filtered, driven by the keyboard, on a desk and on a phone."""

import pytest

PHONE = {"width": 390, "height": 844, "mobile": True}
DRAWN = """[...document.querySelectorAll('#curves canvas')].filter(c => c.offsetParent).map(c => {
  const pixels = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  return new Set(new Uint32Array(pixels.buffer)).size;
})"""
WIDTHS = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
CUT_OFF = """[...document.querySelectorAll('h1, h2, h3, h4, .card .value, .card .label, .legend .number')]
  .filter(e => e.offsetParent && !e.closest('.bar') && e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1)
  .map(e => e.textContent)"""
SELECTED = "document.querySelector('#samples [aria-selected=true] .snippet').textContent"


def visible_charts(browser):
    return browser.evaluate("[...document.querySelectorAll('#curves .chart')].filter(c => c.offsetParent).length")


def state(browser):
    return browser.evaluate("Samples.state()")


def unlisted(errors):
    return [error for error in errors if "favicon" not in error]


@pytest.mark.parametrize("size", [{}, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("name", ["short", "long", "compared"])
def test_charts_are_drawn_and_nothing_overflows(browser, pages, name, size):
    browser.open(pages[name], **size)
    browser.show("#curves")
    browser.wait("Curves.count() >= 2 && document.querySelectorAll('#timing canvas').length === 1")
    colours = browser.evaluate(DRAWN)
    assert colours
    assert min(colours) > 3, "an empty canvas has one colour"
    wide, window = browser.evaluate(WIDTHS)
    assert wide <= window
    assert browser.evaluate(CUT_OFF) == []
    assert unlisted(browser.errors) == []
    assert browser.requests == [pages[name]]


def test_a_text_of_a_run_stays_text(browser, pages):
    browser.open(pages["short"])
    browser.put("#samples input[type=number]", "2")
    browser.wait("document.querySelector('#samples .detail').textContent.includes('</script>')")
    assert browser.evaluate("window.hacked") is None
    assert browser.evaluate("document.querySelectorAll('#samples img').length") == 0


def test_filter_of_curves(browser, pages):
    browser.open(pages["short"])
    all_charts = visible_charts(browser)
    browser.press("/")
    assert browser.evaluate("document.activeElement.id") == "curve-filter"
    browser.type("entropy")
    assert 0 < visible_charts(browser) < all_charts
    assert browser.evaluate("document.querySelector('#curves .chart:not([hidden]) h4').textContent").startswith(
        "entropy"
    )
    browser.press("Escape")
    assert visible_charts(browser) == all_charts
    browser.type("no such metric")
    assert visible_charts(browser) == 0
    assert browser.evaluate("!document.getElementById('curve-none').hidden")


def test_a_metric_explains_itself(browser, pages):
    browser.open(pages["short"])
    browser.show("#curves")
    browser.wait("document.querySelector('#curves button.key')")
    browser.point("#curves button.key[data-key='critic/score/mean']")
    browser.wait("!document.getElementById('tip').hidden")
    text = browser.evaluate("document.getElementById('tip').textContent")
    assert "critic/score/mean" in text
    for word in ("numerator", "denominator", "reduction", "unit", "stage"):
        assert word in text
    browser.evaluate("document.querySelector('#curves button.key[data-key=\"critic/score/max\"]').focus()")
    assert "critic/score/max" in browser.evaluate("document.getElementById('tip').textContent")
    browser.press("Escape")
    assert browser.evaluate("document.getElementById('tip').hidden")


def test_a_chart_is_read_with_the_keyboard(browser, pages):
    browser.open(pages["short"])
    browser.show("#curves")
    browser.wait("Curves.count() >= 1")
    browser.evaluate("document.querySelector('#curves .plot').focus()")
    browser.press("Home")
    browser.wait("document.querySelector('#curves .at').textContent === 'step 1'")
    browser.press("ArrowRight")
    browser.wait("document.querySelector('#curves .at').textContent === 'step 2'")
    assert "step 2" in browser.evaluate("document.getElementById('spoken').textContent")


def test_samples_by_keyboard_and_filter(browser, pages):
    browser.open(pages["short"])
    browser.wait("Samples.state().listed === 12")
    assert state(browser)["step"] == 12
    browser.evaluate("document.querySelector('#samples .list').focus()")
    first = browser.evaluate(SELECTED)
    browser.press("ArrowDown")
    assert state(browser)["picked"] == 1
    assert browser.evaluate(SELECTED) != first
    browser.press("ArrowLeft")
    browser.wait("Samples.state().step === 11 && Samples.state().listed === 12")
    browser.press("/")
    assert browser.evaluate("document.activeElement.id") == "sample-filter"
    browser.type("score=1")
    browser.wait("/ of 12 match/.test(document.querySelector('#samples [role=status]').textContent)")
    assert browser.evaluate(
        "[...document.querySelectorAll('#samples .option .score')].every(s => s.textContent === '1')"
    )
    browser.press("Escape")
    browser.wait("Samples.state().listed === 12")
    browser.evaluate("document.querySelector('#samples input[type=checkbox]').click()")
    browser.type("finish=abort")
    browser.wait("/^[0-9]{1,2} of 144 match/.test(document.querySelector('#samples [role=status]').textContent)")
    assert state(browser)["listed"] > 0
    assert browser.evaluate(
        "[...document.querySelectorAll('#samples .option .length')].every(s => s.textContent === '0 tok')"
    )


def test_tokens_are_coloured_by_what_is_chosen(browser, pages):
    browser.open(pages["short"])
    browser.wait("document.querySelectorAll('#samples .token').length > 0 || Samples.state().listed === 12")
    browser.evaluate(
        "[...document.querySelectorAll('#samples .option')].find(o => !o.textContent.endsWith(' 0 tok')).click()"
    )
    browser.wait("document.querySelectorAll('#samples .token').length > 0")
    grounds = "[...document.querySelectorAll('#samples .token')].map(t => getComputedStyle(t).backgroundColor)"
    by_gap = browser.evaluate(grounds)
    assert len(set(by_gap)) > 1 or len(by_gap) == 1
    browser.put("#samples .detail select", "plain")
    assert set(browser.evaluate(grounds)) == {"rgba(0, 0, 0, 0)"}
    browser.evaluate("document.querySelector('#samples .tokens').focus()")
    browser.press("Home")
    assert "log-prob" in browser.evaluate("document.querySelector('#samples .readout').textContent")


def test_runs_side_by_side(browser, pages):
    browser.open(pages["compared"])
    assert browser.evaluate("document.querySelectorAll('#run-chips button').length") == 2
    browser.show("#curves")
    browser.wait("Curves.count() >= 2")
    names = browser.evaluate(
        "[...document.querySelectorAll('#curves .chart .legend .of')].slice(0, 2).map(e => e.textContent)"
    )
    assert names == ["short", "long"]
    browser.click("#run-chips button")
    assert browser.evaluate("document.querySelector('#run-chips button').getAttribute('aria-pressed')") == "false"
    browser.put("#samples .run-select", "1")
    browser.wait("Samples.state().step === 1500")
    assert browser.evaluate("document.querySelector('#config .differs th').textContent") == "actor.lr"
    assert unlisted(browser.errors) == []


def test_the_recorded_ledger_agrees_with_what_was_logged(browser, pages):
    browser.open(pages["long"])
    ticks = "[...document.querySelectorAll('#ledger .agree')].length"
    assert browser.evaluate(ticks) == 5
    assert browser.evaluate("document.querySelectorAll('#ledger .differ').length") == 0
    browser.put("#ledger input[type=number]", "1234")
    assert browser.evaluate("document.querySelector('#ledger input[type=number]').value") == "1234"
    assert browser.evaluate("document.querySelectorAll('#ledger .differ').length") == 0


def test_a_run_that_died_at_once_has_a_page(browser, pages):
    browser.open(pages["dead"])
    assert "EngineError: no <engine>" in browser.evaluate("document.body.textContent")
    assert unlisted(browser.errors) == []


@pytest.mark.parametrize("shade", ["light", "dark"])
def test_text_can_be_read_in_both_colours(browser, pages, shade):
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": shade}])
    browser.open(pages["short"])
    assert browser.evaluate("document.documentElement.dataset.theme") == shade
    pairs = [
        ("--text", "--ground", 7),
        ("--muted", "--ground", 4.5),
        ("--muted", "--raised", 4.5),
        ("--bad", "--bad-ground", 4.5),
    ]
    pairs += [(f"--c{number}", "--ground", 3) for number in range(9)]
    for fore, back, least in pairs:
        assert contrast(browser.evaluate(f"[Page.colour('{fore}'), Page.colour('{back}')]")) >= least, (fore, back)
    text, ground, deepest = browser.evaluate("[Page.colour('--text'), Page.colour('--raised'), Tokens.DEEPEST]")
    for end in ("--low", "--high"):
        shade = [int(part) for part in browser.evaluate(f"Page.colour('{end}')").split(",")]
        below = [int(ground[place : place + 2], 16) for place in (1, 3, 5)]
        mixed = [round(deepest * over + (1 - deepest) * under) for over, under in zip(shade, below, strict=True)]
        assert contrast([text, "#" + "".join(f"{part:02x}" for part in mixed)]) >= 4.5, end


def contrast(pair):
    """Return the contrast of two colours by WCAG 2."""
    light, dark = sorted((luminance(colour) for colour in pair), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_contrast_by_hand():
    assert contrast(["#000000", "#ffffff"]) == pytest.approx(21)
    assert contrast(["#767676", "#ffffff"]) == pytest.approx(4.54, abs=0.01)

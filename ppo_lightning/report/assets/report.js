/* Puts the page together once its data is unpacked. */
"use strict";
(async () => {
  const { el, byId, unpack, watchKeys, printed } = Page;
  const started = performance.now();

  /* The ledger of any step, from the counts that its metrics give. */
  function stepLedger(data) {
    let run = data.runs[0], at = 0;
    const body = byId("ledger-body"), table = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Token ledger" });
    const range = el("input", { type: "range", min: 0, "aria-label": "Place among the steps", oninput: (event) => show(Number(event.target.value)) });
    const step = el("input", { type: "number", "aria-label": "Step", onchange: (event) => {
      const wanted = Number(event.target.value), steps = run.counts.step;
      show(steps.reduce((best, found, place) => (Math.abs(found - wanted) < Math.abs(steps[best] - wanted) ? place : best), 0));
    } });
    const before = el("button", { type: "button", "aria-label": "Step before", onclick: () => show(at - 1) }, "←");
    const after = el("button", { type: "button", "aria-label": "Step after", onclick: () => show(at + 1) }, "→");
    function show(place) {
      const counts = run.counts, last = counts.step.length - 1;
      if (last < 0) { table.replaceChildren(el("p", { class: "muted" }, "No step was logged.")); return; }
      at = Math.min(Math.max(place, 0), last);
      range.max = last;
      range.value = at;
      step.value = counts.step[at];
      before.disabled = at === 0;
      after.disabled = at === last;
      const of = (prefix) => Object.fromEntries(Object.keys(counts).filter((name) => name.startsWith(prefix)).map((name) => [name.slice(prefix.length), counts[name][at]]));
      table.replaceChildren(Ledger.table(data.ledger, Ledger.ledgerOf(data.ledger.ratios, of(""), counts.seconds[at], run.devices), of("logged_")));
    }
    body.append(
      el("div", { class: "tools" }, el("label", { class: "run-picker" }, "Run ", el("select", { class: "run-select" })),
        el("div", { class: "stepper" }, el("label", {}, "Step ", step), before, range, after)),
      table,
      el("p", { class: "muted" }, "Made again from whole tokens and rows; ✓ where the run logged the same number. With several mini-batches a token's weight is 1 / the tokens in the loss of its own mini-batch; this is that of the whole step. An empty weight: masks may leave tokens out, which ", el("code", {}, "ledger --run DIR --step N"), " counts."));
    return (chosen) => { run = chosen; show(run.counts.step.length - 1); };
  }

  function shortcuts() {
    document.addEventListener("keydown", (event) => {
      const target = event.target;
      if (event.key === "Escape" && target.type === "search") {
        target.value = "";
        target.dispatchEvent(new Event("input", { bubbles: true }));
        return;
      }
      if (event.key !== "/" || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName) || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const box = byId("samples").getBoundingClientRect();
      const inSamples = byId("samples").contains(target) || (box.top < window.innerHeight / 2 && box.bottom > window.innerHeight / 2);
      const input = byId(inSamples ? "sample-filter" : "curve-filter");
      input.focus();
      input.select();
    });
  }

  function navigation() {
    const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
    const watch = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) {
        const here = links.get(entry.target.id);
        here.parentElement.scrollTo({ left: here.offsetLeft - here.parentElement.offsetLeft - 24 });
        links.forEach((link, id) => (id === entry.target.id ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
      }
    }, { rootMargin: "-30% 0px -65% 0px" });
    links.forEach((_, id) => watch.observe(byId(id)));
  }

  try {
    const data = await unpack("core");
    watchKeys(data.metrics);
    Curves.build(data);
    Samples.build();
    const showLedger = stepLedger(data);
    const selects = [...document.querySelectorAll(".run-select")];
    function choose(place) {
      selects.forEach((select) => { select.value = place; });
      Timing.draw(data.runs[place]);
      Samples.choose(place, data);
      showLedger(data.runs[place]);
    }
    selects.forEach((select) => {
      select.append(...data.runs.map((run, place) => el("option", { value: String(place) }, run.name)));
      select.addEventListener("change", () => choose(Number(select.value)));
    });
    if (data.runs.length === 1) document.querySelectorAll(".run-picker").forEach((label) => { label.hidden = true; });
    document.querySelectorAll("thead .swatch").forEach((swatch, place) => { swatch.style.background = `var(--c${place % Page.COLOURS})`; });
    choose(0);
    shortcuts();
    navigation();
    document.documentElement.dataset.ready = printed(Math.round(performance.now() - started));
  } catch (error) {
    const fault = byId("fault");
    fault.hidden = false;
    fault.textContent = `The page could not be built: ${error.message}. A browser from 2023 or later is needed.`;
    throw error;
  }
})();

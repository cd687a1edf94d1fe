/* Curves: one chart per panel, drawn when it comes into view, with a legend that is also the read-out. */
"use strict";
window.Curves = (() => {
  const { el, byId, brief, printed, colour, COLOURS } = Page;
  const HEIGHT = 190;
  const DASHES = [[], [6, 4], [2, 3], [9, 3, 2, 3]];
  const drawn = new Map();
  let data, hiddenRuns = new Set();

  /* Steps are stored as differences; a long line has its trend after it. */
  function line(run, key, first = 0) {
    const stored = run.curves[key];
    if (!stored || stored.length <= first) return null;
    let step = 0;
    return [stored[first].map((gap) => (step += gap)), stored[first + 1]];
  }

  /* What one chart draws: a line per key and run. Runs have colours where there are several, else keys have. */
  function seriesOf(keys) {
    const several = data.runs.length > 1, found = [];
    const stems = new Set(keys.map((key) => key.replace(/\/(mean|max|min)$/, "")));
    const spread = keys.length > 1 && stems.size === 1;
    data.runs.forEach((run, place) => {
      keys.forEach((key, number) => {
        if (several && spread && !key.endsWith("/mean")) return; /* the edges of several runs would hide the means */
        const points = line(run, key);
        if (!points) return;
        const edge = spread && !key.endsWith("/mean");
        found.push({ key, run, place, points, edge, trend: edge ? null : line(run, key, 2), long: run.curves[key].length > 2, hue: several ? place : spread ? 0 : number, dash: several && !spread ? number : 0 });
      });
    });
    return { found, spread };
  }

  function axes(stepName = (step) => (Number.isInteger(step) ? brief(step) : "")) {
    const look = { stroke: colour("--muted"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), size: 4 }, font: "11px system-ui, sans-serif" };
    const size = (u, values) => (values ? Math.max(34, 10 + 6.4 * Math.max(...values.map((text) => String(text).length))) : 34);
    return [{ ...look, size: 26, space: 60, values: (u, splits) => splits.map(stepName) },
      { ...look, size, space: 32, values: (u, splits) => splits.map(brief) }];
  }

  /* The value at or before a position; thinned lines have no point at every step. */
  function nearest(values, place) {
    for (let back = place; back >= 0 && back > place - 4000; back--) if (values[back] !== undefined) return values[back];
    return undefined;
  }

  function draw(card) {
    const { keys, title } = card.spec, { found, spread } = seriesOf(keys);
    const plot = card.querySelector(".plot"), legend = card.querySelector(".legend"), at = card.querySelector(".at");
    plot.replaceChildren();
    const trends = found.filter((one) => one.trend);
    const lines = [...found.map(({ points }) => points), ...trends.map((one) => one.trend)];
    const table = lines.length > 1 ? uPlot.join(lines) : [...lines[0]];
    const several = data.runs.length > 1;
    const numbers = found.map(() => el("span", { class: "number" }));
    legend.replaceChildren(...found.map((one, place) => el("li", {},
      el("span", { class: "stroke", style: `border-color: var(--c${one.hue % COLOURS}); border-top-style: ${one.dash ? "dashed" : "solid"}; opacity: ${one.edge ? 0.55 : 1}` }),
      el("button", { class: "key", type: "button", "data-key": one.key }, one.key),
      several ? el("span", { class: "of" }, one.run.name) : null, numbers[place])));
    const ends = found.map(({ points }) => points[1].length - 1);
    const rest = () => {
      at.textContent = "last";
      found.forEach((one, place) => { numbers[place].textContent = brief(one.points[1][ends[place]]); });
    };
    const options = {
      width: Math.max(plot.clientWidth, 120), height: HEIGHT, legend: { show: false }, padding: [8, 12, 0, 0],
      cursor: { sync: { key: "steps", scales: ["x", null] }, points: { size: 6 }, drag: { x: true, y: false } },
      scales: { x: { time: false, range: (u, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) },
        y: { range: (u, low, high) => (low === null ? [0, 1] : low === high ? [low - (Math.abs(low) || 1) * 0.1, high + (Math.abs(high) || 1) * 0.1] : uPlot.rangeNum(low, high, 0.08, true)) } },
      axes: axes(),
      series: [{}, ...found.map((one) => ({
        label: one.key, show: !hiddenRuns.has(one.place), stroke: colour(`--c${one.hue % COLOURS}`) + (one.edge ? (one.long ? "1c" : "88") : one.long ? "4d" : ""),
        width: one.edge || one.trend ? 1 : 1.75, dash: DASHES[one.dash % DASHES.length], points: { show: one.points[0].length < 30, size: one.edge ? 3 : 5, fill: colour("--ground") },
      })), ...trends.map((one) => ({
        label: `${one.key}, trend`, show: !hiddenRuns.has(one.place), stroke: colour(`--c${one.hue % COLOURS}`), width: 2,
        dash: DASHES[one.dash % DASHES.length], points: { show: false },
      }))],
      bands: spread && !several ? bandsOf(found) : [],
      hooks: { setCursor: [(u) => {
        if (u.cursor.idx === null || u.cursor.idx === undefined) return rest();
        at.textContent = `step ${printed(u.data[0][u.cursor.idx])}`;
        found.forEach((one, place) => {
          const value = nearest(u.data[place + 1], u.cursor.idx);
          numbers[place].textContent = value === null ? "not finite" : brief(value);
        });
      }] },
    };
    const chart = new uPlot(options, table, plot);
    drawn.set(card, chart);
    rest();
    plot.setAttribute("aria-label", `${title}: ${found.map((one, place) => `${one.key}${several ? ` of ${one.run.name}` : ""} last ${brief(one.points[1][ends[place]])}`).join(", ")}. Arrow keys read values.`);
  }

  function bandsOf(found) {
    const place = (end) => found.findIndex((one) => one.key.endsWith(end)) + 1;
    const high = place("/max"), low = place("/min");
    return high && low ? [{ series: [high, low], fill: colour("--c0") + "1f" }] : [];
  }

  function move(event) {
    const card = event.currentTarget.closest(".chart"), chart = drawn.get(card);
    if (!chart) return;
    const last = chart.data[0].length - 1, now = chart.cursor.idx ?? last;
    const far = event.shiftKey ? Math.max(1, Math.round(last / 10)) : 1;
    const to = { ArrowLeft: now - far, ArrowRight: now + far, Home: 0, End: last }[event.key];
    if (event.key === "Escape") return void chart.setCursor({ left: -10, top: -10 });
    if (to === undefined) return;
    event.preventDefault();
    const place = Math.min(Math.max(to, 0), last);
    chart.setCursor({ left: chart.valToPos(chart.data[0][place], "x"), top: HEIGHT / 3 });
    Page.say(`${card.querySelector(".at").textContent}: ${[...card.querySelectorAll(".legend li")].map((item) => item.textContent).join(", ")}`);
  }

  function chartCard(spec) {
    const card = el("article", { class: "chart" },
      el("h4", {}, spec.title, el("span", { class: "at" })),
      el("div", { class: "plot", tabindex: "0", role: "img", "aria-label": spec.title, onkeydown: move }),
      el("ul", { class: "legend" }));
    card.spec = spec;
    seen.observe(card);
    return card;
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
  }, { rootMargin: "300px" });

  function again() {
    for (const [card, chart] of [...drawn]) { chart.destroy(); drawn.delete(card); draw(card); }
  }

  function chips() {
    if (data.runs.length < 2) return;
    byId("run-chips").append(...data.runs.map((run, place) => el("button", {
      type: "button", "aria-pressed": "true",
      onclick: (event) => {
        const shown = hiddenRuns.delete(place) || !hiddenRuns.add(place);
        event.currentTarget.setAttribute("aria-pressed", String(shown));
        again();
      },
    }, el("span", { class: "swatch", style: `background: var(--c${place % COLOURS})` }), run.name)));
  }

  /* Show the charts whose title or keys hold every word. */
  function filter(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    let any = false;
    for (const section of byId("curve-sections").children) {
      let here = false;
      for (const card of section.querySelectorAll(".chart")) {
        const held = `${card.spec.title} ${card.spec.keys.join(" ")}`.toLowerCase();
        card.hidden = !words.every((word) => held.includes(word));
        here = here || !card.hidden;
      }
      section.hidden = !here;
      any = any || here;
      if (section.tagName === "DETAILS") section.open = words.length > 0 && here;
    }
    byId("curve-none").hidden = any;
  }

  function build(all) {
    data = all;
    const last = all.sections.length - 1;
    byId("curve-sections").append(...all.sections.map((section, place) => {
      const grid = el("div", { class: "grid" }, section.charts.map(chartCard));
      const rest = place === last && section.title === "everything else";
      return rest ? el("details", {}, el("summary", {}, `${section.title} (${section.charts.length} charts)`), grid)
        : el("section", { "aria-label": section.title }, el("h3", {}, section.title), grid);
    }));
    if (!all.sections.length) byId("curve-sections").append(el("p", { class: "muted" }, "No metrics were logged: the run ended before its first step."));
    const long = all.runs.some((run) => Object.values(run.curves).some((stored) => stored.length > 2));
    byId("curve-note").hidden = !long;
    chips();
    byId("curve-filter").addEventListener("input", (event) => filter(event.target.value));
    Page.onPaint(again);
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (window.innerWidth === width) return;
      width = window.innerWidth;
      for (const [card, chart] of drawn) chart.setSize({ width: Math.max(card.querySelector(".plot").clientWidth, 120), height: HEIGHT });
    });
  }

  return { build, axes, count: () => drawn.size };
})();

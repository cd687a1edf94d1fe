/* Seconds per stage: stacked columns over steps, and a table of sums. */
"use strict";
window.Timing = (() => {
  const { el, byId, brief, printed, colour, COLOURS } = Page;
  const HEIGHT = 240;
  let chart = null, shown = null;

  function draw(run) {
    shown = run;
    const { stages, what, span, steps, seconds, total, share, per_token: perToken, everything } = run.timing;
    const body = byId("timing-body");
    if (chart) chart.destroy();
    chart = null;
    if (!steps.length) return body.replaceChildren(el("p", { class: "muted" }, "No step was timed."));
    const at = el("span", { class: "at" }, ""), plot = el("div", { class: "plot", style: `min-height: ${HEIGHT}px`, role: "img", "aria-label": `Seconds per step by stage: ${stages.map((name, place) => `${name} ${Math.round(100 * share[place])} %`).join(", ")}` });
    const now = stages.map(() => el("td", { class: "right" }, ""));
    body.replaceChildren(
      el("article", { class: "chart" }, el("h3", {}, span > 1 ? `seconds per step, each column the mean of ${span} steps` : "seconds per step", at), plot),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Seconds by stage" }, el("table", { class: "numbers timing-table" },
        el("thead", {}, el("tr", {}, ["stage", "seconds in all", "share", "ms per token", "pointed at"].map((text, place) => el("th", { scope: "col", class: place ? "right" : "" }, text)), el("th", { scope: "col" }, "what"))),
        el("tbody", {}, stages.map((name, place) => el("tr", {},
          el("td", {}, el("span", { class: "swatch", style: `background: var(--c${place % COLOURS})` }), name),
          el("td", { class: "right" }, brief(total[place])), el("td", { class: "right" }, `${(100 * share[place]).toFixed(1)} %`),
          el("td", { class: "right" }, perToken[place] === null ? "" : brief(perToken[place])), now[place], el("td", { class: "muted" }, what[name]))),
        el("tr", {}, el("td", {}, "all"), el("td", { class: "right" }, brief(everything)), el("td", { class: "right" }, "100 %"), el("td"), el("td"), el("td"))))));
    /* The highest sum is drawn first, the lower ones over it. */
    const sums = [];
    seconds.forEach((values, place) => sums.push(values.map((value, column) => value + (place ? sums[place - 1][column] : 0))));
    const order = stages.map((_, place) => place).reverse();
    chart = new uPlot({
      width: Math.max(plot.clientWidth, 120), height: HEIGHT, legend: { show: false }, padding: [8, 12, 0, 0], cursor: { drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: false, range: () => [-0.6, steps.length - 0.4] }, y: { range: (u, low, high) => [0, (high || 1) * 1.05] } },
      axes: Curves.axes((place) => (Number.isInteger(place) && place >= 0 && place < steps.length ? brief(steps[place]) : "")),
      series: [{}, ...order.map((place) => ({
        label: stages[place], fill: colour(`--c${place % COLOURS}`), stroke: colour("--ground"), width: steps.length > 80 ? 0 : 1,
        paths: uPlot.paths.bars({ size: [0.9, 60], align: 0 }), points: { show: false },
      }))],
      hooks: { setCursor: [(u) => {
        const column = u.cursor.idx;
        const none = column === null || column === undefined;
        at.textContent = none ? "" : `step ${printed(steps[column])}`;
        now.forEach((cell, place) => { cell.textContent = none ? "" : `${brief(seconds[place][column])} s`; });
      }] },
    }, [steps.map((_, place) => place), ...order.map((place) => sums[place])], plot);
  }

  Page.onPaint(() => { if (shown) draw(shown); });
  window.addEventListener("resize", () => { if (chart) chart.setSize({ width: Math.max(byId("timing-body").querySelector(".plot").clientWidth, 120), height: HEIGHT }); });
  return { draw };
})();

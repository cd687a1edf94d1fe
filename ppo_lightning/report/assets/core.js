/* What all parts of the page share: unpacking, elements, numbers, colours, definitions. */
"use strict";
window.Page = (() => {
  const byId = (id) => document.getElementById(id);

  /* Text written by packed() in embed.py. */
  async function unpack(id) {
    const bytes = Uint8Array.from(atob(byId(id).textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  /* An element; text always goes in as text, so that nothing of a run becomes markup. */
  function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (name === "class") made.className = value;
      else if (name in made && typeof value !== "string") made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return made;
  }

  const digits = /(\d)(?=(\d{3})+$)/g;

  /* The rule of printed() in numbers.py: six significant digits, halves away from zero, thousands separated. */
  function printed(value) {
    if (value === null || value === undefined) return "-";
    if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value).replace(digits, "$1,");
    const [mantissa, exponent] = Math.abs(value).toExponential(5).split("e");
    const sign = value < 0 ? "-" : "";
    const figures = mantissa.replace(".", "").replace(/0+$/, "");
    const power = Number(exponent);
    if (power < -5 || power >= 15) return `${sign}${figures[0]}${figures.length > 1 ? "." + figures.slice(1) : ""}e${power}`;
    if (power < 0) return `${sign}0.${"0".repeat(-power - 1)}${figures}`;
    const whole = figures.slice(0, power + 1).padEnd(power + 1, "0").replace(digits, "$1,");
    const rest = figures.slice(power + 1);
    return sign + whole + (rest ? `.${rest}` : "");
  }

  /* A number where room is short. */
  function brief(value) {
    if (value === null || value === undefined) return "-";
    const size = Math.abs(value);
    if (value === 0) return "0";
    if (size < 1e-3 || size >= 1e9) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
    if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
    if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
    return String(Number(value.toPrecision(4)));
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const COLOURS = 9;

  /* Light and dark. */
  const listeners = [];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const choices = ["auto", "light", "dark"];
  let choice = "auto";
  try { choice = localStorage.getItem("ppo-lightning-colours") || "auto"; } catch (error) { /* not allowed to remember */ }
  if (!choices.includes(choice)) choice = "auto";
  function paint() {
    const shade = choice === "auto" ? (dark.matches ? "dark" : "light") : choice;
    document.documentElement.dataset.theme = shade;
    const button = byId("theme");
    if (button) button.textContent = `colours: ${choice}`;
    listeners.forEach((told) => told());
  }
  dark.addEventListener("change", paint);
  document.addEventListener("DOMContentLoaded", () => {
    const button = byId("theme");
    if (!button) return;
    button.addEventListener("click", () => {
      choice = choices[(choices.indexOf(choice) + 1) % choices.length];
      try { localStorage.setItem("ppo-lightning-colours", choice); } catch (error) { /* not allowed to remember */ }
      paint();
    });
    paint();
  });
  paint();

  /* Definitions of metrics: shown while a name is pointed at or focused, kept open by a click or tap. */
  let definitions = {};
  let pinned = null;
  function showTip(anchor) {
    const tip = byId("tip"), key = anchor.dataset.key, known = definitions[key];
    const plain = (text) => (text === "-" ? "none" : text.replace(/`/g, ""));
    const names = [["numerator"], ["denominator"], ["reduction"], ["unit"], ["stage"], ["healthy"], ["action", "if not"]];
    const rows = known ? names.filter(([name]) => known[name]).map(([name, shown]) => [shown || name, plain(known[name])])
      : [["", "not declared: a metric of your own"]];
    tip.replaceChildren(
      el("strong", { class: "mono" }, key),
      known && known.meaning ? el("p", {}, plain(known.meaning)) : "",
      el("dl", {}, rows.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])),
    );
    tip.hidden = false;
    tip.style.maxHeight = "";
    const box = anchor.getBoundingClientRect(), width = tip.offsetWidth, above = box.top - 14, under = window.innerHeight - box.bottom - 14;
    const below = tip.offsetHeight <= under || under >= above;
    tip.style.maxHeight = `${below ? under : above}px`;
    const height = tip.offsetHeight;
    const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - width - 8));
    tip.style.left = `${left + window.scrollX}px`;
    tip.style.top = `${(below ? box.bottom + 6 : box.top - height - 6) + window.scrollY}px`;
    anchor.setAttribute("aria-describedby", "tip");
  }
  function hideTip(anchor) {
    if (anchor) anchor.removeAttribute("aria-describedby");
    byId("tip").hidden = true;
    pinned = null;
  }
  function watchKeys(table) {
    definitions = table;
    const of = (event) => (event.target.closest ? event.target.closest("button.key") : null);
    /* After Esc a name under a pointer that rests stays quiet. */
    let x = 0, y = 0, quiet = false;
    document.addEventListener("pointerover", (event) => {
      if (event.clientX !== x || event.clientY !== y) quiet = false;
      [x, y] = [event.clientX, event.clientY];
      const key = of(event);
      if (key && !pinned && !quiet && event.pointerType === "mouse") showTip(key);
    });
    document.addEventListener("pointermove", (event) => { [x, y] = [event.clientX, event.clientY]; });
    document.addEventListener("pointerout", (event) => { const key = of(event); if (key && !pinned && event.pointerType === "mouse") hideTip(key); });
    document.addEventListener("focusin", (event) => { const key = of(event); if (key) showTip(key); });
    document.addEventListener("focusout", (event) => { const key = of(event); if (key) hideTip(key); });
    document.addEventListener("click", (event) => {
      const key = of(event);
      if (!key) { if (!event.target.closest || !event.target.closest("#tip")) hideTip(pinned); return; }
      if (pinned === key) hideTip(key);
      else { showTip(key); pinned = key; }
    });
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") { hideTip(pinned); quiet = true; } });
  }

  const say = (text) => { byId("spoken").textContent = text; };
  return { byId, unpack, el, printed, brief, colour, COLOURS, onPaint: (told) => listeners.push(told), watchKeys, say };
})();

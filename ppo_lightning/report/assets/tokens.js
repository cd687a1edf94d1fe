/* A response token by token: coloured by one of the values that were dumped, each readable on its own. */
"use strict";
window.Tokens = (() => {
  const { el } = Page;
  const DEEPEST = 0.45; /* deeper, and text on it could not be read in the dark */
  const MODES = {
    plain: "no colour",
    gap: "log-prob gap, trainer - engine",
    log_prob: "log-prob before the update",
    advantage: "advantage",
    mask: "in the loss or not",
  };

  const valueOf = (tokens, mode, place) => {
    if (mode === "mask") return tokens.mask ? Number(tokens.mask[place]) : 1;
    const values = tokens[mode];
    return Array.isArray(values) ? values[place] : values;
  };

  const modesOf = (tokens) => Object.keys(MODES).filter((mode) => mode === "plain" || mode === "mask" || tokens[mode] !== undefined);

  /* Signed values: orange below, blue above 0. Left out of the loss: orange. */
  function shade(value, mode, top) {
    if (mode === "plain" || value === null || value === undefined || !top) return "";
    if (mode === "mask") return value ? "" : "rgba(var(--low), 0.35)";
    const part = Math.min(Math.abs(value) / top, 1) * DEEPEST;
    return part < 0.01 ? "" : `rgba(var(--${value < 0 ? "low" : "high"}), ${part.toFixed(3)})`;
  }

  function show(text) {
    return text === "" ? el("span", { class: "end" }, "·") : text.endsWith("\n") ? [el("span", { class: "end" }, "⏎"), text] : text;
  }

  const exact = (value) => (value === null || value === undefined ? "not finite" : String(value));

  function words(tokens, place) {
    const parts = [`token ${place + 1} of ${tokens.text.length}: ${JSON.stringify(tokens.text[place])}`];
    for (const mode of ["log_prob", "gap", "advantage"]) {
      if (tokens[mode] !== undefined) parts.push(`${mode.replace("_", "-")} ${exact(valueOf(tokens, mode, place))}`);
    }
    parts.push(valueOf(tokens, "mask", place) ? "in the loss" : "left out of the loss");
    return parts.join("  ·  ");
  }

  /* The element for one response; `remember` keeps the chosen colouring between samples. */
  function view(tokens, remember) {
    const modes = modesOf(tokens);
    if (!modes.includes(remember.mode)) remember.mode = modes.includes("gap") ? "gap" : "plain";
    let picked = -1;
    const spans = tokens.text.map((text, place) => el("span", { class: "token", "data-place": String(place) }, show(text)));
    const readout = el("p", { class: "muted mono readout", "aria-live": "polite" }, "Point at a token, or focus the text and use ← →.");
    const scale = el("span", { class: "scale" });
    function paint() {
      const values = tokens.text.map((_, place) => valueOf(tokens, remember.mode, place));
      const top = Math.max(...values.map((value) => Math.abs(value ?? 0)), 0);
      spans.forEach((span, place) => {
        span.style.background = shade(values[place], remember.mode, top);
        span.classList.toggle("left-out", valueOf(tokens, "mask", place) === 0);
      });
      const signed = remember.mode !== "plain" && remember.mode !== "mask";
      scale.replaceChildren(...(signed ? [
        `-${exact(top)}`,
        el("span", { class: "ramp", style: `background: linear-gradient(90deg, rgba(var(--low), ${DEEPEST}), transparent, rgba(var(--high), ${DEEPEST}))` }),
        `+${exact(top)}`] : []));
    }
    function pick(place) {
      if (picked >= 0) spans[picked].classList.remove("picked");
      picked = place;
      spans[place].classList.add("picked");
      readout.textContent = words(tokens, place);
    }
    const text = el("div", {
      class: "text tokens", tabindex: "0", role: "group", "aria-label": "Response, token by token",
      onpointerover: (event) => { if (event.target.dataset.place) pick(Number(event.target.dataset.place)); },
      onclick: (event) => { if (event.target.dataset.place) pick(Number(event.target.dataset.place)); },
      onkeydown: (event) => {
        const to = { ArrowLeft: picked - 1, ArrowRight: picked + 1, Home: 0, End: spans.length - 1 }[event.key];
        if (to === undefined || !spans.length) return;
        event.preventDefault();
        event.stopPropagation();
        pick(Math.min(Math.max(to, 0), spans.length - 1));
      },
    }, spans);
    const choose = el("select", { "aria-label": "Colour of tokens", onchange: (event) => { remember.mode = event.target.value; paint(); } },
      modes.map((mode) => el("option", { value: mode, selected: mode === remember.mode }, MODES[mode])));
    paint();
    return [el("div", { class: "tools" }, el("label", {}, "Colour by ", choose), scale), text, readout];
  }

  return { view, DEEPEST };
})();

/* The interactive ledger: sliders, the numbers they give, and a picture of the batch. */
"use strict";
window.LedgerPage = (() => {
  const { el, byId, unpack, printed } = Page;
  const MOST_ROWS = 24;
  const MOST_SEQUENCES = 65536;
  const SLIDERS = {
    prompts: ["prompts", 1, 512, 1], n: ["rollouts per prompt (n)", 1, 64, 1],
    prompt_width: ["prompt width P", 1, 4096, 1], prompt_shortest: ["shortest prompt", 1, 4096, 1], prompt_longest: ["longest prompt", 1, 4096, 1],
    response_width: ["response width R", 1, 8192, 1], response_shortest: ["shortest response", 0, 8192, 1], response_longest: ["longest response", 0, 8192, 1],
    aborted: ["aborted sequences", 0, 512, 1], seconds: ["step seconds", 0.1, 600, 0.1], devices: ["devices", 1, 64, 1],
  };
  const GIVEN = { responses: ["response_shortest", "response_longest", "aborted"], prompts: ["prompt_shortest", "prompt_longest"] };
  let data, start, values = {}, given = { responses: [], prompts: [] };
  const inputs = {};

  /* Lengths of every sequence: prompts spread evenly, responses too, the last ones aborted. */
  function lengths(settings, own) {
    const count = settings.prompts * settings.n;
    const taken = (own, size, width) => Array.from({ length: size }, (_, place) => Math.min(own[place % own.length], width));
    const each = own.prompts.length ? taken(own.prompts, settings.prompts, settings.prompt_width)
      : Ledger.spreadLengths(settings.prompts, settings.prompt_shortest, settings.prompt_longest);
    const prompts = each.flatMap((length) => Array(settings.n).fill(length));
    if (own.responses.length) return [prompts, taken(own.responses, count, settings.response_width)];
    const aborted = Math.min(settings.aborted, count);
    const spread = count > aborted ? Ledger.spreadLengths(count - aborted, settings.response_shortest, settings.response_longest) : [];
    return [prompts, [...spread, ...Array(aborted).fill(0)]];
  }

  /* Whole numbers within their bounds, and no length outside its width. */
  function legal(settings) {
    const found = {};
    for (const [name, [, low, high, step]] of Object.entries(SLIDERS)) {
      let value = Number(settings[name]);
      if (!Number.isFinite(value)) value = low;
      if (step === 1) value = Math.round(value);
      found[name] = Math.max(value, low);
    }
    found.n = Math.min(found.n, MOST_SEQUENCES);
    found.prompts = Math.max(1, Math.min(found.prompts, Math.floor(MOST_SEQUENCES / found.n)));
    for (const part of ["prompt", "response"]) {
      found[`${part}_longest`] = Math.min(found[`${part}_longest`], found[`${part}_width`]);
      found[`${part}_shortest`] = Math.min(found[`${part}_shortest`], found[`${part}_longest`]);
    }
    found.aborted = Math.min(found.aborted, found.prompts * found.n);
    return found;
  }

  /* Counts and entries of settings, as the page shows them. */
  function compute(settings, own = { responses: [], prompts: [] }) {
    const used = legal(settings), [prompts, responses] = lengths(used, own);
    const counts = Ledger.countsOf(prompts, responses, used.response_width);
    return { settings: used, prompts, responses, entries: Ledger.ledgerOf(data.ledger.ratios, counts, used.seconds, used.devices) };
  }

  function picture({ settings, prompts, responses }) {
    const { prompt_width: P, response_width: R } = settings, count = responses.length;
    const shown = count <= MOST_ROWS ? responses.map((_, place) => place) : Array.from({ length: MOST_ROWS }, (_, place) => Math.round((place * (count - 1)) / (MOST_ROWS - 1)));
    const share = (tokens) => `${(100 * tokens) / (P + R)}%`;
    const height = shown.length <= 12 ? 20 : 11, size = Math.min(height - 2, 9);
    byId("batch").replaceChildren(...shown.map((place) => {
      const length = responses[place], at = length ? length - 0.5 : R - 0.5;
      return el("div", { class: "row", style: `height: ${height}px`, title: `sequence ${place + 1}: prompt ${prompts[place]}, response ${length} tokens; the reward is written at index ${length ? length - 1 : `${R - 1}, which is padding`}` },
        el("span", { class: "span prompt", style: `left: ${share(P - prompts[place])}; width: ${share(prompts[place])}` }),
        el("span", { class: "span response", style: `left: ${share(P)}; width: ${share(length)}` }),
        el("span", { class: "edge", style: `left: ${share(P)}` }),
        el("span", { class: length ? "mark" : "mark lost", style: `width: ${size}px; height: ${size}px; left: calc(${share(P + at)} - ${size / 2}px); top: ${(height - 2 - size) / 2}px` }));
    }));
    const all = prompts.length * (P + R), held = prompts.reduce((sum, length) => sum + length, 0) + responses.reduce((sum, length) => sum + length, 0);
    byId("batch").setAttribute("aria-label", `${count} rows of ${P} prompt and ${R} response positions; ${responses.filter((length) => !length).length} without a response`);
    byId("batch-note").textContent = `${count > MOST_ROWS ? `${MOST_ROWS} of ${printed(count)} rows, at even distances. ` : ""}${printed(all)} positions of which ${(100 - (100 * held) / all).toFixed(1)} % are padding; every row is P = ${printed(P)} wide before the line and R = ${printed(R)} after it.`;
  }

  function show(changed) {
    const found = compute(values, given);
    values = found.settings;
    for (const [name, [range, number]] of Object.entries(inputs)) {
      if (name.startsWith("prompt_") && name !== "prompt_width") range.max = values.prompt_width;
      if (name.startsWith("response_") && name !== "response_width") range.max = values.response_width;
      if (name === "aborted") range.max = values.prompts * values.n;
      if (changed !== range) range.value = values[name];
      if (changed !== number) number.value = values[name];
    }
    const before = Object.fromEntries([...document.querySelectorAll("#numbers [data-entry]")].map((cell) => [cell.dataset.entry, cell.textContent]));
    byId("numbers").replaceChildren(Ledger.table(data.ledger, found.entries));
    for (const cell of document.querySelectorAll("#numbers [data-entry]")) {
      cell.classList.toggle("changed", cell.dataset.entry in before && before[cell.dataset.entry] !== cell.textContent);
    }
    const { entries } = found;
    byId("strip").replaceChildren(...[["tokens", entries.response_tokens], ["1 / N", entries.token_weight], ["mean length", entries.response_length_mean], ["tokens/s", entries.throughput]]
      .map(([name, value]) => el("span", {}, name, el("b", {}, Page.brief(value)))));
    picture(found);
  }

  function readGiven() {
    for (const [part, names] of Object.entries(GIVEN)) {
      const numbers = byId(`given-${part}`).value.split(/[\s,;]+/).filter(Boolean).map(Number);
      given[part] = numbers.filter((length) => Number.isInteger(length) && length >= 0);
      for (const name of names) inputs[name].forEach((input) => { input.disabled = given[part].length > 0; });
    }
    show();
  }

  function again() {
    values = { ...start };
    for (const part of Object.keys(GIVEN)) byId(`given-${part}`).value = data.given[part].join(", ");
    readGiven();
  }

  async function build() {
    data = await unpack("core");
    start = { ...data.settings };
    values = { ...start };
    byId("sliders").append(...Object.entries(SLIDERS).map(([name, [label, low, high, step]]) => {
      const take = (event) => { values = { ...values, [name]: event.target.value === "" ? low : Number(event.target.value) }; show(event.target); };
      const top = Math.max(Math.min(high, Math.max(4 * start[name], 16)), start[name]);
      const range = el("input", { type: "range", id: `range-${name}`, min: low, max: top, step, oninput: take });
      const number = el("input", { type: "number", id: `number-${name}`, min: low, step: step === 1 ? 1 : "any", "aria-label": label, oninput: take, onchange: () => show() });
      inputs[name] = [range, number];
      return el("div", { class: "slider" }, el("label", { for: range.id }, label), range, number);
    }));
    for (const part of Object.keys(GIVEN)) byId(`given-${part}`).addEventListener("input", readGiven);
    byId("reset").addEventListener("click", again);
    byId("settings").addEventListener("submit", (event) => event.preventDefault());
    again();
    document.documentElement.dataset.ready = "1";
  }

  build().catch((error) => {
    byId("fault").hidden = false;
    byId("fault").textContent = `The page could not be built: ${error.message}. A browser from 2023 or later is needed.`;
    throw error;
  });
  return { compute };
})();

/* The sample browser: a step's responses, group by group, and one of them in full. */
"use strict";
window.Samples = (() => {
  const { el, byId, unpack, brief, printed } = Page;
  const MOST = 500;
  const remember = { mode: "gap" };
  let number = 0, run, index = [], at = 0, rows = [], picked = 0, kind = "step", query = "", everywhere = false, asked = 0;
  const blocks = new Map();
  const parts = {};

  async function block(place) {
    const id = `block-${number}-${place}`;
    if (!blocks.has(id)) blocks.set(id, unpack(id));
    if (blocks.size > 16) blocks.delete(blocks.keys().next().value);
    return blocks.get(id) || unpack(id);
  }

  const widest = (row) => Math.max(0, ...((row.t && row.t.gap) || []).map((gap) => Math.abs(gap || 0)));
  const numberOf = { score: (row) => row.s, len: (row) => row.L, adv: (row) => row.A, gap: widest };
  const compare = { "<": (a, b) => a < b, ">": (a, b) => a > b, "=": (a, b) => a === b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b };

  /* "score>0 len<20 finish=length words": every part must hold. */
  function matcher(text) {
    const tests = text.trim().split(/\s+/).filter(Boolean).map((part) => {
      const found = /^(score|len|adv|gap)(<=|>=|<|>|=)(-?[\d.]+(?:e-?\d+)?)$/i.exec(part);
      if (found) {
        const [, name, sign, value] = found;
        return (row) => { const known = numberOf[name.toLowerCase()](row); return known !== undefined && known !== null && compare[sign](known, Number(value)); };
      }
      const finish = /^finish=(\w+)$/i.exec(part);
      if (finish) return (row) => String(row.f).toLowerCase() === finish[1].toLowerCase();
      const low = part.toLowerCase();
      return (row) => (row.search ||= [promptText(row), row.o, JSON.stringify(row.a), row.u, JSON.stringify(row.x || {})].join("\n").toLowerCase()).includes(low);
    });
    return (row) => tests.every((test) => test(row));
  }

  const promptText = (row) => (Array.isArray(row.p) ? row.p.map((message) => message.content).join("\n") : String(row.p ?? ""));
  const lastPrompt = (row) => (Array.isArray(row.p) && row.p.length ? String(row.p[row.p.length - 1].content) : promptText(row));
  const flat = (text) => String(text ?? "").replace(/\s+/g, " ").trim();
  const score = (row) => (row.s === undefined ? "none" : String(Number(row.s.toFixed(3))));

  async function load() {
    const ticket = ++asked, test = matcher(query);
    let found = [], seen = 0;
    if (!everywhere) {
      const entry = index[at];
      const all = entry ? (await block(entry[2]))[entry[3]] : [];
      seen = all.length;
      found = all.map((row, place) => ({ row, step: entry[1], place })).filter((one) => test(one.row));
    } else {
      let hits = 0;
      for (const entry of index) {
        const all = (await block(entry[2]))[entry[3]];
        if (ticket !== asked) return;
        seen += all.length;
        all.forEach((row, place) => { if (test(row) && ++hits <= MOST) found.push({ row, step: entry[1], place }); });
        if (seen % 5000 < all.length) parts.status.textContent = `searching, ${printed(seen)} read`;
      }
      parts.status.textContent = `${printed(hits)} of ${printed(seen)} match${hits > MOST ? `, the first ${MOST} are listed` : ""}`;
    }
    if (ticket !== asked) return;
    if (!everywhere) parts.status.textContent = query ? `${found.length} of ${seen} match` : `${seen} responses`;
    rows = found;
    list();
    pick(Math.min(picked, Math.max(rows.length - 1, 0)));
  }

  function list() {
    const made = [];
    let group = null;
    rows.forEach((one, place) => {
      const name = `${one.step}/${one.row.u}`;
      if (name !== group) {
        group = name;
        made.push(el("div", { class: "group", role: "presentation" }, everywhere ? `step ${one.step} · ` : "", flat(lastPrompt(one.row)) || "(empty prompt)"));
      }
      made.push(el("div", { class: "option", role: "option", id: `option-${place}`, "aria-selected": "false", onclick: () => pick(place) },
        el("span", { class: "score" }, score(one.row)),
        el("span", { class: "snippet" }, flat(one.row.o) || "(empty)"),
        el("span", { class: "length" }, `${one.row.L ?? "?"} tok`)));
    });
    parts.list.replaceChildren(...(made.length ? made : [el("p", { class: "muted", style: "padding: 0.7rem" }, index.length ? "Nothing matches." : "No responses.")]));
  }

  function pick(place) {
    const before = parts.list.querySelector('[aria-selected="true"]');
    if (before) before.setAttribute("aria-selected", "false");
    picked = place;
    const option = byId(`option-${place}`);
    if (!option) { parts.detail.replaceChildren(el("p", { class: "muted" }, "No response is picked.")); parts.list.removeAttribute("aria-activedescendant"); return; }
    option.setAttribute("aria-selected", "true");
    parts.list.setAttribute("aria-activedescendant", option.id);
    const top = option.offsetTop - 34, bottom = option.offsetTop + option.offsetHeight;
    if (top < parts.list.scrollTop) parts.list.scrollTop = top;
    else if (bottom > parts.list.scrollTop + parts.list.clientHeight) parts.list.scrollTop = bottom - parts.list.clientHeight;
    detail(rows[place]);
  }

  function detail({ row, step }) {
    const facts = [["step", step], ["score", score(row)], ["advantage", row.A === undefined ? null : brief(row.A)], ["tokens", row.L],
      ["prompt tokens", row.P], ["in the loss", row.T], ["ended by", row.f], ["source", row.d], ["group", row.u]]
      .filter(([, value]) => value !== null && value !== undefined);
    const beside = Object.entries(row.x || {});
    const messages = Array.isArray(row.p) ? row.p : [{ role: "prompt", content: row.p }];
    parts.detail.replaceChildren(
      el("ul", { class: "facts" }, facts.map(([name, value]) => el("li", {}, el("span", { class: "muted" }, `${name} `), String(value)))),
      el("h3", {}, "Prompt"),
      el("div", { class: "text", tabindex: "0", role: "group", "aria-label": "Prompt" }, messages.map((message) => el("div", {}, el("span", { class: "role" }, String(message.role)), String(message.content ?? "")))),
      el("h3", {}, "Response"),
      ...(row.t && row.t.text.length ? Tokens.view(row.t, remember) : [el("div", { class: "text", tabindex: "0", role: "group", "aria-label": "Response" }, row.o || "(empty)"),
        row.L ? el("p", { class: "muted" }, "No values per token were dumped for this response.") : null].filter(Boolean)),
      el("h3", {}, "Score"),
      el("table", { class: "numbers" }, el("tbody", {},
        el("tr", {}, el("th", { scope: "row" }, "score"), el("td", {}, score(row))),
        beside.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, typeof value === "object" ? JSON.stringify(value) : String(value)))),
        el("tr", {}, el("th", { scope: "row" }, "ground truth"), el("td", {}, typeof row.a === "object" ? JSON.stringify(row.a) : String(row.a ?? "-"))))));
  }

  function goto(place) {
    if (!index.length) return;
    at = Math.min(Math.max(place, 0), index.length - 1);
    parts.range.value = at;
    parts.step.value = index[at][1];
    parts.where.textContent = `${at + 1} of ${index.length}`;
    parts.before.disabled = at === 0;
    parts.after.disabled = at === index.length - 1;
    if (!everywhere) load();
  }

  /* Going to a step ends a search of all. */
  function turn(place) {
    everywhere = parts.all.checked = false;
    goto(place);
  }

  /* The entry whose step is nearest. */
  function closest(step) {
    let best = 0;
    index.forEach((entry, place) => { if (Math.abs(entry[1] - step) < Math.abs(index[best][1] - step)) best = place; });
    return best;
  }

  function keys(event) {
    if (/^(SELECT|TEXTAREA)$/.test(event.target.tagName) || event.target.type === "range" || event.target.type === "number") return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.type === "search";
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (event.target.classList.contains("text")) return;
      event.preventDefault();
      pick(Math.min(Math.max(picked + (event.key === "ArrowDown" ? 1 : -1), 0), rows.length - 1));
    } else if (!typing && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      event.preventDefault();
      turn(at + (event.key === "ArrowRight" ? 1 : -1));
    } else if (!typing && (event.key === "Home" || event.key === "End")) {
      event.preventDefault();
      pick(event.key === "Home" ? 0 : rows.length - 1);
    }
  }

  function choose(place, data) {
    number = place;
    run = data.runs[place];
    const kinds = [...new Set(run.samples.index.map((entry) => entry[0]))];
    if (!kinds.includes(kind)) kind = kinds[0] || "step";
    parts.kind.replaceChildren(...kinds.map((name) => el("option", { value: name, selected: name === kind }, name === "step" ? "training steps" : "validation")));
    parts.rule.textContent = run.samples.rule;
    narrow(Infinity);
  }

  function narrow(step) {
    index = run.samples.index.filter((entry) => entry[0] === kind);
    parts.range.max = Math.max(index.length - 1, 0);
    picked = 0;
    if (!index.length) { rows = []; list(); pick(0); return; }
    goto(step === Infinity ? index.length - 1 : closest(step));
    if (everywhere) load();
  }

  function build() {
    let typing;
    parts.kind = el("select", { onchange: (event) => { kind = event.target.value; narrow(index.length ? index[at][1] : Infinity); } });
    parts.before = el("button", { type: "button", "aria-label": "Step before", onclick: () => turn(at - 1) }, "←");
    parts.after = el("button", { type: "button", "aria-label": "Step after", onclick: () => turn(at + 1) }, "→");
    parts.range = el("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "Place among the steps", oninput: (event) => turn(Number(event.target.value)) });
    parts.step = el("input", { type: "number", "aria-label": "Step", onchange: (event) => turn(closest(Number(event.target.value))) });
    parts.where = el("span", { class: "muted" });
    parts.filter = el("input", { id: "sample-filter", type: "search", autocomplete: "off", spellcheck: false, placeholder: "words, score>0, len<20", oninput: (event) => {
      clearTimeout(typing);
      typing = setTimeout(() => { query = event.target.value; picked = 0; load(); }, 120);
    } });
    parts.all = el("input", { type: "checkbox", onchange: (event) => { everywhere = event.target.checked; picked = 0; load(); } });
    parts.status = el("span", { class: "muted", role: "status" });
    parts.list = el("div", { class: "list", role: "listbox", tabindex: "0", "aria-label": "Responses" });
    parts.detail = el("article", { class: "detail", "aria-label": "Response in full" });
    parts.rule = el("p", { class: "muted" });
    const body = byId("samples-body");
    body.append(
      el("div", { class: "tools" },
        el("label", { class: "run-picker" }, "Run ", el("select", { class: "run-select" })), el("label", {}, "From ", parts.kind),
        el("div", { class: "stepper" }, el("label", {}, "Step ", parts.step), parts.before, parts.range, parts.after, parts.where)),
      el("div", { class: "tools" }, el("label", {}, "Filter ", parts.filter), el("label", {}, parts.all, " search all steps"), parts.status,
        el("span", { class: "muted hint" }, "Words and conditions hold together: score, len, adv, gap (the widest of a response) with < > =, finish=stop or length.")),
      el("div", { class: "browser" }, parts.list, parts.detail), parts.rule);
    body.addEventListener("keydown", keys);
  }

  return { build, choose, state: () => ({ step: index.length ? index[at][1] : null, picked, listed: rows.length }) };
})();

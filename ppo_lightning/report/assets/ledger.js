/* The token ledger: the counts of metrics/ledger.py, and its table of ratios, which the page carries as data. */
"use strict";
window.Ledger = (() => {
  const { el, printed } = Page;

  /* Every entry, from counts; null where a denominator is 0 or not known. */
  function ledgerOf(ratios, counts, seconds, devices) {
    const whole = {
      sequences: counts.sequences,
      response_tokens: counts.response_tokens,
      trained_tokens: counts.trained_tokens,
      total_tokens: counts.prompt_tokens + counts.response_tokens,
      write_positions: counts.sequences,
      masked_positions: counts.sequences - counts.non_aborted,
      non_aborted: counts.non_aborted,
      clipped: counts.clipped,
    };
    const known = { ...whole, one: 1, device_seconds: seconds === null ? null : seconds * devices };
    const entries = { ...whole };
    for (const [name, [above, below]] of Object.entries(ratios)) {
      entries[name] = known[above] !== null && known[below] ? known[above] / known[below] : null;
    }
    return entries;
  }

  /* The counts of sequences with these lengths, as ledger() takes them. */
  function countsOf(promptLengths, responseLengths, width) {
    const sum = (values) => values.reduce((total, value) => total + value, 0);
    const tokens = sum(responseLengths);
    return {
      sequences: responseLengths.length,
      prompt_tokens: sum(promptLengths),
      response_tokens: tokens,
      trained_tokens: tokens,
      non_aborted: responseLengths.filter((length) => length > 0).length,
      clipped: responseLengths.filter((length) => length === width).length,
    };
  }

  /* spread_lengths() of metrics/ledger.py. */
  function spreadLengths(count, shortest, longest) {
    const steps = Math.max(count - 1, 1);
    return Array.from({ length: count }, (_, place) => shortest + Math.floor(((longest - shortest) * (count - 1 - place)) / steps));
  }

  /* A table of entries; `logged` adds a column with what the run logged. */
  function table(words, entries, logged) {
    const head = ["entry", "value", ...(logged ? ["logged"] : []), "how"];
    const rows = Object.entries(words.entries).map(([name, [label, formula]]) => {
      const cells = [el("th", { scope: "row" }, label), el("td", { class: "right", "data-entry": name }, printed(entries[name]))];
      if (logged) {
        const known = logged[name] !== undefined && logged[name] !== null;
        const agrees = known && Math.abs(logged[name] - entries[name]) <= 1e-5 * Math.abs(logged[name]) + 1e-12;
        cells.push(el("td", { class: known ? `right ${agrees ? "agree" : "differ"}` : "right muted" }, known ? `${printed(logged[name])} ${agrees ? "✓" : "≠"}` : ""));
      }
      return el("tr", {}, ...cells, el("td", { class: "muted how" }, formula));
    });
    return el("table", { class: `numbers ledger-table ${logged ? "with-logged" : ""}` },
      el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col", class: { value: "right", logged: "right", how: "how" }[text] || "" }, text)))),
      el("tbody", {}, ...rows));
  }

  return { ledgerOf, countsOf, spreadLengths, table };
})();

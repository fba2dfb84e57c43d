/* Two maps side by side, and one map of their differences: the head that Explore shows, and another
 * head, the same head with or without a causal mask, or another sentence. */

const compare = { with: "", text: "", trace: null, wrong: "" }; // trace: that of the text

/** What the second map can be: a list of {value, name, make}. make() gives the numbers, the hidden
 * cells and the labels, and T and S if they may differ; or null. */
function compareChoices(context) {
  const { trace, block, head, settings } = context, can = abilities(block), choices = [];
  const add = (value, name, make) => choices.push({ value, name, make });
  if (can.square && can.scores) {
    const mask = context.live.hidden ? "none" : "causal";
    const name = mask === "none" ? "this head without a mask" : "this head with a causal mask";
    add("mask", name, () => {
      const other = recomputed(trace, block, head, { ...settings, mask });
      return { numbers: other.weights, hidden: other.hidden, rows: context.rows,
               columns: context.columns };
    });
  }
  const traced = (from, of, at) => ({
    numbers: numbersOf(from, of.weights, at), hidden: hiddenOf(from, of, at), T: of.T, S: of.S,
    rows: (i) => rowLabel(of.weights, i), columns: (j) => columnLabel(of.weights, j) });
  if (context.live.changed)
    add("traced", "this head as traced", () => traced(trace, block, head));
  for (const b of trace.blocks.filter(({ T, S }) => T === block.T && S === block.S))
    for (let h = 0; h < b.heads; h++)
      if (b !== block || h !== head)
        add(`${b.name} ${h}`, `${b.layer ? "" : `${b.title}, `}${headName(trace, b, h)}`,
            () => traced(trace, b, h));
  if (canCompute() && !block.trained)
    add("text", "another sentence", () => {
      const from = otherTrace(), of = from?.blocks.find((b) => b.name === block.name);
      return of ? traced(from, of, Math.min(head, of.heads - 1)) : null;
    });
  return choices;
}

/** The trace of the second sentence, with all else as in the first; null if there is none. */
function otherTrace() {
  const text = compare.text || page.trace.text, asked = { ...askedOf(page.trace), text, query: "" };
  compare.wrong = "";
  try {
    checkSize(asked);
    const { code, said } = explainByLibrary(asked);
    if (code !== 0) throw new RangeError(said);
    return readTrace(JSON.parse(said));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    compare.wrong = error.message;
    return null;
  }
}

/** Second minus first; hidden where neither head sees the key. null: the sizes differ. */
function differenceOf(first, second) {
  if (first.T !== second.T || first.S !== second.S) return null;
  const numbers = Float64Array.from(second.numbers, (x, i) => x - first.numbers[i]);
  const hidden = first.hidden && second.hidden
    && Uint8Array.from(first.hidden, (x, i) => (x && second.hidden[i] ? 1 : 0));
  let at = 0;
  numbers.forEach((x, i) => { if (Math.abs(x) > Math.abs(numbers[at])) at = i; });
  return { ...first, kind: "difference", numbers, hidden, label: "second minus first", at };
}

function differenceText(first, second, difference) {
  if (!difference)
    return `${first.T} and ${second.T} words: maps of different sizes have no difference map.`;
  const { at, S } = difference, i = Math.floor(at / S), j = at % S, x = difference.numbers[at];
  if (x === 0) return "Both maps are equal.";
  const place = (m) => `“${m.rows(i)}” gives “${m.columns(j)}” ${numberText(m.numbers[at])}`;
  return `The largest difference is ${numberText(x)}: in the first map ${place(first)}, `
    + `in the second ${place(second)}.`;
}

function comparePicture(views) {
  const width = Math.max(byId("compare-body").clientWidth, 220);
  const each = width > 700 ? Math.floor(width / views.length) - 16 : width;
  return el("div", { class: "maps" }, views.map((view) => el("figure", { "data-map": view.id },
    square(view, Math.min(each, 420)).element, el("figcaption", { class: "fine" }, view.label))));
}

function comparePanel(context, redraw) {
  const { block, trace, head } = context, choices = compareChoices(context);
  if (!choices.length)
    return [el("p", { class: "fine" }, "This trace has nothing to compare this map with.")];
  const chosen = choices.find((c) => c.value === compare.with) ?? choices[0];
  const { T, S } = block, made = chosen.make();
  const first = { id: "first", kind: "weights", T, S, asks: true, numbers: context.live.weights,
                  hidden: context.live.hidden, rows: context.rows, columns: context.columns,
                  label: `first: ${headName(trace, block, head)}, as Explore shows it` };
  const second = made && { id: "second", kind: "weights", T, S, asks: true, ...made,
                           label: `second: ${chosen.name}` };
  const difference = second && differenceOf(first, second);
  const views = [first, second, difference && { ...difference, id: "difference" }].filter(Boolean);
  const select = el("select", { id: "compare-with",
    onchange: (e) => { compare.with = e.target.value; redraw(); } },
    choices.map((c) => el("option", { value: c.value, selected: c === chosen }, c.name)));
  const text = chosen.value === "text" ? control("Second sentence", el("input", {
    id: "compare-text", type: "text", value: compare.text || trace.text, spellcheck: "false",
    autocomplete: "off", onchange: (e) => { compare.text = e.target.value; redraw(); } })) : null;
  return [
    el("div", { class: "controls" }, control("Compare with", select), text),
    compare.wrong ? el("p", { class: "changed", role: "alert" },
                       `Not computed: ${compare.wrong}.`) : null,
    figure("compare", "Two maps and their difference", () => comparePicture(views),
           () => el("div", {}, views.map((view) => matrixTable(view, 0)))),
    second ? el("p", { id: "compare-said", role: "status" },
                differenceText(first, second, difference)) : null,
    difference ? el("p", { class: "fine" }, "Difference: red is more in the second map, blue is "
      + "less; the strongest colour is the largest difference. Row asks, column answers.") : null,
  ];
}

/* The pictures of the story of attn explain, by the name of the part of its script. Each returns
 * {element, motion}. `told` is what they are drawn from: the trace, its words, and the facts of the
 * script (explain_facts.c): q the followed word, p the key with the largest score of row q, k the
 * key with the largest weight of row q, all counted from 0. */

const storyPictures = {
  "@alone"(told) {
    const { element, chips } = wordChips(told);
    element.classList.add("large");
    return { element, motion: chips.filter((_, i) => i !== told.q).map((of) =>
      ({ of, from: { opacity: 1 }, at: 700, for: 1200 })) };
  },

  token_ids(told) {
    const { find } = told.trace, x = find.get("embeddings"), range = rangeOf(allNumbers(x));
    const rows = listedRows(told.n, [told.q]), ids = rowOf(told, find.get("token_ids"), 0);
    const boxes = rows.map((i) => el("span", { class: "id-box" }, String(ids[i])));
    const strips = rows.map((i) => strip(rowOf(told, x, i), range));
    const element = el("div", {},
      el("div", { class: "listing ids" }, headings("word", "id", "embedding", ""),
        rows.map((i, at) => [wordOf(told, i), boxes[at], strips[at],
        el("span", { class: "number" }, stripText(rowOf(told, x, i)))]).flat()),
      el("p", { class: "fine" }, "Red: above 0. Blue: below 0. Strong colour: far from 0."),
      leftOut(told.n, rows));
    return { element, motion: [...inTurn(boxes, pops, { at: 200 }),
                               ...inTurn(strips, unfolds, { at: 1000 })] };
  },

  w_q(told) {
    const { find } = told.trace, x = rowOf(told, find.get("embeddings"), told.q);
    const roles = [["queries", "W_q", "asks: query", "query"],
                   ["keys", "W_k", "is found: key", "key"],
                   ["values", "W_v", "gives: value", "value"]];
    const made = roles.map(([name]) => rowOf(told, find.get(name), told.q));
    const given = strip(x, rangeOf(x)), strips = made.map((y) => strip(y, rangeOf(y)));
    const windows = roles.map(([, table, , kind], i) =>
      el("span", { class: `window ${kind}` }, table,
         el("span", { class: "fine" }, ` ${made[i].length}×${x.length}`)));
    const { element: chips } = wordChips(told);
    const element = el("div", {}, chips,
      el("div", { class: "listing roles" },
        el("span", { class: "told-word chosen" }, "embedding"), el("span", {}), given,
        el("span", { class: "number" }, stripText(x)),
        roles.map(([, , says, kind], i) => [
          el("span", { class: `role ${kind}` }, says), windows[i], strips[i],
          el("span", { class: "number" }, stripText(made[i]))]).flat()));
    return { element, motion: [{ of: given, from: unfolds, at: 200 },
                               ...inTurn(windows, pops, { at: 800, each: 700 }),
                               ...inTurn(strips, unfolds, { at: 1100, each: 700 })] };
  },

  "@pair"(told) {
    const { find } = told.trace, q = rowOf(told, find.get("queries"), told.q);
    const k = rowOf(told, find.get("keys"), told.p), products = q.map((a, i) => a * k[i]);
    const shown = Math.min(q.length, 64), most = rangeOf(products) || 1;
    const bars = Array.from(products.slice(0, shown), (x, i) => el("rect", {
      x: i + 0.1, width: 0.8, y: x < 0 ? 20 : 20 - (19 * x) / most,
      height: Math.max((19 * Math.abs(x)) / most, 0.2), class: x < 0 ? "negative" : "product" }));
    const total = el("p", { class: "total" }, "added up: ",
                     el("strong", { class: "number" }, numberText(told.score)));
    const strips = [strip(q, rangeOf(q)), strip(k, rangeOf(k))];
    const chart = el("svg", { class: "products", viewBox: `0 0 ${shown} 40`,
                              preserveAspectRatio: "none", role: "img",
                              "aria-label": `The ${q.length} products of this pair` },
      el("line", { x1: 0, x2: shown, y1: 20, y2: 20, class: "zero" }), bars);
    const label = (role, word, kind) => el("span", { class: `role ${kind}` },
                                           `${role} of “${clip(word, 12)}”`);
    const element = el("div", { class: "listing pair" },
      label("query", told.words[told.q], "query"), strips[0],
      label("key", told.words[told.p], "key"), strips[1],
      el("span", { class: "role" }, "products"), chart, el("span", {}), total);
    return { element, motion: [...inTurn(strips, unfolds, { at: 100, each: 400 }),
      ...inTurn(bars, pops, { at: 1000, each: 80, length: 300 }),
      { of: total, from: appears, at: 1100 + Math.min(80 * shown, 2400), for: 600 }] };
  },

  scores: (told) => filled(told, told.block.raw, null),

  scaled_scores(told) {
    const raw = rowOf(told, told.block.raw, told.q), { scale } = told.block;
    const hidden = (j) => told.hidden?.[told.q * told.n + j];
    const rows = listedRows(told.n, [told.p]).filter((j) => !hidden(j));
    const seen = Array.from(raw).filter((_, j) => !hidden(j)).length;
    // Rounded as on the next screens.
    const scaled = rowOf(told, told.block.scaled ?? told.block.raw, told.q);
    const list = el("div", { class: "listing scaled" }), said = el("output", { class: "number" });
    const most = Math.max(...rows.map((j) => Math.abs(raw[j]))) || 1;
    const fillIn = (by) => {
      const all = Array.from(raw, (s, j) => (hidden(j) ? -Infinity : s * by));
      const shares = softmaxRows(all, 1, told.n);
      said.textContent = by === scale ? scaleName(told) : `× ${general(by, 3)}`;
      const bars = rows.map((j) => signedBar((raw[j] * by) / most));
      refill(list, headings("answers", "score, scaled", "", "share"),
        rows.map((j, i) => [wordOf(told, j, "columns"), bars[i].element,
          el("span", { class: "number" }, numberText(by === scale ? scaled[j] : raw[j] * by)),
          el("span", { class: "number" }, `${(100 * shares[j]).toFixed(1)} %`)]).flat());
      return bars;
    };
    const bars = fillIn(scale), size = Math.abs(scale) || 1, sign = Math.sign(scale) || 1;
    const control = el("label", { class: "control" },
      el("span", { class: "control-name" }, "Scale"),
      el("input", { type: "range", min: -3, max: 1, step: 0.02, value: Math.log10(size),
                    "aria-label": "What the scores are multiplied by",
                    oninput: (e) => fillIn(sign * 10 ** Number(e.target.value)) }), said,
      el("button", { type: "button", class: "quiet", onclick: (e) => {
        e.target.parentNode.querySelector("input").value = Math.log10(size);
        fillIn(scale);
      } }, "As computed"));
    return { element: el("div", {}, list, leftOut(seen, rows), told.printed ? null : control),
      motion: bars.map(({ fill }) => ({ of: fill, at: 600, for: 1400, from: {
        transform: `scaleX(${Math.min(Math.abs(1 / scale), 1e3)})` } })) };
  },

  masked_scores(told) {
    const open = square(stepView(told, told.block.scaled), told.width, told.q);
    const { scaled, masked } = told.block, view = stepView(told, masked, 0, told.hidden);
    const closed = square({ ...view, numbers: numbersOf(told.trace, scaled, 0) }, told.width,
                          told.q);
    return { element: el("div", { class: "layers" }, open.element, closed.element),
             motion: [{ of: closed.element, from: appears, at: 900, for: 1400 }] };
  },

  weights(told) {
    const w = rowOf(told, told.block.weights, told.q);
    const hidden = (j) => told.hidden?.[told.q * told.n + j];
    const rows = listedRows(told.n, [told.k]), used = told.block.scaled;
    const s = rowOf(told, used, told.q), seen = Array.from(s).filter((_, j) => !hidden(j));
    const top = Math.max(...seen), sum = seen.reduce((a, x) => a + Math.exp(x - top), 0);
    const bars = rows.map((j) => shareBar(w[j], "weight"));
    const element = el("div", {},
      el("div", { class: "listing shares" }, headings("answers", "scaled score", "share", ""),
        rows.map((j, i) => [wordOf(told, j, "columns"),
          el("span", { class: "number" }, hidden(j) ? "hidden" : numberText(s[j])),
          bars[i].element, el("span", { class: "number" }, numberText(w[j]))]).flat()),
      leftOut(told.n, rows));
    return { element, motion: bars.map(({ fill }) => ({ of: fill, at: 300, for: 2200, from: [
      { transform: "scaleX(0)" }, { transform: `scaleX(${sum})`, offset: 0.45 },
      { transform: `scaleX(${sum})`, offset: 0.6 }, { transform: "scaleX(1)" }] })) };
  },

  context(told) {
    const { weights, v, context } = told.block, w = rowOf(told, weights, told.q);
    const z = rowOf(told, context, told.q), range = rangeOf(numbersOf(told.trace, v, 0));
    const rows = listedRows(told.n, [told.k]);
    const strips = rows.map((j) => strip(rowOf(told, v, j), range));
    strips.forEach((s, i) => { s.style.opacity = 0.06 + 0.94 * w[rows[i]]; });
    const result = strip(z, range);
    const element = el("div", {},
      el("div", { class: "listing mix" }, headings("value of", "share", "", "begins with"),
        rows.map((j, i) => [wordOf(told, j, "columns"),
          el("span", { class: "number" }, numberText(w[j])), strips[i],
          el("span", { class: "number" }, numberText(rowOf(told, v, j)[0]))]).flat(),
        el("span", { class: "told-word chosen" }, "the mix"), el("span", { class: "number" }, "Σ"),
        result, el("span", { class: "number" }, numberText(z[0]))),
      leftOut(told.n, rows));
    return { element, motion: [
      ...strips.map((of) => ({ of, from: { opacity: 1 }, at: 600, for: 1200 })),
      { of: result, from: unfolds, at: 1700, for: 900 }] };
  },

  "@eyes"(told) {
    const { weights } = told.block, shown = Math.min(weights.heads, 4);
    const each = Math.max(Math.floor(told.width / Math.min(shown, 2)) - 76, 150);
    const maps = Array.from({ length: shown }, (_, h) => square(
      stepView(told, weights, h, told.hidden), Math.min(each, shown > 1 ? 300 : 420), told.q));
    const element = el("div", {}, eyeControls(told),
      el("div", { class: "maps" }, maps.map((m, h) => el("figure", {}, m.element,
        el("figcaption", { class: "fine" }, `head ${h + 1}`)))),
      weights.heads > shown
        ? el("p", { class: "fine" }, `… and ${weights.heads - shown} more heads, in Explore.`)
        : null);
    return { element, motion: inTurn(maps.map((m) => m.plot), fills, { at: 200, each: 700,
                                                                        length: 1200 }) };
  },

  "@trained"(told) {
    const heads = told.trace.blocks.filter((b) => b.trained);
    if (!heads.length)
      return { element: el("p", {}, told.trace.trainedSetting ?? ""), motion: [] };
    const at = Math.min(story.trained, heads.length - 1), chosen = heads[at];
    const two = told.width > 640 || told.printed;
    const each = Math.max(Math.floor(told.width / (two ? 2 : 1)) - 16, 150);
    const map = (block, hidden) => square(stepView(told, block.weights, 0, hidden),
                                          Math.min(each, 340), -1);
    const random = map(told.block, told.hidden);
    const trained = map(chosen, hiddenOf(told.trace, chosen, 0));
    const pick = told.printed ? null : el("div", { class: "tab-row" }, heads.map((b, i) =>
      el("button", { type: "button", class: `tab${i === at ? " here" : ""}`,
                     id: `trained-${b.name}`, "aria-pressed": String(i === at),
                     onclick: () => { story.trained = i; drawStory({ moves: true }); } },
         b.weights.title.replace(/^.*?: /, ""))));
    const element = el("div", {}, pick,
      el("div", { class: "maps" },
        el("figure", {}, random.element, el("figcaption", { class: "fine" }, "random tables")),
        el("figure", {}, trained.element,
           el("figcaption", { class: "fine" }, `trained: ${chosen.weights.title}`))),
      el("p", { class: "fine" }, chosen.weights.sentence,
         " Hatched: hidden by a causal mask."), told.printed ? null : repeatHint(told));
    return { element, motion: [{ of: trained.plot, from: fills, at: 700, for: 1800 }] };
  },
};

/** The heading of a listing's columns. */
function headings(...texts) {
  const last = texts.length - 1;
  return texts.map((t, i) => el("span", { class: i < last ? "fine" : "fine number" }, t));
}

function wordOf(told, i, side = "rows") {
  const chosen = side === "rows" && i === told.q;
  return el("span", { class: `told-word${chosen ? " chosen" : ""}` }, clip(told.words[i], 14));
}

/** A square that fills row by row. */
function filled(told, step, hidden) {
  const view = stepView(told, step, 0, hidden);
  const { element, plot } = square(view, told.width, told.q);
  return { element: el("div", {}, element,
                       el("p", { class: "fine direction" }, "Row asks, column answers.")),
           motion: [{ of: plot, from: fills, at: 200, for: 2200, easing: `steps(${view.T})` }] };
}

function scaleName({ block }) {
  const d = block.q.width;
  return Math.abs(block.scale * Math.sqrt(d) - 1) < 1e-6 ? `÷ √${d}`
                                                         : `× ${general(block.scale, 3)}`;
}

/** Mask and number of heads, where the page can compute them. */
function eyeControls(told) {
  if (told.printed || !own.written) return null;
  const set = (field, value) => { setOwn(field, value); };
  const heads = told.block.weights.heads, off = !canCompute();
  return el("div", { class: "controls" },
    control("Mask", el("input", { type: "checkbox", role: "switch", id: "eyes-mask",
      class: "computes", checked: told.masked, disabled: off,
      onchange: (e) => set("causal", e.target.checked) })),
    el("span", { class: "control", role: "group", "aria-label": "Heads" },
      el("span", { class: "control-name" }, "Heads"), [1, 2, 3, 4].map((n) =>
        el("button", { type: "button", class: `computes tab${n === heads ? " here" : ""}`,
                       id: `eyes-${n}`, "aria-pressed": String(n === heads), disabled: off,
                       onclick: () => set("heads", String(n)) }, String(n)))));
}

/** Without a repeated word, two of the trained heads have nothing to find. */
function repeatHint(told) {
  if (told.facts.repeated !== undefined || !own.written) return null;
  const again = `${told.trace.text} ${told.words.slice(0, 2).join(" ")}`;
  return el("p", {}, "No word appears twice here, so the heads that look for earlier words find "
    + "nothing. ", el("button", { type: "button", id: "repeat-words", class: "computes",
                                  disabled: !canCompute(),
                                  onclick: () => setOwn("text", again) }, "Repeat two words"));
}

/* The pictures of the story of a model’s page (model.lesson). */

/** The head that a part of the story names: {block, head}, from the facts NAME_layer, NAME_head. */
function foundHead({ trace, facts }, name) {
  const layer = Number(facts[`${name}_layer`]), head = Number(facts[`${name}_head`]) - 1;
  const block = trace.blocks.find((b) => b.layer === layer) ?? trace.blocks.find((b) => !b.layer);
  return block && head < block.heads ? { block, head } : null;
}

/** The map of a head, and a button that opens it in Explore. */
function foundPicture(told, name) {
  const found = foundHead(told, name);
  if (!found) return null;
  const { block, head } = found, hidden = hiddenOf(told.trace, block, head);
  const w = numbersOf(told.trace, block.weights, head), { T, S } = block;
  const view = { kind: "weights", numbers: w, T, S, hidden, rows: (i) => told.words[i],
                 columns: (j) => told.words[j], label: headName(told.trace, block, head) };
  const { element, plot } = square(view, told.width);
  return { element: el("figure", {}, element, el("figcaption", { class: "fine" },
                       `${view.label}. Row asks, column answers.`)),
           motion: [{ of: plot, from: fills, at: 200, for: 2000, easing: `steps(${T})` }] };
}

/** The rows of a table of probabilities as lines: what each is of, its share, the number. */
function chanceLines(names, chances) {
  const bars = Array.from(chances, (p) => shareBar(p));
  return { bars, lines: bars.map(({ element }, i) => [el("span", { class: "told-word" }, names(i)),
    el("span", { class: "number" }, percent(chances[i])), element,
    el("span", { class: "number" }, numberText(chances[i]))]).flat() };
}

const growing = (bars) => bars.map(({ fill }) => ({ of: fill, from: { transform: "scaleX(0)" },
                                                    at: 300, for: 1400 }));

Object.assign(storyPictures, {
  "@tokens"(told) {
    const ids = rowOf(told, told.trace.find.get("token_ids"), 0);
    const kind = (i) => (i === told.q ? "token chosen" : "token");
    const boxes = told.words.map((word, i) => el("span", { class: kind(i) },
      el("span", { class: "told-word" }, clip(word, 24)),
      el("span", { class: "fine number" }, String(ids[i]))));
    return { element: el("div", { class: "chips" }, boxes),
             motion: inTurn(boxes, pops, { at: 200 }) };
  },

  "@heads"(told) {
    const { trace } = told, one = trace.blocks.find((b) => b.layer) ?? told.block;
    const layers = layersOf(trace, one), few = layers.length * one.heads <= 24;
    const context = { trace, block: null, state: { head: -1 } };
    waitingThumbs.length = 0;
    setTimeout(() => drawWaiting(trace), 30);
    const open = (patch) => {
      story.left = placeKey(); // to this head, not to the story’s place
      change({ ...patch, tab: "explore" });
    };
    const rows = layers.map((b) => el("div", { class: "layer" },
      el("span", { class: "layer-name" }, `L${b.layer}`), el("div", { class: "heads" },
        Array.from({ length: b.heads }, (_, h) => {
          const button = thumbButton(context, b, h, open);
          button.removeAttribute("id"); // that of Explore
          return button;
        }))));
    return { element: el("div", { class: few ? "thumbs few" : "thumbs" },
                         told.printed ? [] : rows),
             motion: inTurn(rows, appears, { at: 200, each: 250 }) };
  },

  "@previous": (told) => foundPicture(told, "previous"),
  "@same": (told) => foundPicture(told, "same"),
  "@first": (told) => foundPicture(told, "first"),

  "@next"(told) {
    const step = told.trace.find.get("next_tokens_at"), one = (step.height - 1) / 2; // T = 1
    const list = el("div", { class: "listing shares" }), said = el("output", { class: "number" });
    const fillIn = (at) => {
      const p = rowOf(told, step, at), rest = 1 - p.reduce((sum, x) => sum + x, 0);
      said.textContent = rowLabel(step, at);
      const { bars, lines } = chanceLines((i) => columnLabel(step, i), p);
      refill(list, headings("next token", "of all tokens", "", ""), lines,
        el("span", { class: "fine" }, "all others"),
        el("span", { class: "number" }, percent(Math.max(rest, 0))), el("span"), el("span"));
      return bars;
    };
    const bars = fillIn(one);
    const control = el("label", { class: "control" },
      el("span", { class: "control-name" }, "Temperature"),
      el("input", { type: "range", min: 0, max: step.height - 1, step: 1, value: one,
                    "aria-label": "Temperature",
                    oninput: (e) => {
                      fillIn(Number(e.target.value));
                      e.target.setAttribute("aria-valuetext", said.textContent);
                    } }), said);
    const note = el("p", { class: "fine" }, "The probabilities are those among all tokens of the "
      + "model, at each temperature. At T = 1 they are the model’s own.");
    return { element: el("div", {}, list, told.printed ? [] : [control, note]),
             motion: growing(bars) };
  },

  "@lens"(told) {
    const lens = told.trace.find.get("logit_lens"), first = told.trace.find.get("logit_lens_first");
    const p = Array.from({ length: lens.height }, (_, l) => rowOf(told, lens, l)[0]);
    const { bars, lines } = chanceLines((l) => `layer ${l + 1}`, p);
    const named = lines.map((e, i) => (i % 4 === 1
      ? el("span", { class: "told-word" }, clip(rowLabel(first, (i - 1) / 4), 14)) : e));
    return { element: el("div", { class: "listing shares lens" },
                         headings("after", "likeliest",
                                  `probability of “${columnLabel(lens, 0)}”`, ""),
                         named),
             motion: growing(bars) };
  },
});

/** The block and head at which Explore opens for a screen of the story of a model; or null. */
function placeOfFound(told, screen) {
  const found = foundHead(told, screen.name.slice(1));
  return found && { ...found, step: null, stage: 7 };
}

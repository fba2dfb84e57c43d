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

/** The likeliest tokens at a temperature, as shares of these few: p^(1/T), made to add up to 1. */
function atTemperature(probabilities, temperature) {
  const powers = Array.from(probabilities, (p) => (p / probabilities[0]) ** (1 / temperature));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((x) => x / sum);
}

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
    const step = told.trace.find.get("next_tokens"), p = numbersOf(told.trace, step, 0);
    const list = el("div", { class: "listing shares" }), said = el("output", { class: "number" });
    const fillIn = (temperature) => {
      const some = atTemperature(p, temperature), one = temperature === 1;
      said.textContent = `T = ${general(temperature, 3)}`;
      const bars = Array.from(p, (x, i) => shareBar(one ? x : some[i]));
      refill(list, headings("next token", one ? "of all tokens" : "of these", "", ""),
        bars.map(({ element }, i) => [el("span", { class: "told-word" }, rowLabel(step, i)),
          el("span", { class: "number" }, percent(one ? p[i] : some[i])), element,
          el("span", { class: "number" }, numberText(one ? p[i] : some[i]))]).flat());
      return bars;
    };
    const bars = fillIn(1);
    const slide = (e) => fillIn(Number((10 ** Number(e.target.value)).toPrecision(3)));
    const control = el("label", { class: "control" },
      el("span", { class: "control-name" }, "Temperature"),
      el("input", { type: "range", min: -1, max: 1, step: 0.05, value: 0,
                    "aria-label": "Temperature", oninput: slide }), said);
    const note = el("p", { class: "fine" }, "At T = 1 these are the model’s probabilities, among "
      + "all its tokens. At another temperature they are shares among those listed here: the page "
      + "does not have the logits of the others.");
    return { element: el("div", {}, list, told.printed ? [] : [control, note]),
             motion: bars.map(({ fill }) => ({ of: fill, from: { transform: "scaleX(0)" }, at: 300,
                                               for: 1400 })) };
  },
});

/** The block and head at which Explore opens for a screen of the story of a model; or null. */
function placeOfFound(told, screen) {
  const found = foundHead(told, screen.name.slice(1));
  return found && { ...found, step: null, stage: 7 };
}

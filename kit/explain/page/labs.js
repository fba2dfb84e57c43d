/* The labs: settings that change this head's numbers or their display. Nothing outside this head
 * changes, and the page says so. */

const labTexts = {
  vectors: "The trace has no queries and keys of these weights.",
  scores: "The trace has no scores of these weights.",
  values: "The trace has no values of these weights.",
  square: "Only where the same words ask and answer.",
};

/** A labelled control; why: the reason why it cannot be used, or "". */
function control(label, input, why = "", extra = null) {
  if (why) {
    input.setAttribute("disabled", "");
    input.setAttribute("title", why);
  }
  return el("label", { class: `control${why ? " off" : ""}`, title: why || null },
            el("span", { class: "control-name" }, label), input, extra);
}

function choice(id, options, value, change, disabled = []) {
  return el("select", { id, onchange: (e) => change(e.target.value) },
    Object.entries(options).map(([key, text]) =>
      el("option", { value: key, selected: key === value, disabled: disabled.includes(key) },
         text)));
}

function slider(id, low, high, step, value, text, change) {
  return el("input", { id, type: "range", min: low, max: high, step, value,
                       "aria-valuetext": text, oninput: (e) => change(Number(e.target.value)) });
}

/** The words in another order. The same seed gives the same shuffle (Fisher, Yates; splitmix). */
function shuffled(n, seed) {
  let state = BigInt(seed);
  const next = (below) => {
    state = BigInt.asUintN(64, state + 0x9e3779b97f4a7c15n);
    let x = state;
    x = BigInt.asUintN(64, (x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n);
    x = BigInt.asUintN(64, (x ^ (x >> 27n)) * 0x94d049bb133111ebn);
    return Number((x ^ (x >> 31n)) % BigInt(below));
  };
  const order = Array.from({ length: n }, (_, i) => i);
  for (let i = n - 1; i > 0; i--) {
    const j = next(i + 1);
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order.every((x, i) => x === i) && n > 1 ? shuffled(n, seed + 1) : order;
}

/** After a shuffle: whether any number changed, or whether they only moved. */
function orderFinding(trace, block, head, settings) {
  const { order } = settings, { T } = block;
  const straight = recomputed(trace, block, head, { ...settings, order: null });
  const moved = recomputed(trace, block, head, settings);
  let most = 0;
  for (let i = 0; i < T; i++)
    for (let j = 0; j < T; j++)
      most = Math.max(most, Math.abs(moved.weights[i * T + j]
                                     - straight.weights[order[i] * T + order[j]]));
  return most;
}

function orderText(context) {
  const { trace, block, head, settings } = context;
  if (!settings.order) return null;
  const most = orderFinding(trace, block, head, settings);
  return most < 1e-9
    ? "Rows and columns moved with their words; no number changed (largest difference "
      + `${numberText(most)}). Attention by itself does not know the order of words: that is why `
      + "models add positions."
    : `The mask goes by place, so numbers changed, by up to ${numberText(most)}: order matters `
      + "here through the mask alone.";
}

function viewText(context) {
  const { settings, block, trace } = context;
  if (settings.view === "contribution")
    return `Shares of α·${normName(block)}: what a key adds to the sum, not how much it is looked `
           + "at. A key with a short value adds little, whatever its weight."
           + (block.norms ? "" : " (The trace has no W_O, so ‖v‖ stands alone.)");
  if (settings.view === "rollout") {
    const layers = trace.blocks.filter((b) => b.layer && b.moment === block.moment
                                              && b.layer <= block.layer).length;
    return "Rollout: half of every layer's mean over heads, half of each word itself, layers "
           + `multiplied; here ${Math.max(layers, 1)} of them.`;
  }
  return null;
}

function normName(block) {
  return block.norms ? "‖v W_O‖" : "‖v‖";
}

function labControls(context, change) {
  const { block, settings: s } = context, can = abilities(block);
  const set = (patch) => change({ settings: { ...s, ...patch } });
  const D = block.q?.width ?? 0, T = s.temperature;
  const size = s.size > 0 ? s.size : D;
  const cold = { ...context, settings: { ...s, temperature: 1 } };
  const need = (name) => (can[name] ? "" : labTexts[name]);
  return [
    control("Scale", el("input", { type: "checkbox", id: "lab-scale", checked: s.scale,
                                   role: "switch",
                                   onchange: (e) => set({ scale: e.target.checked }) }),
            need("vectors"), el("output", {}, s.scale ? scaleText(cold) : "off")),
    control("d_k", slider("lab-d", 1, Math.max(D, 1), 1, size, `${size} of ${D}`,
                          (d) => set({ size: d === D ? 0 : d })),
            need("vectors"), el("output", {}, D ? `first ${size} of ${D}` : "–")),
    control("Temperature", slider("lab-t", -2, 2, 0.05, Math.log10(T), general(T, 3),
      (x) => set({ temperature: Math.abs(x) < 0.01 ? 1 : Number((10 ** x).toPrecision(3)) })), "",
            el("output", {}, `T = ${general(T, 3)}`)),
    control("Mask", choice("lab-mask", { trace: "as traced", none: "none", causal: "causal" },
                           s.mask, (mask) => set({ mask })),
            need("scores") || (can.square ? "" : labTexts.square)),
    control("applied as", choice("lab-masking", MASKING, s.masking,
                                 (masking) => set({ masking })), need("scores")),
    control("View", choice("lab-view", { weights: "α, the weights",
                                         contribution: `α·${normName(block)}`,
                                         rollout: "rollout" }, s.view, (view) => set({ view }),
                           [can.values ? "" : "contribution", can.square ? "" : "rollout"])),
    control("Sink", el("input", { type: "checkbox", id: "lab-sink", checked: s.hideSink,
                                  role: "switch",
                                  onchange: (e) => set({ hideSink: e.target.checked }) }), "",
            el("output", {}, s.hideSink ? "taken out, renormalised" : "shown")),
    el("span", { class: "control" }, el("span", { class: "control-name" }, "Order"),
      el("button", { type: "button", id: "lab-shuffle", disabled: !can.square,
                     onclick: () => set({ order: shuffled(block.T, (s.seed ?? 0) + 1),
                                          seed: (s.seed ?? 0) + 1 }) }, "Shuffle the words")),
    el("button", { type: "button", id: "lab-reset", class: "quiet",
                   disabled: !changesNumbers(s) && s.view === "weights" && !s.hideSink,
                   onclick: () => change({ settings: untouched() }) }, "As traced"),
  ];
}

function labPanel(context, change) {
  const { settings, live } = context;
  const said = [orderText(context), viewText(context),
    settings.hideSink && live.sink
      ? `“${context.columns(live.sink.at)}” is taken out and every row renormalised: a way to `
        + "look, not what the model does." : null,
    live.changed ? "Computed here, for this head of this layer only; nothing that follows it in a "
                   + "model is computed again." : null].filter(Boolean);
  return [el("div", { class: "controls" }, labControls(context, change)),
          el("p", { class: "fine", id: "lab-said" }, said.join(" "))];
}

/* Navigation: nine stages that are the same for everything shown (a sentence, a lesson, a layer of
 * a model), and every step of the trace in order. A view is what the matrix shows. */

const STAGES = ["tokens", "embed", "Q K V", "Q·Kᵀ", "scale", "mask", "softmax", "× V", "heads"];

/** The steps of a stage, of this block. */
function stageSteps(trace, block, stage) {
  const find = (name) => trace.find.get(name), known = (list) => list.filter((s) => s && !s.aside);
  const inputs = [block.q, block.k, block.v].filter(Boolean);
  const own = (s) => (s && (s.layer ?? block.layer) === block.layer ? s : null);
  const source = inputs.map((s) => s.made.op === "project" ? find(s.made.a) : null).find(Boolean);
  if (block.trained && (stage === 2 || stage === 3)) return []; // its embeddings are not shown
  switch (stage) {
    case 1: { // the steps of the text, not the model's predictions
      const at = (s) => trace.shown.indexOf(s);
      const first = Math.min(...trace.blocks.map((b) => at(b.weights)));
      return trace.shown.filter((s) => s.kind === "ids" && at(s) < first);
    }
    case 2: {
      const looked = trace.shown.filter((s) => s.made.op === "lookup");
      const x = source ?? looked[0] ?? own(find("embeddings")) ?? find("inputs");
      return known([...new Set([own(find("embeddings")), x, own(find("normed")),
                                x && x.made.op === "lookup" ? find(x.made.b) : null])]);
    }
    case 3: {
      const made = inputs.map((s) => (s.made.op === "project" ? find(s.made.b)
                                                              : makerOf(trace, s)));
      return known([...new Set([...inputs, ...made])]);
    }
    case 4: return known([block.raw]);
    case 5: return known([block.scaled]);
    case 6: return known([block.masked]);
    case 7: return [block.weights];
    case 8: return known([block.context]);
    default: return [];
  }
}

/** Why a stage is missing; "" if it exists. */
function stageAbsent(trace, block, stage, live) {
  if (stage >= 4 && stage <= 6) {
    const numbers = [live.raw, live.scaled, live.masked][stage - 4];
    if (!numbers) return "The trace has only the weights here.";
    if (stage === 6 && !live.hidden) return "Nothing is hidden here; the mask lab can hide.";
    return "";
  }
  if (stage === 8) return block.v || block.context ? "" : "The trace has no values here.";
  if (stage >= 7) return "";
  return stageSteps(trace, block, stage).length ? "" : "The trace has no such step.";
}

/** The stage to which a step belongs, and its block, if it is part of one. */
function placeOf(trace, step, block) {
  const chain = (b) => [[4, b.raw], [5, b.scaled], [6, b.masked], [7, b.weights], [8, b.context]];
  const blocks = [block, ...trace.blocks.filter((b) => b !== block)];
  for (const b of blocks)
    for (const [stage, s] of chain(b)) if (s === step) return { block: b, stage };
  for (let stage = 1; stage <= 3; stage++)
    for (const b of blocks)
      if (stageSteps(trace, b, stage).includes(step)) return { block: b, stage };
  return { block, stage: 0 };
}

/** Titles, formulas and sentences of the matrices between the trace's steps. */
const between = {
  4: ["Every query asks, every key answers", "S = Q·Kᵀ"],
  5: ["Scale", "S × scale"], 6: ["Hide keys", "−∞ where a key is hidden"],
  7: ["Softmax", "A = softmax(S)"], 8: ["Mix the values by the weights", "Z = A·V"],
};

/** The view at a stage 4…8 of a block. */
function attentionView(context) {
  const { block, live, state, settings, trace } = context, { stage } = state;
  const step = stageSteps(trace, block, stage)[0] ?? null, mix = stage === 8;
  let numbers = [live.raw, live.scaled, live.masked, live.weights, live.context][stage - 4];
  if (mix && !numbers) {
    const v = numbersOf(trace, block.v, context.head, block.heads);
    const moved = settings.order ? permuteRows(v, settings.order, block.v.width) : v;
    numbers = mixRows(live.weights, moved, block.T, block.S, block.v.width);
  }
  const view = { step, numbers, T: block.T, S: mix ? numbers.length / block.T : block.S,
                 kind: stage === 7 ? "weights" : mix ? "values" : "scores",
                 hidden: stage >= 6 && !mix ? live.hidden : null, attention: !mix,
                 mix: mix && block.v !== null, asks: !mix, rows: context.rows,
                 columns: mix ? (j) => String(j + 1) : context.columns, named: true };
  if (stage === 7 && settings.view === "contribution" && block.v)
    Object.assign(view, { numbers: contributions(live.weights, context.norms, block.T, block.S),
                          shares: { norms: context.norms, name: normName(block) } });
  if (stage === 7 && settings.view === "rollout" && context.rolled)
    Object.assign(view, { numbers: context.rolled, hidden: null, attention: false, given:
      "Rollout mixes all heads and the layers below; its cells have no equation of their own." });
  if (state.quiz && !state.quiz.done && stage >= 7) view.blank = stage === 7 ? state.quiz.at : -1;
  return view;
}

/** The view of any other step. */
function plainView(context, step) {
  const { trace, head } = context;
  const own = Math.min(head, step.heads - 1);
  return { step, numbers: numbersOf(trace, step, own), T: step.height, S: step.width,
           kind: { scalar: "values", probabilities: "weights" }[step.kind] ?? step.kind,
           asks: step.kind === "scores"
             || step.kind === "weights", hidden: null, named: step.rows !== undefined,
           namedColumns: step.columns !== undefined, rows: (i) => rowLabel(step, i),
           columns: (j) => columnLabel(step, j) };
}

/** The current view, with its texts. */
function viewOf(context) {
  const { state, trace, block, live } = context, { stage } = state;
  const inChain = state.step === null && stage >= 4 && stage <= 8;
  const step = state.step ?? stageSteps(trace, block, stage)[0];
  const view = inChain ? attentionView(context) : plainView(context, step);
  const [title, formula] = between[inChain ? stage : 0] ?? ["", ""];
  view.title = view.step?.title || title;
  view.formula = view.step?.formula ?? formula;
  view.sentence = view.step?.sentence ?? "Computed here, between two steps of the trace.";
  view.name = view.step?.name ?? STAGES[stage - 1];
  const heads = inChain ? block.heads : step.heads;
  const alone = trace.head && inChain ? `, head ${trace.head}` : "";
  const head = heads > 1 ? `, head ${Math.min(state.head, heads - 1) + 1} of ${heads}` : alone;
  const changed = inChain && (live.changed || context.settings.hideSink) ? " – changed here" : "";
  const shown = view.shares ? `α·${normName(block)} of ` : view.given ? "rollout of " : "";
  const where = inChain && block.layer ? `${block.title}: ` : "";
  view.label = `${shown}${where}${nameWords(view.name)}${head}${changed}`;
  const number = heads > 1 ? `-head${state.head + 1}` : "";
  view.file = `attn-${view.name}${number}`.replace(/[^\w-]/g, "_");
  view.rounded = inChain ? [block.q, block.k, block.v].some((s) => s?.rounded)
                         : step?.rounded === true;
  return view;
}

function stageBar(context, change) {
  const { state, trace, block, live } = context;
  return STAGES.map((name, i) => {
    const stage = i + 1, why = stageAbsent(trace, block, stage, live), here = stage === state.stage;
    return el("li", {}, el("button", { type: "button", class: `stage${here ? " here" : ""}`,
      id: `stage-${stage}`, "aria-current": here ? "step" : null, disabled: why !== "",
      title: why || null, onclick: () => change({ stage, step: null }) },
      el("span", { class: "digit" }, String(stage)), el("span", {}, name)));
  });
}

/** The trace's steps of this stage, where there are several: queries, keys, values, … */
function stageTabs(context, change) {
  const { trace, block, state } = context, steps = stageSteps(trace, block, state.stage);
  if (state.stage > 3 || steps.length < 2) return [];
  const shown = state.step ?? steps[0];
  return steps.map((s) => el("button", { type: "button", class: `tab${s === shown ? " here" : ""}`,
    "aria-pressed": String(s === shown), onclick: () => change({ step: s }) },
    nameWords(s.name)));
}

/** Goes to a step of the trace, and to its stage if it has one. */
function goTo(trace, step, block) {
  const place = placeOf(trace, step, block);
  return { ...place, stage: place.stage, step: place.stage >= 4 ? null : step };
}

function stepSelect(context, change) {
  const { trace, state, view } = context, groups = new Map();
  trace.shown.forEach((s, i) => {
    if (s.kind === "curve") return;
    const group = s.section || "Steps";
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(el("option", { value: i, selected: s === view.step }, stepTitle(s)));
  });
  const none = view.step ? []
             : [el("option", { value: "", selected: true }, "(between two steps)")];
  return el("label", { class: "control" }, el("span", { class: "control-name" }, "Step"),
    el("select", { id: "every-step", onchange: (e) => e.target.value !== ""
      && change(goTo(trace, trace.shown[Number(e.target.value)], state.block)) },
    none, [...groups].map(([label, options]) => el("optgroup", { label }, options))));
}

/** Goes one step forward or back, in the trace's order. */
function neighbour(context, by) {
  const { trace, view, state } = context;
  const list = trace.shown.filter((s) => s.kind !== "curve");
  const at = list.indexOf(view.step ?? stageSteps(trace, state.block, 7)[0]);
  const to = list[at + by];
  return to ? goTo(trace, to, state.block) : null;
}

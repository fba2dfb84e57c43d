/* The trace: steps with their numbers, and the attention blocks among them.
 *
 * A step's tensor is treated as heads × rows × columns, whatever its rank. Its numbers are a list
 * or base64. If they are missing, the page computes them from the steps that `made` names, one head
 * at a time. A block is one attention: its weights, and the steps from which they were computed, as
 * far as the trace has them. */

/** The object of the page's <script type="application/json"> as a trace. */
function readTrace(json) {
  const trace = { ...json, command: json.schema.replace(/^attn\.(.*)\/.*$/, "$1"),
                  steps: json.steps.map(readStep), find: new Map() };
  if (json.trained) addTrained(trace, json.trained);
  trace.steps.forEach((s) => trace.find.set(s.name, s));
  trace.shown = trace.steps.filter((s) => !s.aside);
  trace.blocks = trace.shown.filter((s) => s.kind === "weights").map((s) => readBlock(trace, s));
  if (trace.blocks.every((b) => b.layer && b.moment < 0))
    trace.blocks.sort((a, b) => a.layer - b.layer); // the explained one comes first
  return trace;
}

/** The same sentence through trained heads: more steps, in a section of their own. */
function addTrained(trace, { title, setting, steps, notes }) {
  trace.trainedSetting = setting;
  trace.notes = [...trace.notes, ...notes.map(({ text }) => ({ label: "trained", text }))];
  trace.steps.push(...steps.map((s) => ({ ...readStep(s), section: title, trained: true })));
}

function readStep(json) {
  const { shape } = json.tensor, rank = shape.length;
  return {
    ...json,
    made: json.made ?? { op: "given" },
    heads: shape.slice(0, -2).reduce((a, b) => a * b, 1),
    height: rank > 1 ? shape[rank - 2] : 1,
    width: rank > 0 ? shape[rank - 1] : 1,
    rounded: json.tensor.f16 !== undefined,
    all: null, // the numbers of all heads
    kept: new Map(), // for derived steps: head -> numbers
  };
}

/** All numbers of a step, head by head; null if they are derived. */
function allNumbers(step) {
  const { tensor } = step;
  if (step.all === null) {
    /* The fewest digits that read back as the same float: read them as one. */
    const Numbers = tensor.dtype === "f64" || tensor.dtype === "i64" ? Float64Array : Float32Array;
    if (tensor.data) step.all = Numbers.from(tensor.data, readNumber);
    else if (tensor.f16) step.all = decodeHalves(readBase64(tensor.f16));
    else if (tensor.f32) step.all = new Float32Array(readBase64(tensor.f32).buffer);
  }
  return step.all;
}

/** The numbers of one head, height × width. In a step with fewer heads, each serves a group of
 * heads. */
function numbersOf(trace, step, head, heads = step.heads) {
  const all = allNumbers(step), size = step.height * step.width;
  const own = Math.floor((head * step.heads) / Math.max(heads, 1));
  if (all) return all.subarray(own * size, (own + 1) * size);
  if (!step.kept.has(own)) {
    if (step.kept.size >= 4) step.kept.delete(step.kept.keys().next().value);
    step.kept.set(own, deriveNumbers(trace, step, own));
  }
  return step.kept.get(own);
}

/** Computes the numbers that the program left out of the trace. */
function deriveNumbers(trace, step, head) {
  const { op, factor, causal, window } = step.made;
  const a = trace.find.get(step.made.a), b = trace.find.get(step.made.b);
  const x = numbersOf(trace, a, head, step.heads);
  const y = b && numbersOf(trace, b, head, step.heads);
  const T = step.height, S = step.width;
  switch (op) {
    case "dot": return dotRows(x, y, T, S, a.width);
    case "scale": return Float64Array.from(x, (s) => s * factor);
    case "mask": {
      const hidden = placesMask(T, S, window);
      return Float64Array.from(x, (s, i) => (hidden[i] ? -Infinity : s * (factor || 1)));
    }
    case "softmax": return softmaxRows(Float64Array.from(x, (s) => s * (factor || 1)), T, S);
    case "mix": return mixRows(x, y, T, a.width, S);
    case "attend": {
      const hidden = causal ? placesMask(T, S, window) : null;
      return engine.attend({ q: x, k: y, T, S, D: a.width, scale: factor, hidden }).weights;
    }
    default: return new Float64Array(T * S).fill(NaN);
  }
}

/** 1 where key j comes after query i or, with a window, too far before it. */
function placesMask(T, S, window = 0) {
  const hidden = causalMask(T, S);
  for (let i = window; window > 0 && i < T; i++) hidden.fill(1, i * S, i * S + i - window + 1);
  return hidden;
}

/** The steps from which weights were computed, as far back as the trace's links go. */
function readBlock(trace, weights) {
  const block = { name: weights.name, weights, heads: weights.heads, T: weights.height,
                  S: weights.width, layer: weights.layer ?? 0, moment: weights.moment ?? -1,
                  section: weights.section, scale: 1, causal: weights.made.causal === true,
                  window: weights.made.window ?? 0, trained: weights.trained === true,
                  raw: null, scaled: null, masked: null, scores: null, q: null, k: null, v: null,
                  context: null, norms: null, products: null };
  followScores(trace, block);
  block.context = trace.shown.find((s) => s.made.op === "mix" && s.made.a === weights.name) ?? null;
  block.v = (block.context && trace.find.get(block.context.made.b)) ?? null;
  if (block.v && block.v.height !== block.S) block.v = null;
  block.norms = trace.steps.find((s) => s.made.op === "norm" && block.v
                                     && s.made.a === block.v.name) ?? null;
  block.products = trace.steps.find((s) => s.made.op === "products" && block.context
                                        && s.made.a === block.context.name) ?? null;
  block.title = blockTitle(block);
  return block;
}

function followScores(trace, block) {
  const { made } = block.weights, like = (s) => s && s.height === block.T && s.width === block.S;
  if (made.op === "attend") {
    return Object.assign(block, { q: trace.find.get(made.a), k: trace.find.get(made.b),
                                  scale: made.factor ?? 1 });
  }
  let s = trace.find.get(made.a);
  if (!like(s) || s.kind !== "scores") return block;
  block.scores = s;
  block.last = made.factor || 1; // a factor that softmax still applies to the scores
  block.scale = block.last;
  for (; like(s); s = trace.find.get(s.made.a)) {
    if (s.made.op === "mask") {
      Object.assign(block, { masked: s, causal: s.made.causal === true,
                             window: s.made.window ?? 0 });
      block.scale *= s.made.factor ?? 1;
    }
    else if (s.made.op === "scale") { block.scaled = s; block.scale *= s.made.factor ?? 1; }
    else {
      if (s.made.op === "dot") {
        const q = trace.find.get(s.made.a), k = trace.find.get(s.made.b);
        if (q && k && q.width === k.width && q.height === block.T && k.height === block.S)
          Object.assign(block, { raw: s, q, k });
      }
      break;
    }
  }
  return block;
}

/** The matrix that produced a model's queries, keys or values, if the trace has it. */
function makerOf(trace, step) {
  return trace.steps.find((s) => s.made.op === "maker" && s.made.b === step.name) ?? null;
}

/** The name of a step as words: "token ids"; of a matrix: "W_q". */
function nameWords(name) {
  return name.split("_").map((word, i, all) =>
    (word === "w" && all[i + 1]?.length === 1 ? `W_${all[i + 1]}`
     : all[i - 1] === "w" && word.length === 1 ? "" : word)).filter(Boolean).join(" ");
}

/** A step as a heading of a list: its title, and its name where titles may be alike. */
function stepTitle({ title, name }) {
  return title ? `${title} (${nameWords(name)})` : nameWords(name);
}

function blockTitle({ weights, layer, moment }) {
  if (layer && moment >= 0) return `layer ${layer}, after step ${moment}`;
  return layer ? `layer ${layer}` : stepTitle(weights);
}

/** A text in which characters that would disturb its line are �. */
function lineText(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069\u2028\u2029]/g,
                      "\ufffd");
}

/** A label whose letters do not change the direction of the text around it. */
function isolated(label) {
  return `\u2068${label}\u2069`;
}

/** A token's text made visible: a space is ␣, characters that would disturb the line are �. */
function labelText(text) {
  const clean = lineText(text);
  return clean === "" ? "∅" : clean.replace(/^ +| +$/g, (spaces) => "␣".repeat(spaces.length));
}

function rowLabel(step, i) {
  return labelText(step.rows?.[i] ?? String(i + 1));
}

function columnLabel(step, j) {
  return labelText(step.columns?.[j] ?? String(j + 1));
}

/** 1 where the row must not see the key (its score is −∞); null if everything is visible. */
function hiddenOf(trace, block, head) {
  if (block.causal) return placesMask(block.T, block.S, block.window);
  const step = block.scores ?? block.like?.scores;
  if (!step) return null;
  const scores = numbersOf(trace, step, head, block.heads);
  const hidden = Uint8Array.from(scores, (x) => (x === -Infinity ? 1 : 0));
  return hidden.includes(1) ? hidden : null;
}

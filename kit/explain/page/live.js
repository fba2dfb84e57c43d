/* The numbers of one head under the labs' settings. With default settings they are the trace's own.
 * Otherwise they are computed here, from the trace's queries and keys (or from its scores or
 * weights, if it has nothing else). */

/** The default settings, which change nothing. */
function untouched() {
  return { scale: true, size: 0, temperature: 1, mask: "trace", masking: "before", view: "weights",
           hideSink: false, order: null };
}

/** Whether the settings change numbers, and not only their display. */
function changesNumbers(s) {
  return !s.scale || s.size > 0 || s.temperature !== 1 || s.mask !== "trace"
         || s.masking !== "before" || s.order !== null;
}

/** Which labs work with this block. */
function abilities(block) {
  return { vectors: block.q !== null && block.k !== null, scores: block.scores !== null
             || block.q !== null, values: block.v !== null, square: block.T === block.S };
}

/** The numbers of one head of the block from the trace, with the scores if the trace has them. */
function inputsOf(trace, block, head) {
  const { T, S, heads } = block;
  const of = (step) => (step ? numbersOf(trace, step, head, heads) : null);
  const hidden = hiddenOf(trace, block, head);
  const inputs = { T, S, D: block.q?.width ?? 0, Dv: block.v?.width ?? 0, scale: block.scale,
                   q: of(block.q), k: of(block.k), v: of(block.v), hidden, scores: null };
  if (!inputs.q) {
    /* Adding a constant to a row does not change its softmax, so logarithms of weights serve as
     * scores. */
    inputs.scores = block.scores
      ? of(block.scores).map((s) => s * block.last)
      : Float64Array.from(of(block.weights), (w) => Math.log(w));
  }
  return inputs;
}

/** The trace's own numbers; matrices that it lacks between two steps are computed. */
function asTraced(trace, block, head) {
  const { T, S, heads } = block, of = (step) => (step ? numbersOf(trace, step, head, heads) : null);
  const weights = of(block.weights), hidden = hiddenOf(trace, block, head);
  let raw = of(block.raw), scaled = of(block.scaled), masked = of(block.masked);
  if (!raw && block.q)
    raw = dotRows(of(block.q), of(block.k), T, S, block.q.width);
  if (!scaled && raw) scaled = Float64Array.from(raw, (s) => s * block.scale);
  if (!scaled && block.scores) scaled = Float64Array.from(of(block.scores), (s) => s * block.last);
  if (!masked && scaled)
    masked = hidden ? Float64Array.from(scaled, (s, i) => (hidden[i] ? -Infinity : s)) : scaled;
  const sums = new Float64Array(T);
  for (let at = 0; at < T * S; at++) sums[Math.floor(at / S)] += weights[at];
  return { raw, scaled, masked, weights, sums, hidden, context: of(block.context) };
}

function permuteRows(x, order, width) {
  if (!x) return x;
  const out = new Float64Array(x.length);
  order.forEach((from, to) => {
    for (let d = 0; d < width; d++) out[to * width + d] = x[from * width + d];
  });
  return out;
}

/** Reorders both rows and columns like the words. */
function permuteBoth(x, order) {
  const n = order.length, out = x && x.slice();
  for (let i = 0; x && i < n; i++)
    for (let j = 0; j < n; j++) out[i * n + j] = x[order[i] * n + order[j]];
  return out;
}

/** The mask under the settings. A mask that depends on positions does not move with the words. */
function hiddenUnder(settings, inputs, causal) {
  if (settings.mask === "none") return null;
  if (settings.mask === "causal") return causalMask(inputs.T, inputs.S);
  if (!settings.order || causal) return inputs.hidden;
  return inputs.hidden && permuteBoth(inputs.hidden, settings.order);
}

/** Whether the mask is causal (no key after the query). */
function isCausal(hidden, T, S) {
  return hidden !== null && T === S && causalMask(T, S).every((x, i) => x === hidden[i]);
}

function recomputed(trace, block, head, settings) {
  const inputs = inputsOf(trace, block, head), { T, S } = inputs, { order } = settings;
  const causal = isCausal(inputs.hidden, T, S);
  const size = settings.size > 0 ? Math.min(settings.size, inputs.D) : inputs.D;
  /* With fewer components, the usual divisor √d uses the new size. */
  const usual = settings.size > 0 ? inputs.scale * Math.sqrt(inputs.D / size) : inputs.scale;
  const hidden = hiddenUnder(settings, inputs, causal);
  const call = { ...inputs, width: inputs.D, D: size, hidden, temperature: settings.temperature,
                 scale: settings.scale ? usual : 1, masking: settings.masking };
  if (order) {
    for (const name of ["q", "k", "v"])
      call[name] = permuteRows(inputs[name], order, name === "v" ? inputs.Dv : inputs.D);
    call.scores = inputs.scores && permuteBoth(inputs.scores, order);
  }
  return { ...engine.attend(call), hidden };
}

/** ‖v_j W_O‖ of each key where the trace has it, else ‖v_j‖. */
function valueNorms(trace, block, head) {
  if (block.norms) {
    const all = allNumbers(block.norms), { S } = block;
    return Array.from(all.subarray(head * S, (head + 1) * S));
  }
  const v = block.v && numbersOf(trace, block.v, head, block.heads), Dv = block.v?.width ?? 0;
  return Array.from({ length: block.S }, (_, j) => {
    let sum = 0;
    for (let d = 0; v && d < Dv; d++) sum += v[j * Dv + d] ** 2;
    return Math.sqrt(sum);
  });
}

/** Each key's share of a row's Σ α·‖v W_O‖: the size of its contribution, not only its weight. */
function contributions(weights, norms, T, S) {
  const out = new Float64Array(T * S);
  for (let i = 0; i < T; i++) {
    let sum = 0;
    for (let j = 0; j < S; j++) sum += out[i * S + j] = weights[i * S + j] * norms[j];
    for (let j = 0; sum > 0 && j < S; j++) out[i * S + j] /= sum;
  }
  return out;
}

/** The weights without one column, each row made to sum to 1 again. */
function withoutColumn(weights, column, T, S) {
  const out = Float64Array.from(weights);
  for (let i = 0; i < T; i++) {
    let sum = 0;
    out[i * S + column] = 0;
    for (let j = 0; j < S; j++) sum += out[i * S + j];
    for (let j = 0; sum > 0 && j < S; j++) out[i * S + j] /= sum;
  }
  return out;
}

/** The key with the largest total weight of all rows, if this is large and much larger than with
 * evenly spread attention. Rows that see only one key do not count. {at, share, even} or null. */
function findSink(weights, hidden, T, S) {
  const shares = new Float64Array(S), even = new Float64Array(S);
  let rows = 0;
  for (let i = 0; i < T; i++) {
    const { visible } = rowHealth(weights, hidden, i, S);
    if (visible < 2) continue;
    rows++;
    for (let j = 0; j < S; j++) {
      shares[j] += weights[i * S + j];
      even[j] += hidden?.[i * S + j] ? 0 : 1 / visible;
    }
  }
  let at = 0;
  for (let j = 1; j < S; j++) if (shares[j] > shares[at]) at = j;
  const share = rows > 0 ? shares[at] / rows : 0;
  const usual = rows > 0 ? even[at] / rows : 0;
  const large = S > 2 && rows > 1 && share >= Math.max(0.3, 1.5 * usual);
  return large ? { at, share, even: usual } : null;
}

/** Everything that the panels show of one head, cached until something changes. */
const lastLive = { key: "", result: null };
function liveNumbers(trace, block, head, settings) {
  const key = JSON.stringify([block.name, head, { ...settings, view: 0 }]);
  if (lastLive.key !== key) {
    const changed = changesNumbers(settings);
    const result = changed ? recomputed(trace, block, head, settings)
                           : asTraced(trace, block, head);
    result.changed = changed;
    result.sink = findSink(result.weights, result.hidden, block.T, block.S);
    if (settings.hideSink && result.sink)
      result.weights = withoutColumn(result.weights, result.sink.at, block.T, block.S);
    lastLive.key = key;
    lastLive.result = result;
  }
  return lastLive.result;
}

/** The mean of the weights of all heads of a block, from the trace. */
function meanOfHeads(trace, block) {
  const mean = new Float64Array(block.T * block.S);
  for (let h = 0; h < block.heads; h++) {
    const w = numbersOf(trace, block.weights, h);
    for (let i = 0; i < mean.length; i++) mean[i] += w[i] / block.heads;
  }
  return mean;
}

/** Attention rollout (Abnar, Zuidema 2020): each layer counts as the mean of its heads' weights and
 * the identity, half each, and the layers are multiplied, up to and including this block. */
async function rollout(trace, block, pause) {
  const below = trace.blocks.filter((b) => b.layer && b.moment === block.moment
                                           && b.layer < block.layer && b.T === block.T);
  const n = block.T;
  let total = null;
  for (const b of [...below.sort((x, y) => x.layer - y.layer), block]) {
    const mean = meanOfHeads(trace, b);
    const mixed = mean.map((w, at) => 0.5 * w + (at % n === Math.floor(at / n) ? 0.5 : 0));
    total = total ? mixRows(mixed, total, n, n, n) : mixed;
    await pause();
  }
  return total;
}

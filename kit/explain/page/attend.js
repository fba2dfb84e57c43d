/* Attention as pure functions of numbers. attend() is the page's own implementation. Callers use
 * `engine` (wasm.js), which calls the library's attention if it can; its interface is the same.
 *
 * Matrices are row-major lists. T queries, S keys, D numbers in a query or key, Dv in a value. */

/** Q·Kᵀ, T × S. */
function dotRows(q, k, T, S, D, width = D) {
  const out = new Float64Array(T * S);
  for (let i = 0; i < T; i++)
    for (let j = 0; j < S; j++) {
      let sum = 0;
      for (let d = 0, x = i * width, y = j * width; d < D; d++) sum += q[x + d] * k[y + d];
      out[i * S + j] = sum;
    }
  return out;
}

/** Softmax of every row. The largest score is subtracted first, so that nothing overflows. A row
 * whose keys are all masked is 0. */
function softmaxRows(scores, T, S) {
  const out = new Float64Array(T * S);
  for (let i = 0; i < T; i++) {
    let most = -Infinity, sum = 0;
    for (let j = 0; j < S; j++) most = Math.max(most, scores[i * S + j]);
    if (most === -Infinity) continue;
    for (let j = 0; j < S; j++) sum += out[i * S + j] = Math.exp(scores[i * S + j] - most);
    for (let j = 0; j < S; j++) out[i * S + j] /= sum;
  }
  return out;
}

/** A·V, T × Dv. */
function mixRows(weights, v, T, S, Dv) {
  const out = new Float64Array(T * Dv);
  for (let i = 0; i < T; i++)
    for (let j = 0; j < S; j++) {
      const w = weights[i * S + j];
      if (w !== 0) for (let d = 0; d < Dv; d++) out[i * Dv + d] += w * v[j * Dv + d];
    }
  return out;
}

/** 1 where key j comes after query i. */
function causalMask(T, S) {
  return Uint8Array.from({ length: T * S }, (_, at) => (at % S > Math.floor(at / S) ? 1 : 0));
}

/** The steps at which the mask can be applied. */
const MASKING = {
  before: "−∞ before softmax",
  after: "zero after softmax",
  renormalised: "zero, then renormalise",
};

/**
 * Attention of one head.
 *
 * Either q [T,width], k [S,width] with D (the first D of width numbers count) and scale, or scores
 * [T,S], already scaled. hidden [T,S]: 1 where a key is masked, or null. temperature divides the
 * scores. masking: "before" softmax is the definition of attention; "after" and "renormalised" are
 * mistakes that the labs show. With v [S,Dv], the context is computed too.
 *
 * Returns the raw, scaled (also ÷ temperature) and masked scores, the weights, the sums of their
 * rows, and the context.
 */
function attend(call) {
  const { q, k, v, scores, T, S, D, width = D, Dv } = call;
  const raw = q ? dotRows(q, k, T, S, D, width) : scores;
  const stages = scoreStages(call, raw);
  const weights = softmaxRows(stages.used, T, S), sums = hideAfter(call, weights);
  const context = v ? mixRows(weights, v, T, S, Dv) : null;
  return { raw: q ? raw : null, ...stages, weights, sums, context };
}

/** Returns the scaled scores (also ÷ temperature), the masked scores, and the one of the two that
 * softmax gets. */
function scoreStages({ q, scale = 1, temperature = 1, hidden = null, masking = "before" }, raw) {
  const factor = (q ? scale : 1) / temperature, n = raw.length;
  const scaled = new Float64Array(n), masked = hidden ? new Float64Array(n) : scaled;
  for (let i = 0; i < n; i++) scaled[i] = raw[i] === -Infinity ? -Infinity : raw[i] * factor;
  if (hidden) for (let i = 0; i < n; i++) masked[i] = hidden[i] ? -Infinity : scaled[i];
  return { factor, scaled, masked, used: masking === "before" ? masked : scaled };
}

/** Masks keys in the weights, for the labs that mask after softmax. Returns the sums of the
 * rows. */
function hideAfter({ T, S, hidden = null, masking = "before" }, weights) {
  const sums = new Float64Array(T);
  for (let i = 0; i < T; i++) {
    for (let j = 0; j < S; j++) {
      const at = i * S + j;
      if (hidden?.[at]) weights[at] = 0;
      sums[i] += weights[at];
    }
    if (masking === "renormalised" && sums[i] > 0) {
      for (let j = 0; j < S; j++) weights[i * S + j] /= sums[i];
      sums[i] = 1;
    }
  }
  return sums;
}

/** For one row: the entropy in bits, the largest entropy that its visible keys allow, the largest
 * weight, and the sum. */
function rowHealth(weights, hidden, row, S) {
  let bits = 0, visible = 0, largest = 0, at = 0, sum = 0;
  for (let j = 0; j < S; j++) {
    const w = weights[row * S + j];
    visible += hidden?.[row * S + j] ? 0 : 1;
    sum += w;
    bits -= w > 0 ? w * Math.log2(w) : 0;
    if (w > largest) [largest, at] = [w, j];
  }
  const possible = visible > 1 ? Math.log2(visible) : 0;
  return { bits: Math.max(bits, 0), possible, visible, largest, at, sum };
}

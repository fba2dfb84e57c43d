/* Attention, and nothing else: numbers in, numbers out. Everything the page computes itself goes
 * through attend(); whoever has a faster one with the same face may replace it (see `engine`).
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

/** Softmax of every row. The largest is subtracted first, so that nothing overflows; a row with
 * nothing to see is 0. */
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

/** 1 where key j stands after query i. */
function causalMask(T, S) {
  return Uint8Array.from({ length: T * S }, (_, at) => (at % S > Math.floor(at / S) ? 1 : 0));
}

/** Where the mask is applied. */
const MASKING = {
  before: "−∞ before softmax",
  after: "zero after softmax",
  renormalised: "zero, then renormalise",
};

/**
 * Attention of one head.
 *
 * Either q [T,width], k [S,width] with D (the first D of width numbers count) and scale, or scores
 * [T,S], already scaled. hidden [T,S]: 1 where a key is hidden, or null. temperature divides the
 * scores. masking: "before" is attention as everybody means it; "after" and "renormalised" are what
 * people try instead. v [S,Dv]: also the context.
 *
 * Gives raw and scaled (÷ temperature too) and masked scores, weights, sums of the rows, context.
 */
function attend({ q, k, v, scores, T, S, D, width = D, Dv, scale = 1, hidden = null,
                  temperature = 1, masking = "before" }) {
  const raw = q ? dotRows(q, k, T, S, D, width) : scores;
  const factor = (q ? scale : 1) / temperature;
  const scaled = Float64Array.from(raw, (s) => (s === -Infinity ? s : s * factor));
  const masked = hidden ? scaled.map((s, i) => (hidden[i] ? -Infinity : s)) : scaled;
  const weights = softmaxRows(masking === "before" ? masked : scaled, T, S);
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
  const context = v ? mixRows(weights, v, T, S, Dv) : null;
  return { raw: q ? raw : null, scaled, masked, weights, sums, context };
}

/** What computes: plain JavaScript in double precision, unless something better is put here. */
const engine = { name: "JavaScript, double precision", attend };

/** Entropy in bits, the most that the visible keys allow, the largest weight, of one row. */
function rowHealth(weights, hidden, row, S) {
  let bits = 0, visible = 0, largest = 0, at = 0;
  for (let j = 0; j < S; j++) {
    const w = weights[row * S + j];
    visible += hidden?.[row * S + j] ? 0 : 1;
    bits -= w > 0 ? w * Math.log2(w) : 0;
    if (w > largest) [largest, at] = [w, j];
  }
  const possible = visible > 1 ? Math.log2(visible) : 0;
  return { bits: Math.max(bits, 0), possible, visible, largest, at };
}

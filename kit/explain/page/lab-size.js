/* Why √d_k: random queries and keys of d numbers, all N(0,1). A dot product of them has the
 * standard deviation √d, so without the division softmax becomes one-hot as d grows, and its
 * derivative vanishes. This lab measures it on many random draws. */

const sizeLab = { keys: 8, draws: 400, sizes: [2, 4, 8, 16, 32, 64, 128, 256, 512], at: 5,
                  kept: new Map() };

/** Uniform numbers 0…1; the same seed gives the same numbers (mulberry32). */
function uniform(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/** N(0,1), by Box and Muller. */
function normal(next) {
  let spare = null;
  return () => {
    if (spare !== null) {
      const x = spare;
      spare = null;
      return x;
    }
    const r = Math.sqrt(-2 * Math.log(1 - next())), angle = 2 * Math.PI * next();
    spare = r * Math.sin(angle);
    return r * Math.cos(angle);
  };
}

/** ‖diag(a) − a aᵀ‖, the size of softmax's derivative. */
function jacobianNorm(a) {
  let sum = 0;
  for (let i = 0; i < a.length; i++)
    for (let j = 0; j < a.length; j++) sum += ((i === j ? a[i] : 0) - a[i] * a[j]) ** 2;
  return Math.sqrt(sum);
}

/** Means over the draws: entropy in bits and the derivative's size, without and with ÷ √d. */
function measureSize(d) {
  if (sizeLab.kept.has(d)) return sizeLab.kept.get(d);
  const { keys, draws } = sizeLab, next = normal(uniform(7 * d + 1));
  const out = { d, plain: { bits: 0, slope: 0 }, scaled: { bits: 0, slope: 0 }, example: null };
  const draw = (n) => Float64Array.from({ length: n }, next);
  for (let t = 0; t < draws; t++) {
    const raw = dotRows(draw(d), draw(keys * d), 1, keys, d);
    const pair = { plain: softmaxRows(raw, 1, keys),
                   scaled: softmaxRows(raw.map((s) => s / Math.sqrt(d)), 1, keys) };
    for (const name of ["plain", "scaled"]) {
      out[name].bits += rowHealth(pair[name], null, 0, keys).bits / draws;
      out[name].slope += jacobianNorm(pair[name]) / draws;
    }
    out.example ??= pair;
  }
  sizeLab.kept.set(d, out);
  return out;
}

function sizeExample(name, weights) {
  return el("div", { class: "example" }, el("span", {}, name),
    el("svg", { viewBox: "0 0 160 16", "aria-hidden": "true" },
       Array.from(weights, (w, j) => el("rect", { x: 20 * j, y: 0, width: 19, height: 16,
                                                  fill: cssColour(mapColour(cividis, w)) }))));
}

function sizeLabPanel(redraw) {
  const most = Math.log2(sizeLab.keys), d = sizeLab.sizes[sizeLab.at], m = measureSize(d);
  const line = (name, x) => [el("dt", {}, name),
    el("dd", {}, bar(x.bits / most, `${x.bits.toFixed(2)} of ${most} bits`)),
    el("dd", {}, `softmax's derivative ${x.slope.toFixed(2)}`)];
  return [
    el("p", {}, `One random query, ${sizeLab.keys} random keys of d numbers each, all N(0,1); `
                + `means of ${sizeLab.draws} draws.`),
    el("label", { class: "control" }, el("span", { class: "control-name" }, "d"),
      slider("size-d", 0, sizeLab.sizes.length - 1, 1, sizeLab.at, `d = ${d}`, (at) => {
        sizeLab.at = at;
        redraw();
      }), el("output", {}, `d = ${d}`)),
    figure("size", "Entropy without and with division by √d",
      () => el("div", {}, el("dl", { class: "pairs" }, line("S", m.plain),
                                                       line("S / √d", m.scaled)),
        sizeExample("one draw, S", m.example.plain),
        sizeExample("the same, S / √d", m.example.scaled)),
      () => makeTable(`Entropy of ${most} bits, and the size of softmax's derivative`,
        ["d", "S: entropy", "S: derivative", "S/√d: entropy", "S/√d: derivative"],
        [8, 64, 512].map(measureSize).map((x) => [String(x.d), x.plain.bits.toFixed(2),
          x.plain.slope.toFixed(2), x.scaled.bits.toFixed(2), x.scaled.slope.toFixed(2)]))),
    el("p", { class: "fine" }, "A dot product of d such numbers has the standard deviation √d: "
      + "undivided, the largest score takes all and nothing can be learnt from the rest."),
  ];
}

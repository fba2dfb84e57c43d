/* Switches heads of a layer off and shows the length of its attention output without them. If the
 * trace has the inner products of the heads' contributions after W_O, the length follows from
 * these. Otherwise the heads are concatenated, so the squares of their lengths add up. Later layers
 * are not recomputed for this. What a head does to the model's answer comes from runs of the model
 * without it (recipe_answer.c), for one head at a time. */

const offHeads = new Map(); // block name -> Set of heads

function offIn(block) {
  return offHeads.get(block.name) ?? new Set();
}

/** For each token: the sum, over all pairs of these heads, of the inner products of their
 * contributions. */
function productSums(block, chosen) {
  const all = allNumbers(block.products), { T } = block, out = new Float64Array(T);
  const at = (i, j) => (i >= j ? (i * (i + 1)) / 2 + j : (j * (j + 1)) / 2 + i);
  for (let t = 0; t < T; t++)
    for (const i of chosen)
      for (const j of chosen) out[t] += all[t * block.products.width + at(i, j)];
  return out;
}

/** The same for concatenated heads. */
function contextSums(trace, block, chosen) {
  const out = new Float64Array(block.T);
  for (const head of chosen) {
    const v = block.context ? null : numbersOf(trace, block.v, head, block.heads);
    const z = v ? mixRows(numbersOf(trace, block.weights, head), v, block.T, block.S, block.v.width)
                : numbersOf(trace, block.context, head, block.heads);
    const width = z.length / block.T;
    for (let i = 0; i < z.length; i++) out[Math.floor(i / width)] += z[i] ** 2;
  }
  return out;
}

/** Lengths of a layer's output for each token: complete, without these heads, and of the removed
 * part. */
function headEffects(trace, block, off) {
  const heads = Array.from({ length: block.heads }, (_, h) => h);
  const rest = block.products ? [block.heads] : []; // the bias, and heads that are not shown
  const lengths = (chosen) => (block.products ? productSums(block, chosen)
    : contextSums(trace, block, chosen)).map((x) => Math.sqrt(Math.max(x, 0)));
  return { whole: lengths([...heads, ...rest]), gone: lengths([...off]),
           left: lengths([...heads.filter((h) => !off.has(h)), ...rest]) };
}

/** −1: nothing is left. */
function changeOf(effects, i) {
  return effects.whole[i] > 0 ? effects.left[i] / effects.whole[i] - 1 : 0;
}

function signedPercent(x) {
  return `${x < 0 ? "−" : "+"}${(100 * Math.abs(x)).toFixed(1)} %`;
}

function effectsFigure(context, effects) {
  const { block } = context, SHOWN = 12, label = (i) => rowLabel(block.weights, i);
  const order = Array.from({ length: block.T }, (_, i) => i)
    .sort((a, b) => Math.abs(changeOf(effects, b)) - Math.abs(changeOf(effects, a)) || a - b);
  return figure("off", "Length of the layer's output without these heads",
    () => el("div", {},
      block.T > SHOWN ? el("p", { class: "fine" }, `The ${SHOWN} tokens that change most:`) : null,
      el("ul", { class: "effects" }, order.slice(0, SHOWN).map((i) => el("li", {},
        el("span", {}, clip(label(i), 12), el("span", { class: "fine" }, ` ${i + 1}`)),
        bar(Math.abs(changeOf(effects, i)), signedPercent(changeOf(effects, i))))))),
    () => makeTable("Length of the layer's attention output, token by token",
      ["token", "whole", "without", "change", "what is gone"],
      Array.from({ length: block.T }, (_, i) => [label(i), numberText(effects.whole[i]),
        numberText(effects.left[i]), signedPercent(changeOf(effects, i)),
        numberText(effects.gone[i])])));
}

function effectsText(context, effects, off) {
  const { trace, block } = context, n = block.T;
  const names = [...off].sort((a, b) => a - b).map((h) => headNumber(trace, h));
  const mean = (f) => Array.from({ length: n }, (_, i) => f(i)).reduce((a, b) => a + b, 0) / n;
  const part = mean((i) => (effects.whole[i] > 0 ? effects.gone[i] / effects.whole[i] : 0));
  const change = signedPercent(mean((i) => changeOf(effects, i)));
  const layer = block.layer ? `layer ${block.layer}` : "this layer";
  return [
    el("p", { id: "off-said" }, `Without head${names.length > 1 ? "s" : ""} ${names.join(", ")} `
      + `the attention output of ${layer} changes its length by ${change}, mean of all tokens; `
      + `what is gone is ${percent(part)} as long as the whole.`),
    el("p", { class: "fine" }, "This changes this layer's output only: what later layers do with "
      + "it needs a new run of the model. "
      + (block.products ? "Heads are joined by W_O, as in the model."
        : "The trace has no W_O, so the heads stand side by side.")),
  ];
}

/** The runs of the model without each head of this layer: the step, and whether it holds
 * probabilities of next tokens; null if the program made none. */
function runsWithout(trace, block) {
  const step = trace.find.get(`without_heads_${block.layer}`);
  return step ? { step, predicts: step.kind === "probabilities" } : null;
}

/** What a run of the model without one head answers, beside the run with all heads. */
function answerText(trace, block, head) {
  const { step, predicts } = runsWithout(trace, block), n = step.width;
  const now = allNumbers(step).subarray(head * n, (head + 1) * n);
  const name = `head ${headNumber(trace, head)} of layer ${block.layer}`;
  let most = 0;
  if (!predicts) {
    now.forEach((x, i) => { most = x > now[most] ? i : most; });
    const mean = now.reduce((sum, x) => sum + x, 0) / n;
    return `A run of the model without ${name}: the output of the last layer moves by `
      + `${percent(mean)} of its length, mean of all tokens; most for `
      + `“${columnLabel(step, most)}”, by ${percent(now[most])}.`;
  }
  const was = allNumbers(trace.find.get("next_tokens"));
  const change = (i) => Math.abs(now[i] - was[i]);
  now.forEach((_, i) => { most = change(i) > change(most) ? i : most; });
  return `A run of the model without ${name}: “${columnLabel(step, 0)}” gets the probability `
    + `${numberText(now[0])} instead of ${numberText(was[0])}.`
    + (most === 0 ? "" : ` Of the ${n} likeliest tokens, “${columnLabel(step, most)}” changes `
       + `most: from ${numberText(was[most])} to ${numberText(now[most])}.`);
}

function answerFigure(trace, block, head) {
  const { step, predicts } = runsWithout(trace, block), n = step.width, SHOWN = 12;
  const now = allNumbers(step).subarray(head * n, (head + 1) * n);
  const was = predicts ? allNumbers(trace.find.get("next_tokens")) : null;
  const label = (i) => columnLabel(step, i), all = Array.from({ length: n }, (_, i) => i);
  const order = predicts ? all : [...all].sort((a, b) => now[b] - now[a] || a - b).slice(0, SHOWN);
  const line = (i) => (predicts ? [bar(was[i], numberText(was[i]), "empty-bar"),
                                   bar(now[i], numberText(now[i]))]
                                : [bar(now[i], percent(now[i]))]);
  const title = predicts ? "Next token with all heads and without this head"
                         : "How far the output of each token moves";
  return figure("answer", title,
    () => el("div", {}, el("p", { class: "fine" }, predicts
      ? "Probability with all heads (above) and without this head (below):"
      : "Length of the change of a token’s output, as a part of the output’s length:"),
      el("ul", { class: "effects" }, order.map((i) => el("li", {},
        el("span", {}, clip(label(i), 12),
           predicts ? null : el("span", { class: "fine" }, ` ${i + 1}`)),
        el("div", {}, line(i)))))),
    () => makeTable(title, predicts ? ["token", "with all heads", "without"] : ["token", "change"],
      all.map((i) => [label(i), ...(predicts ? [exactText(was[i])] : []), exactText(now[i])])));
}

/** The effect on the answer; or why it is not there. */
function answerPart({ trace, block }, off) {
  if (!block.layer || trace.command === "train") return null;
  if (!runsWithout(trace, block)) {
    return el("p", { class: "fine", id: "answer-said" }, "This page has no run of the model "
      + `without heads of this layer. attn explain --model … --layer ${block.layer} -o page.html `
      + "makes them, for short texts and models that are not too large.");
  }
  if (off.size > 1)
    return el("p", { class: "fine", id: "answer-said" }, "The runs of the model were made without "
      + "one head at a time. Switch all heads on but one to see what it does to the answer.");
  const [head] = off;
  return [el("p", { id: "answer-said" }, answerText(trace, block, head)),
          answerFigure(trace, block, head)];
}

/** The switches of the shown layer's heads, and their effect on its output. */
function headOffPanel(context) {
  const { trace, block } = context, holder = el("div", { class: "head-off" });
  if (!block.products && (block.heads < 2 || !(block.v || block.context))) return null;
  const toggle = (head) => {
    const off = new Set(offIn(block));
    if (!off.delete(head)) off.add(head);
    offHeads.set(block.name, off);
    byId(thumbId(block, head))?.classList.toggle("off", off.has(head));
    fill();
    announce(byId("off-said")?.textContent ?? "All heads are on.");
  };
  const where = block.layer ? `Heads of layer ${block.layer}` : "Heads";
  const button = (head, off) => el("button", { type: "button", class: "head-switch",
    id: `head-switch-${head}`, role: "switch", "aria-checked": String(!off.has(head)),
    "aria-label": `Head ${headNumber(trace, head)}`,
    title: `Switch head ${headNumber(trace, head)} ${off.has(head) ? "on" : "off"}`,
    onclick: () => toggle(head) }, String(headNumber(trace, head)));
  function fill() {
    const off = offIn(block), effects = off.size ? headEffects(trace, block, off) : null;
    refill(holder,
      el("div", { class: "head-switches", role: "group", "aria-label": `${where}: on or off` },
        el("span", { class: "fine" }, `${where}, on or off:`),
        Array.from({ length: block.heads }, (_, h) => button(h, off))),
      effects ? effectsText(context, effects, off) : null,
      effects ? effectsFigure(context, effects) : null,
      ...[effects && answerPart(context, off)].flat());
  }
  fill();
  return holder;
}

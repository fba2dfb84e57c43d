/* The panel "This cell in numbers": every operand from the words' vectors to the number itself,
 * each of which can be copied. The numbers come from the trace or, after a setting was changed,
 * from this page. They are rounded only for display. */

/** One line of the computation: the operation and its result. */
function chainLine(name, text, value, stage, state) {
  return el("tr", { class: stage === state.stage ? "now" : null, "data-chain": name },
    el("th", { scope: "row" }, name), el("td", {}, text),
    el("td", { class: "number", title: exactText(value) }, numberText(value)));
}

/** "0.4307×0.4434 + 1.4551×1.1418 = 1.8524", with every operand. */
function productsText(x, y) {
  return Array.from(x, (a, i) => `${numberText(a)}×${numberText(y[i])}`).join(" + ");
}

function sumOf(numbers) {
  return Array.from(numbers).reduce((a, b) => a + b, 0);
}

/** A long equation, as text that can be scrolled and copied. */
function equation(text, what) {
  return el("div", { class: "equation" },
    el("code", { tabindex: 0, "aria-label": what }, text), copyButton(text, what));
}

/** The vectors behind a score under the current settings: {q, k} or null. */
function operandsOf(context, row, column) {
  const { trace, block, head, settings, order } = context;
  if (!block.q || !block.k) return null;
  const from = (i) => (order ? order[i] : i);
  const D = settings.size > 0 ? Math.min(settings.size, block.q.width) : block.q.width;
  const cut = (step, i) => {
    const all = numbersOf(trace, step, head, block.heads);
    return all.subarray(i * step.width, i * step.width + D);
  };
  return { q: cut(block.q, from(row)), k: cut(block.k, from(column)) };
}

/** The steps from the score to the input of softmax. */
function scaleText(context) {
  const { block, settings } = context;
  const parts = [];
  const size = settings.size > 0 ? settings.size : block.q?.width ?? 0;
  const scale = settings.size > 0 ? block.scale * Math.sqrt(block.q.width / size) : block.scale;
  if (!settings.scale) parts.push("not scaled");
  else if (size && Math.abs(scale * Math.sqrt(size) - 1) < 1e-6) parts.push(`÷ √${size}`);
  else parts.push(scale === 1 ? "× 1" : `× ${numberText(scale)}`);
  if (settings.temperature !== 1) parts.push(`÷ T = ${general(settings.temperature, 3)}`);
  return parts.join(", ");
}

/** The softmax of a row, with the terms of its sum; the quiz uses it as a hint, too. */
function softmaxText(scores, S, row, column) {
  const line = Array.from(scores.subarray(row * S, (row + 1) * S));
  const most = line.reduce((a, b) => Math.max(a, b), -Infinity);
  const terms = line.filter((s) => s > -Infinity).map((s) => `e^${numberText(s - most)}`);
  return { most, sum: sumOf(line.map((s) => Math.exp(s - most))),
           text: `e^${numberText(line[column] - most)} / (${terms.join(" + ")})` };
}

/**
 * What the labs do to a weight after softmax: a mask, the division that makes the row sum to 1
 * again, the removal of a sink. A list of {name, text, value, equation}.
 */
function afterSoftmax(context, used, soft, row, column) {
  const { block, live, settings } = context, S = block.S, out = [];
  let line = Array.from(used.subarray(row * S, (row + 1) * S),
                        (s) => Math.exp(s - soft.most) / soft.sum);
  const step = (name, text, change, sign) => {
    const before = line[column];
    line = line.map(change);
    out.push({ name, text, value: line[column],
               equation: `${numberText(before)} ${sign} = ${numberText(line[column])}` });
  };
  const divide = (name, what) => {
    const sum = sumOf(line), of = sum > 0 ? sum : 1;
    step(name, sum > 0 ? `${what} ${numberText(sum)}` : "nothing is left of the row",
         (w) => w / of, `/ ${numberText(of)}`);
  };
  if (settings.masking !== "before" && live.hidden) {
    const hidden = (j) => live.hidden[row * S + j];
    step("mask", hidden(column) ? "hidden: × 0" : "visible: × 1", (w, j) => (hidden(j) ? 0 : w),
         hidden(column) ? "× 0" : "× 1");
    if (settings.masking === "renormalised") divide("÷ rest", "what is left of the row is");
  }
  if (settings.hideSink && live.sink) {
    const { at } = live.sink;
    step("sink", column === at ? "taken out: × 0" : "stays: × 1", (w, j) => (j === at ? 0 : w),
         column === at ? "× 0" : "× 1");
    divide("÷ others", "the other keys have");
  }
  return out;
}

/** The cell that the quiz asks for and has not revealed yet; −1: none. */
function secretOf(state) {
  return state.quiz && !state.quiz.done ? state.quiz.at : -1;
}

function attentionCell(context, row, column) {
  const { block, live, state, names } = context, S = block.S, at = row * S + column;
  const operands = operandsOf(context, row, column);
  const lines = [], out = [];
  if (operands) {
    const text = `${productsText(operands.q, operands.k)} = ${numberText(live.raw[at])}`;
    out.push(neuronFigure(operands.q, operands.k, names),
             equation(text, "the score with all its operands"));
  }
  const seen = !live.hidden?.[at];
  if (live.raw) lines.push(chainLine("q·k", "sum of the products", live.raw[at], 4, state));
  if (live.scaled) {
    lines.push(chainLine("scale", scaleText(context), live.scaled[at], 5, state));
    const first = context.settings.masking === "before";
    if (first)
      lines.push(chainLine("mask", seen ? "visible" : "hidden: −∞", live.masked[at], 6, state));
    if (at === secretOf(state)) return [...out, chain(lines)];
    const used = first ? live.masked : live.scaled;
    const soft = softmaxText(used, S, row, column), shifted = used[at] - soft.most;
    const after = afterSoftmax(context, used, soft, row, column);
    const share = after.length ? Math.exp(shifted) / soft.sum : live.weights[at];
    lines.push(chainLine("− max", `the row's largest is ${numberText(soft.most)}`, shifted, 7,
                         state),
               chainLine("e^", `e^${numberText(shifted)}`, Math.exp(shifted), 7, state),
               chainLine("÷ sum", `the row's sum is ${numberText(soft.sum)}`, share, 7, state),
               ...after.map((a) => chainLine(a.name, a.text, a.value, 7, state)));
    out.push(chain(lines), equation([`${soft.text} = ${numberText(share)}`,
                                     ...after.map((a) => a.equation)].join("; "),
                                    "the softmax with all its terms"));
  } else {
    lines.push(chainLine("weight", "as the trace has it", live.weights[at], 7, state));
    out.push(chain(lines));
  }
  return out;
}

function chain(lines) {
  return el("table", { class: "chain" }, el("tbody", {}, lines));
}

/** The row of an operand from which a row of the result was computed. */
function operandRow(trace, operand, step, row) {
  if (operand.height === step.height) return row;
  return operand.height === 1 ? 0 : Math.max(trace.query, 0);
}

/** The column of a weight matrix that produces number c. The matrix is [out,in] or [in,out],
 * whichever gives this number. */
function weightColumn(x, w, step, c, value) {
  const n = x.length, candidates = [];
  if (w.step.width === n && w.step.height === step.width)
    candidates.push(Array.from({ length: n }, (_, d) => w.numbers[c * n + d]));
  if (w.step.height === n && w.step.width === step.width)
    candidates.push(Array.from({ length: n }, (_, d) => w.numbers[d * step.width + c]));
  const miss = (y) => Math.abs(sumOf(y.map((b, i) => b * x[i])) - value);
  return candidates.sort((a, b) => miss(a) - miss(b))[0] ?? null;
}

function projectedCell(context, step, row, column, value) {
  const { trace, head } = context;
  const a = trace.find.get(step.made.a), b = trace.find.get(step.made.b);
  if (!a || !b) return null;
  const from = operandRow(trace, a, step, row), all = numbersOf(trace, a, head, step.heads);
  const x = all.subarray(from * a.width, (from + 1) * a.width);
  const w = { step: b, numbers: numbersOf(trace, b, head, step.heads) };
  const y = weightColumn(x, w, step, column, value);
  if (!y) return null;
  return [el("p", {}, `Row ${from + 1} of ${a.name}, times what ${b.name} has for number `
                      + `${column + 1}:`),
          equation(`${productsText(x, y)} = ${numberText(value)}`,
                   "the sum with all its operands")];
}

/** For a model's queries, keys and values: the row of the matrix, and its bias, that produced the
 * number. */
function makerCell(context, step, row, column, value) {
  const { trace } = context, maker = step && makerOf(trace, step);
  const x = maker && trace.find.get(maker.made.a);
  if (!x) return null;
  const w = numbersOf(trace, maker, 0).subarray(column * maker.width, (column + 1) * maker.width);
  const given = numbersOf(trace, x, 0).subarray(row * x.width, (row + 1) * x.width);
  const sum = `${productsText(given, w)} + ${numberText(w[x.width])} = ${numberText(value)}`;
  return [el("p", {}, `Row ${row + 1} of ${x.name}, times row ${column + 1} of ${maker.name}, plus `
                      + "its bias:"),
          equation(sum, "the sum with all its operands")];
}

function mixedCell(context, step, row, column, value) {
  const { trace, block, head, live, order, state } = context, { S } = block;
  if (Math.floor(secretOf(state) / S) === row)
    return [el("p", {}, "Its weights are shown when you have predicted the blank one.")];
  const v = numbersOf(trace, block.v, head, block.heads);
  const w = live.weights.subarray(row * S, (row + 1) * S);
  const y = Array.from(w, (_, j) => v[(order ? order[j] : j) * block.v.width + column]);
  return [el("p", {}, `Number ${column + 1} of every word's value, by the weights of this row:`),
          equation(`${productsText(w, y)} = ${numberText(value)}`, "the mix with all its terms")];
}

function lookedUpCell(context, step, row, column) {
  const { trace } = context, ids = trace.find.get(step.made.a);
  if (!ids) return null;
  const id = numbersOf(trace, ids, 0)[row];
  return [el("p", {}, `“${rowLabel(step, row)}” has number ${id}, so it takes row ${id + 1} of `
                      + `${step.made.b}; this is number ${column + 1} of it.`)];
}

/** The panel's contents for one cell. */
function cellPanel(context, view, row, column) {
  const { step } = view, at = row * view.S + column, value = view.numbers[at];
  const heading = el("p", { class: "cell-sentence", id: "cell-sentence" },
                     cellSentence(view, row, column));
  if (view.blank === at)
    return [heading, el("p", {}, "This is the number to predict; it is shown when you have.")];
  let parts = null;
  if (view.attention) parts = attentionCell(context, row, column);
  else if (view.mix) parts = mixedCell(context, step, row, column, value);
  else if (step?.made.op === "project") parts = projectedCell(context, step, row, column, value);
  else if (step?.made.op === "lookup") parts = lookedUpCell(context, step, row, column);
  else parts = makerCell(context, step, row, column, value);
  const exact = el("p", { class: "exact" }, "Exactly ",
                   el("code", { id: "exact" }, view.kind === "ids" ? String(value)
                                                                   : exactText(value)),
                   copyButton(exactText(value), "the number"));
  if (view.shares) parts = [...(parts ?? []), sharesText(context, view, row, column)];
  return [heading, ...(parts ?? [el("p", { class: "fine" }, givenText(step))]), exact];
}

function sharesText(context, view, row, column) {
  const { norms } = view.shares, { live, block } = context, S = block.S;
  const w = live.weights[row * S + column], size = norms[column];
  const all = Array.from(norms, (x, j) => x * live.weights[row * S + j]);
  return el("div", {},
    el("p", {}, `What it adds: α × ${view.shares.name} of the key, as a share of the row's sum:`),
    equation(`${numberText(w)}×${numberText(size)} / ${numberText(sumOf(all))} = `
             + numberText(view.numbers[row * S + column]), "the share"));
}

function givenText(step) {
  if (!step) return "";
  const how = step.formula ? ` (${step.formula})` : "";
  if (step.kind === "probabilities")
    return `Computed by the model after its last layer${how}, for each of its tokens; the `
           + "likeliest are shown.";
  if (step.made.op === "computed") {
    const from = [step.made.a, step.made.b].filter(Boolean).join(" and ");
    return `Computed${from && ` from ${from}`}: ${step.formula}.`;
  }
  return `Given: typed in, drawn or trained${how}.`;
}

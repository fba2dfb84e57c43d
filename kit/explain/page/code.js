/* The panel with code: the shown step in NumPy, PyTorch and C, as a complete program that prints
 * this step. Small operands are literals in the program, so that it prints the same numbers as the
 * page; large ones are random numbers of the same shapes. */

const LITERALS = 2500; // most numbers in all operands together
const LANGUAGES = ["NumPy", "PyTorch", "C"];

/** The parts of the program: operands, and the operations up to the shown step. */
function programOf(context, view) {
  const p = { arrays: [], ops: [], result: "", height: view.T, width: view.S };
  if (view.attention || view.mix) return attentionProgram(context, view, p);
  const { step } = view, { trace, head } = context;
  const add = (name, s) => p.arrays.push({ name, height: s.height, width: s.width, kind: s.kind,
                                           numbers: numbersOf(trace, s, head, step.heads) });
  const a = step && trace.find.get(step.made.a), b = step && trace.find.get(step.made.b);
  p.result = step && step.kind !== "ids" ? "X" : "ids";
  if (step?.made.op === "lookup" && a && b) {
    add("ids", a);
    add("table", b);
    p.ops.push({ op: "lookup" });
  } else if (step?.made.op === "project" && a && b && a.height === step.height) {
    add("x", a);
    add("W", b);
    const x = numbersOf(trace, a, head, step.heads).subarray(0, a.width);
    const w = { step: b, numbers: numbersOf(trace, b, head, step.heads) };
    const column = weightColumn(x, w, step, 0, view.numbers[0]) ?? [];
    const turned = b.width === a.width
      && column.every((c, d) => c === w.numbers[d]); // [out,in], as nn.Linear keeps it
    p.ops.push({ op: "project", turned });
  } else if (view.numbers) {
    p.arrays.push({ name: p.result, height: view.T, width: view.S, kind: view.kind,
                    numbers: view.numbers });
  }
  return p;
}

function attentionProgram(context, view, p) {
  const { trace, block, head, settings, live, state } = context;
  const inputs = inputsOf(trace, block, head), { order } = settings;
  const add = (name, numbers, height, width) => p.arrays.push({ name, numbers, height, width });
  const scale = settings.size > 0
    ? inputs.scale * Math.sqrt(inputs.D / settings.size) : inputs.scale;
  if (inputs.q) {
    const D = settings.size > 0 ? settings.size : inputs.D;
    const cut = (x, n) => {
      const moved = order ? permuteRows(x, order, inputs.D) : x;
      return D === inputs.D ? moved
        : Float64Array.from({ length: n * D }, (_, at) =>
          moved[Math.floor(at / D) * inputs.D + (at % D)]);
    };
    add("q", cut(inputs.q, block.T), block.T, D);
    add("k", cut(inputs.k, block.S), block.S, D);
    p.ops.push({ op: "dot", stage: 4 });
    if (settings.scale)
      p.ops.push({ op: "scale", stage: 5, scale,
                   root: Math.abs(scale * Math.sqrt(D) - 1) < 1e-6 ? D : 0 });
    if (settings.temperature !== 1)
      p.ops.push({ op: "temperature", stage: 5, by: settings.temperature });
  } else {
    add("S", order ? permuteBoth(inputs.scores, order) : inputs.scores, block.T, block.S);
    if (settings.temperature !== 1)
      p.ops.push({ op: "temperature", stage: 5, by: settings.temperature });
  }
  if (live.hidden && inputs.q) {
    const causal = isCausal(live.hidden, block.T, block.S);
    if (!causal) p.arrays.push({ name: "hidden", numbers: live.hidden, height: block.T,
                                 width: block.S, kind: "ids" });
    p.ops.push({ op: "mask", stage: 6, causal });
  }
  p.ops.push({ op: "softmax", stage: 7 });
  if (inputs.v) {
    add("v", order ? permuteRows(inputs.v, order, inputs.Dv) : inputs.v, block.S, inputs.Dv);
    p.ops.push({ op: "mix", stage: 8 });
  }
  p.ops = p.ops.filter((o) => o.stage <= Math.max(state.stage, 4));
  p.result = state.stage === 8 ? "Z" : state.stage >= 7 ? "A" : "S";
  if (state.stage < 8) p.arrays = p.arrays.filter((a) => a.name !== "v" || state.language === "C");
  p.masking = settings.masking;
  return p;
}

function literal(x, kind) {
  if (kind === "ids") return String(x);
  return Number.isFinite(x) ? exactText(x) : x > 0 ? "inf" : x < 0 ? "-inf" : "nan";
}

function fitsLiterals(p) {
  return p.arrays.reduce((sum, a) => sum + a.numbers.length, 0) <= LITERALS;
}

/** An operand as nested lists between these brackets. */
function nested(a, open, close) {
  const row = (i) => open + Array.from(a.numbers.subarray(i * a.width, (i + 1) * a.width),
                                       (x) => literal(x, a.kind)).join(", ") + close;
  return open + Array.from({ length: a.height }, (_, i) => row(i)).join(", ") + close;
}

function size(a) {
  return `${a.height} x ${a.width}`;
}

function pythonOperands(p, make, draw) {
  const literals = fitsLiterals(p);
  return p.arrays.map((a) => ({ text: literals || a.kind === "ids" || a.name === "hidden"
    ? `${a.name} = ${make}(${nested(a, "[", "]")})`
    : `${a.name} = ${draw(a)}  # ${size(a)}: drawn, the trace's own are too many`, long: true }));
}

function numpyLines(p) {
  const lines = [{ text: "import numpy as np" }];
  if (!fitsLiterals(p)) lines.push({ text: "rng = np.random.default_rng(0)" });
  lines.push({ text: "inf, nan = np.inf, np.nan" });
  lines.push(...pythonOperands(p, "np.array",
                               (a) => `rng.standard_normal((${a.height}, ${a.width}))`));
  const last = p.ops.length - 1;
  p.ops.forEach((o, i) => lines.push(...{
    lookup: () => ["X = table[ids[0]]"],
    project: () => [o.turned ? "X = x @ W.T" : "X = x @ W"],
    dot: () => ["S = q @ k.T"],
    scale: () => [o.root ? `S = S / np.sqrt(${o.root})` : `S = S * ${general(o.scale, 17)}`],
    temperature: () => [`S = S / ${general(o.by, 9)}  # temperature`],
    mask: () => [...(o.causal ? ["hidden = np.triu(np.ones(S.shape, bool), 1)"]
                              : ["hidden = hidden.astype(bool)"]),
                 ...(p.masking === "before" ? ["S = np.where(hidden, -np.inf, S)"] : [])],
    softmax: () => ["e = np.exp(S - S.max(axis=-1, keepdims=True))",
                    "A = e / e.sum(axis=-1, keepdims=True)",
                    ...(p.masking !== "before" ? ["A = np.where(hidden, 0, A)"] : []),
                    ...(p.masking === "renormalised"
                      ? ["A = A / A.sum(axis=-1, keepdims=True)"] : [])],
    mix: () => ["Z = A @ v"],
  }[o.op]().map((text) => ({ text, now: i === last }))));
  lines.push({ text: "np.set_printoptions(precision=6, suppress=True, threshold=100)" },
             { text: `print(${p.result})` });
  return lines;
}

function torchLines(p) {
  const lines = [{ text: "import torch" }, { text: "from math import inf, nan" }];
  if (!fitsLiterals(p)) lines.push({ text: "torch.manual_seed(0)" });
  lines.push(...pythonOperands(p, "torch.tensor",
                               (a) => `torch.randn(${a.height}, ${a.width})`));
  const last = p.ops.length - 1;
  p.ops.forEach((o, i) => lines.push(...{
    lookup: () => ["X = torch.nn.functional.embedding(ids[0], table)"],
    project: () => [o.turned ? "X = torch.nn.functional.linear(x, W)" : "X = x @ W"],
    dot: () => ["S = q @ k.T"],
    scale: () => [o.root ? `S = S / ${o.root} ** 0.5` : `S = S * ${general(o.scale, 17)}`],
    temperature: () => [`S = S / ${general(o.by, 9)}  # temperature`],
    mask: () => [...(o.causal ? ["hidden = torch.ones_like(S, dtype=torch.bool).triu(1)"]
                              : ["hidden = hidden.bool()"]),
                 ...(p.masking === "before" ? ["S = S.masked_fill(hidden, -inf)"] : [])],
    softmax: () => ["A = S.softmax(dim=-1)",
                    ...(p.masking !== "before" ? ["A = A.masked_fill(hidden, 0)"] : []),
                    ...(p.masking === "renormalised" ? ["A = A / A.sum(-1, keepdim=True)"] : [])],
    mix: () => ["Z = A @ v"],
  }[o.op]().map((text) => ({ text, now: i === last }))));
  lines.push({ text: "torch.set_printoptions(precision=6, sci_mode=False)" },
             { text: `print(${p.result})` });
  return lines;
}

/** A number as C writes it. Infinities need INFINITY from math.h. */
function cLiteral(x, kind) {
  if (kind === "ids") return String(x);
  if (!Number.isFinite(x)) return x > 0 ? "INFINITY" : x < 0 ? "-INFINITY" : "NAN";
  const text = exactText(x);
  return /[.e]/.test(text) ? `${text}f` : `${text}.0f`;
}

function cOperand(p, a) {
  const type = a.kind === "ids" && a.name !== "X" ? (a.name === "hidden" ? "_Bool" : "int64_t")
                                                  : "float";
  const name = a.name;
  if (!fitsLiterals(p) && type === "float")
    return { text: `static float ${name}[${a.height}][${a.width}];`, drawn: a };
  const row = (i) => "{" + Array.from(a.numbers.subarray(i * a.width, (i + 1) * a.width),
    (x) => (name === "hidden" ? String(1 - x) : cLiteral(x, a.kind))).join(", ") + "}";
  const rows = Array.from({ length: a.height }, (_, i) => row(i)).join(", ");
  return { text: `static ${type} ${name === "hidden" ? "visible" : name}[${a.height}][${a.width}] `
                 + `= {${rows}};`, long: true };
}

/** The engine's stage that a step of attention is. */
function cAttention(p) {
  const q = p.arrays.find((a) => a.name === "q"), k = p.arrays.find((a) => a.name === "k");
  const v = p.arrays.find((a) => a.name === "v") ?? { name: "k", width: k.width };
  const has = (op) => p.ops.find((o) => o.op === op), scale = has("scale");
  const factor = (scale ? scale.scale : 1) / (has("temperature")?.by ?? 1), mask = has("mask");
  const stage = has("softmax") ? "WEIGHTS" : mask ? "BIASED" : "RAW";
  const lines = ["attn_sdpa_args args = ATTN_SDPA_ARGS_INIT;",
    `args.q = attn_matrix(q, ATTN_F32, ${q.height}, ${q.width});`,
    `args.k = attn_matrix(k, ATTN_F32, ${k.height}, ${k.width});`,
    `args.v = attn_matrix(${v.name}, ATTN_F32, ${k.height}, ${v.width});`,
    `args.out = attn_matrix(Z, ATTN_F32, ${q.height}, ${v.width});`,
    `args.scale = ${cLiteral(Math.fround(factor))};`];
  if (mask?.causal) lines.push("args.causal = ATTN_CAUSAL_TOP_LEFT;");
  if (mask && !mask.causal)
    lines.push(`attn_tensor mask = attn_matrix(visible, ATTN_BOOL, ${q.height}, ${k.height});`,
               "args.mask = &mask;");
  lines.push(`attn_tensor scores = attn_matrix(${has("softmax") ? "A" : "S"}, ATTN_F32, `
             + `${q.height}, ${k.height});`, "args.scores = &scores;",
             `args.scores_stage = ATTN_STAGE_${stage};`);
  const out = [`static float Z[${q.height}][${v.width}], `
               + `${has("softmax") ? "A" : "S"}[${q.height}][${k.height}];`];
  return { out, lines, call: "attn_sdpa_forward(NULL, &args, &error)",
           height: q.height, width: p.result === "Z" ? v.width : k.height };
}

function cVectors(p) {
  const [op] = p.ops, find = (name) => p.arrays.find((a) => a.name === name);
  if (op.op === "lookup") {
    const ids = find("ids"), table = find("table");
    return { out: [`static float X[${ids.width}][${table.width}];`],
      lines: [`attn_tensor rows = attn_matrix(table, ATTN_F32, ${table.height}, ${table.width});`,
              `attn_tensor out = attn_matrix(X, ATTN_F32, ${ids.width}, ${table.width});`],
      call: `attn_embedding_forward(NULL, &rows, ids[0], ${ids.width}, &out, &error)`,
      height: ids.width, width: table.width };
  }
  const x = find("x"), w = find("W");
  const lines = [`attn_tensor in = attn_matrix(x, ATTN_F32, ${x.height}, ${x.width});`,
                 `attn_tensor weight = attn_matrix(W, ATTN_F32, ${w.height}, ${w.width});`,
                 `attn_tensor out = attn_matrix(X, ATTN_F32, ${p.height}, ${p.width});`];
  if (!op.turned)
    lines.push(`weight.shape[2] = ${w.width}, weight.shape[3] = ${w.height};   /* [out,in] */`,
               `weight.stride[2] = 1, weight.stride[3] = ${w.width};`);
  return { out: [`static float X[${p.height}][${p.width}];`], lines,
           call: "attn_linear_forward(NULL, &in, &weight, NULL, &out, &error)",
           height: p.height, width: p.width };
}

function cLines(p) {
  const attention = p.ops.some((o) => o.op === "dot"), vectors = ["lookup", "project"];
  if (p.masking && p.masking !== "before" && p.ops.some((o) => o.op === "mask"))
    return [{ text: "/* The library hides keys before softmax, and in no other way. */" }];
  if (!attention && !vectors.includes(p.ops[0]?.op))
    return [{ text: p.ops.length
      ? "/* The library needs queries and keys, which the trace does not have here. */"
      : "/* Given: there is nothing to call. */" }];
  const c = attention ? cAttention(p) : cVectors(p);
  const lines = [{ text: "/* cc step.c $(pkg-config --cflags --libs attn) */" },
                 { text: "#include <math.h>" }, { text: "#include <stdio.h>" },
                 { text: "#include <attn.h>" }, { text: "" }];
  const operands = p.arrays.map((a) => cOperand(p, a));
  lines.push(...operands, ...c.out.map((text) => ({ text })), { text: "" },
             { text: "int main(void)" }, { text: "{" });
  const drawn = operands.filter((o) => o.drawn).map((o) => o.drawn);
  if (drawn.length) {
    lines.push({ text: "    attn_rng rng;   /* drawn: the trace's own are too many */" },
               { text: "    attn_rng_seed(&rng, 0);" });
    for (const a of drawn)
      lines.push({ text: `    attn_rng_randn(&rng, ${a.name}[0], ${a.height * a.width});` });
  }
  lines.push(...c.lines.map((text) => ({ text: `    ${text}` })), { text: "    attn_error error;" },
    { text: `    if (${c.call} != ATTN_OK) {`, now: true },
    { text: "        puts(error.message);" }, { text: "        return 1;" }, { text: "    }" },
    { text: `    for (int i = 0; i < ${c.height}; i++)` },
    { text: `        for (int j = 0; j < ${c.width}; j++)` },
    { text: `            printf("%.6f%c", ${p.result}[i][j], j == ${c.width - 1} ? '\\n' : ' ');` },
    { text: "    return 0;" }, { text: "}" });
  return lines;
}

/** The program as lines {text, now: belongs to the shown step, long: is an operand}. */
function codeLines(context, view, language) {
  const p = programOf({ ...context, state: { ...context.state, language } }, view);
  return { NumPy: numpyLines, PyTorch: torchLines, C: cLines }[language](p);
}

function codePanel(context, view, change) {
  const { state } = context, { language } = state;
  if (state.stage === 9) context = { ...context, state: { ...state, stage: 7 } };
  if (view.kind === "curve")
    return [el("p", { class: "fine" }, "A curve of the run; attn train --json has its numbers.")];
  const lines = codeLines(context, view, language);
  const text = lines.map((l) => l.text).join("\n") + "\n";
  const pick = (step) => change({ language: LANGUAGES[(LANGUAGES.indexOf(language) + step
                                                       + LANGUAGES.length) % LANGUAGES.length] });
  const tab = (name) => el("button", { type: "button", role: "tab", id: `tab-${name}`,
    "aria-selected": String(name === language), "aria-controls": "code-text",
    tabindex: name === language ? 0 : -1, onclick: () => change({ language: name }),
    onkeydown: (e) => {
      if (e.key !== "ArrowLeft" && e.key !== "ArrowRight") return;
      e.preventDefault();
      e.stopPropagation();
      pick(e.key === "ArrowLeft" ? -1 : 1);
      byId(`tab-${context.state.language}`)?.focus();
    } }, name);
  return [
    el("div", { class: "tabs" }, el("div", { role: "tablist", "aria-label": "Language" },
                                    LANGUAGES.map(tab)), copyButton(text, "the program")),
    el("pre", { id: "code-text", role: "tabpanel", tabindex: 0,
                "aria-labelledby": `tab-${language}` },
      lines.map((l) => [l.now ? el("mark", {}, l.text) : l.text, "\n"]).flat()),
  ];
}

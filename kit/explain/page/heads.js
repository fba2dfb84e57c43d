/* Overview of all heads: one row per layer, one column per head. Thumbnails are drawn while the
 * browser is idle. For long texts they show evenly chosen rows and the largest weight of each
 * square, so that no large weight is lost. */

const THUMB = 48; // pixels
const thumbs = new WeakMap(); // block -> its canvases, by head

/** The blocks that are shown together with this one: the layers of a model, or only this one. */
function layersOf(trace, block) {
  if (!block.layer) return [block];
  return trace.blocks.filter((b) => b.layer && b.moment === block.moment)
    .sort((a, b) => a.layer - b.layer);
}

/** Weights of some rows of one head, computed if the trace left them out. */
function sampledWeights(trace, block, head, rows) {
  const { T, S } = block, step = block.weights;
  if (allNumbers(step)) {
    const all = numbersOf(trace, step, head);
    return rows.map((i) => all.subarray(i * S, (i + 1) * S));
  }
  if (!block.q || !block.k || (block.masked && !block.causal)) {
    const all = numbersOf(trace, step, head);
    return rows.map((i) => all.subarray(i * S, (i + 1) * S));
  }
  const q = numbersOf(trace, block.q, head, block.heads), D = block.q.width;
  const k = numbersOf(trace, block.k, head, block.heads);
  return rows.map((i) => {
    const seen = block.causal ? i + 1 + Math.max(S - T, 0) : S;
    const from = block.window > 0 ? Math.max(i + 1 - block.window, 0) : 0;
    const scores = dotRows(q.subarray(i * D, (i + 1) * D), k.subarray(from * D), 1, seen - from, D);
    const out = new Float64Array(S);
    out.set(softmaxRows(scores.map((s) => s * block.scale), 1, seen - from), from);
    return out;
  });
}

/** Up to THUMB rows, evenly chosen. */
function someRows(T) {
  const high = Math.min(T, THUMB);
  return Array.from({ length: high }, (_, i) => Math.floor(((i + 0.5) * T) / high));
}

/** The same rows of the mask, computed without a T × S matrix if the mask depends only on
 * positions. */
function sampledHidden(trace, block, head, rows) {
  const { S, window } = block, all = block.causal ? null : hiddenOf(trace, block, head);
  if (!block.causal && !all) return null;
  const out = new Uint8Array(rows.length * S);
  const far = (row, j) => j > row || (window > 0 && j <= row - window);
  rows.forEach((row, i) => {
    for (let j = 0; j < S; j++) out[i * S + j] = all ? all[row * S + j] : Number(far(row, j));
  });
  return out;
}

function drawThumb(trace, block, head) {
  const { T, S } = block, rows = someRows(T), high = rows.length, wide = Math.min(S, THUMB);
  const weights = sampledWeights(trace, block, head, rows);
  const image = new ImageData(wide, high);
  for (let i = 0; i < high; i++)
    for (let j = 0; j < wide; j++) {
      let most = 0;
      for (let x = Math.floor((j * S) / wide); x < Math.floor(((j + 1) * S) / wide); x++)
        most = Math.max(most, weights[i][x]);
      image.data.set([...mapColour(cividis, most), 255], 4 * (i * wide + j));
    }
  const canvas = el("canvas", { width: wide, height: high, "aria-hidden": "true" });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Draws the thumbnails that are still missing, a few at a time. */
const waitingThumbs = [];
function drawWaiting() {
  const start = performance.now();
  while (waitingThumbs.length && performance.now() - start < 12) {
    const { trace, block, head, button } = waitingThumbs.shift(), drawn = thumbs.get(block);
    drawn[head] ??= drawThumb(trace, block, head);
    if (button.isConnected) button.append(drawn[head]);
  }
  if (waitingThumbs.length) setTimeout(drawWaiting, 0);
}

/** The head's number in the model; with a single shown head it may be any. */
function headNumber(trace, head) {
  return head + (trace.head ?? 1);
}

function headName(trace, block, head) {
  return `${block.layer ? `layer ${block.layer}, ` : ""}head ${headNumber(trace, head)}`;
}

function thumbId(block, head) {
  return `thumb-${block.name} ${head}`.replace(/\W/g, "-");
}

function thumbButton(context, block, head, change) {
  const { state, trace } = context;
  if (!thumbs.has(block)) thumbs.set(block, []);
  const drawn = thumbs.get(block)[head];
  const chosen = block === context.block && head === state.head, off = offIn(block).has(head);
  const name = headName(trace, block, head);
  const button = el("button", { type: "button",
    class: `thumb${chosen ? " chosen" : ""}${off ? " off" : ""}`,
    "aria-pressed": String(chosen), "aria-label": name, title: name,
    id: thumbId(block, head),
    onclick: () => change({ block, head, step: null, stage: 7, quiz: null }) });
  if (drawn) button.append(drawn);
  else waitingThumbs.push({ trace, block, head, button });
  return button;
}

/** The table's entries for a head: the mean entropy of its rows, and the key with the most weight.
 * For a large matrix only some rows are used, because there may be hundreds of heads. */
function headRow(trace, block, head) {
  const { S } = block, every = Array.from({ length: block.T }, (_, i) => i);
  const rows = block.T > MOST_SVG ? someRows(block.T) : every, T = rows.length;
  const w = new Float64Array(T * S), hidden = sampledHidden(trace, block, head, rows);
  sampledWeights(trace, block, head, rows).forEach((row, i) => w.set(row, i * S));
  let part = 0, counted = 0;
  for (let i = 0; i < T; i++) {
    const h = rowHealth(w, hidden, i, S);
    if (h.possible > 0) { part += h.bits / h.possible; counted++; }
  }
  const sink = findSink(w, hidden, T, S);
  return [headName(trace, block, head),
          counted ? (part / counted).toFixed(3) : "–",
          sink ? `${columnLabel(block.weights, sink.at)} ${percent(sink.share)}` : "–"];
}

/** Which keys have a quarter of the row's weight or more: "head 1: is looks at eat and dessert". */
function looksAt(trace, block, row) {
  const weights = numbersOf(trace, block.weights, 0);
  const keys = Array.from({ length: block.S }, (_, j) => j)
    .filter((j) => weights[row * block.S + j] >= 0.25);
  return `${rowLabel(block.weights, row)} looks at `
    + (keys.map((j) => columnLabel(block.weights, j)).join(" and ") || "many");
}

/** A block in which each row is a head that asks for the same word; null: the trace has none. */
function headRows(trace) {
  return trace.blocks.find((b) => b.T > 1 && b.weights.rows
                                  && b.weights.rows.every((r) => r.startsWith("head "))) ?? null;
}

/** Every step of those heads, and their weights. */
function headSteps(trace, several, change) {
  const { T, S, weights } = several, w = numbersOf(trace, weights, 0);
  const rows = Array.from({ length: T }, (_, i) =>
    [rowLabel(weights, i), ...Array.from(w.subarray(i * S, (i + 1) * S), (x) => x.toFixed(4))]);
  return el("div", { id: "head-steps" },
    el("p", { class: "fine" }, "The steps of the heads: ",
       trace.shown.filter((s) => s.section === several.section).map((s) =>
         el("button", { type: "button", class: "tab", title: s.title,
                        onclick: () => change(goTo(trace, s, several)) },
            nameWords(s.name)))),
    makeTable(`${nameWords(weights.name)}: each row is a head`,
              ["", ...Array.from({ length: S }, (_, j) => columnLabel(weights, j))], rows));
}

/** What is said of a block with one head. A lesson may have another block with a row for each head
 * of the same word. */
function oneHead({ trace, block }) {
  if (block.trained) return "A trained head. The list Attention has the random ones, too.";
  const several = headRows(trace);
  if (!several) return "One head. With more (attn explain --heads 3), each asks in its own way.";
  const rows = Array.from({ length: several.T }, (_, i) => looksAt(trace, several, i)).join(", ");
  if (several === block) return `Each row is a head: ${rows}.`;
  return `One head here. This lesson also has one row for each of several heads: ${rows}.`;
}

function headsPanel(context, change) {
  const { trace, block } = context, several = headRows(trace), layers = layersOf(trace, block);
  const most = Math.max(...layers.map((b) => b.heads)), few = layers.length * most <= 24;
  waitingThumbs.length = 0;
  setTimeout(drawWaiting, 30);
  const heads = (b) => Array.from({ length: b.heads }, (_, h) => h);
  return [
    figure("heads", "Layers and heads",
      () => el("div", { class: `thumbs${few ? " few" : ""}` }, layers.map((b) =>
        el("div", { class: "layer" },
          el("span", { class: "layer-name" }, b.layer ? `L${b.layer}` : "heads"),
          el("div", { class: "heads" }, heads(b).map((h) => thumbButton(context, b, h, change)))))),
      () => makeTable("Heads: mean entropy, of what is possible, and sinks"
          + (block.T > MOST_SVG ? `; from ${THUMB} of ${block.T} rows of each` : ""),
        ["head", "entropy", "sink"],
        layers.flatMap((b) => heads(b).map((h) => headRow(trace, b, h))))),
    el("p", { class: "fine" }, most * layers.length > 1
      ? `Click to open a head${most > 1 ? "; keys [ and ] step through them" : ""}. `
        + "Labs change one head's output only, not the layers above it."
      : trace.head ? `Head ${trace.head} alone; --head all shows the others.`
      : oneHead(context)),
    several ? headSteps(trace, several, change) : null,
    headOffPanel(context),
  ];
}

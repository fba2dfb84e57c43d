/* The page: its state, redrawing after a change, keyboard, and the switches of the header.
 *
 * state.stage 1…9 is the current stage. state.step is a step of the trace, if it is not the stage's
 * first one. row, key and component are the cell: the query, the key, and the number of a
 * vector. tab and screen: story.js. */

const page = { trace: null, state: null, context: null, matrix: null, rolled: new Map(),
               rowMoved: false, following: 0 };

/** The first view: the block whose health the notes describe, otherwise the one that looks most
 * like attention. */
function firstBlock(trace) {
  const told = trace.notes.find((n) => n.label === "health")?.text.split(":")[0];
  const named = trace.blocks.findIndex((b) => b.name === told);
  return Math.max(named >= 0 ? named : trace.blocks.findIndex((b) => b.T > 1 && b.T === b.S), 0);
}

/** The key with the largest weight of a row: the first cell. */
function strongestKey(trace, block, row) {
  const weights = numbersOf(trace, block.weights, 0).subarray(row * block.S, (row + 1) * block.S);
  return weights.reduce((best, w, j) => (w > weights[best] ? j : best), 0);
}

function startState(trace) {
  const models = trace.blocks.filter((b) => b.layer), last = models.at(-1) ?? null;
  trace.firstBlock = firstBlock(trace);
  const block = (trace.command === "train" ? last : null) ?? trace.blocks[trace.firstBlock];
  const row = Math.min(trace.query >= 0 ? trace.query : block.T - 1, block.T - 1);
  return { stage: 7, step: null, block, head: 0, row, key: strongestKey(trace, block, row),
           component: 0, settings: untouched(), quiz: null, language: "NumPy",
           tab: trace.script ? "story" : "explore", screen: "aims" };
}

/** The current state, as the panels need it. */
function contextOf(trace, state) {
  const { block, settings } = state, head = Math.min(state.head, block.heads - 1);
  const { order } = settings, from = (i) => (order ? order[i] : i);
  const live = liveNumbers(trace, block, head, settings);
  const context = { trace, state, block, head, settings, order, live,
    rows: (i) => rowLabel(block.weights, from(i)),
    columns: (j) => columnLabel(block.weights, block.T === block.S ? from(j) : j) };
  const norms = valueNorms(trace, block, head);
  context.norms = order ? order.map((i) => norms[i]) : norms;
  context.rolled = page.rolled.get(block.name) ?? null;
  if (settings.view === "rollout" && !context.rolled) startRollout(trace, block);
  context.names = { row: context.rows(state.row), column: context.columns(state.key) };
  return context;
}

async function startRollout(trace, block) {
  page.rolled.set(block.name, null);
  const pause = () => new Promise((resolve) => setTimeout(resolve, 0));
  page.rolled.set(block.name, await rollout(trace, block, pause));
  if (page.state.block === block) change({});
}

/** Keeps the cell inside what is shown. */
function clamp(state) {
  const { block } = state, within = (x, n) => Math.min(Math.max(x, 0), Math.max(n - 1, 0));
  return { ...state, head: within(state.head, Math.max(block.heads, state.step?.heads ?? 0)),
           row: within(state.row, Math.max(block.T, state.step?.height ?? 0)),
           key: within(state.key, block.S), component: Math.max(state.component, 0) };
}

/** Changes the view. */
function change(patch) {
  const before = page.state;
  const next = { ...before, ...patch };
  if (!page.trace.script) next.tab = "explore"; // such a page has no story
  if (patch.block && patch.block !== before.block) {
    const same = patch.block.T === before.block.T && patch.block.S === before.block.S;
    if (!same || patch.block.moment < 0) next.settings = patch.settings ?? untouched();
    if (!same) Object.assign(next, { row: Math.max(page.trace.query, 0), key: 0 });
    next.quiz = patch.quiz ?? null;
  }
  if (next.quiz && (next.head !== before.head || patch.settings) && !patch.quiz) next.quiz = null;
  page.state = clamp(next);
  draw();
}

/* ------------------------------------------------------------------------------------- drawing */

/** The cell of the shown matrix. */
function cursorOf(view, state) {
  const column = view.asks && (view.attention || view.given) ? state.key
               : view.attention ? state.key : state.component;
  return { row: Math.min(state.row, view.T - 1), column: Math.min(column, view.S - 1) };
}

function moved(view, i, j, pinned) {
  const patch = { row: view.T > 1 || view.attention ? i : page.state.row };
  if (view.attention || view.given) patch.key = j;
  else patch.component = j;
  page.rowMoved ||= patch.row !== page.state.row;
  page.state = clamp({ ...page.state, ...patch });
  const { rows, columns } = page.context;
  page.context = { ...page.context, state: page.state,
                   names: { row: rows(page.state.row), column: columns(page.state.key) } };
  noteLink();
  const follow = () => {
    drawCell(page.context, view, i, j);
    if (page.rowMoved) drawRow(page.context);
    page.rowMoved = false;
  };
  clearTimeout(page.following);
  if (pinned || view.T * view.S <= MOST_SVG ** 2) return follow();
  /* For a large matrix the panels are updated when the pointer rests; the cross-hair moves at
   * once. */
  byId("cell-sentence").textContent = cellSentence(view, i, j);
  page.following = setTimeout(follow, 80);
}

function drawCell(context, view, i, j) {
  refill(byId("cell-body"), view.given
    ? [el("p", { class: "cell-sentence", id: "cell-sentence" }, cellSentence(view, i, j)),
       el("p", { class: "fine" }, view.given)]
    : cellPanel(context, view, i, j));
  announce(cellSentence(view, i, j));
}

/** The panels that depend only on the row. */
function drawRow(context) {
  const { state } = context;
  const choose = (row) => change({ row });
  refill(byId("lines-body"), linesPanel(context.lines, state.row, choose));
  refill(byId("health-body"), healthPanel(context, choose, change));
  if (byId("plane-panel").open) drawPlane();
}

function drawMatrix(context) {
  const { view } = context, holder = byId("matrix-body");
  if (context.state.stage === 9) {
    const { row, column } = cursorOf(view, context.state);
    page.matrix = null;
    refill(holder, headsPanel(context, change), afterHeads(context));
    drawCell(context, view, row, column);
    return;
  }
  const width = Math.max(context.width, 240), cursor = cursorOf(view, context.state);
  page.matrix = makeMatrix(view, width, cursor, (i, j, pinned) => moved(view, i, j, pinned));
  const focused = document.activeElement?.id === "cell";
  refill(holder, figure("matrix", view.label, () => page.matrix.element,
                        () => matrixTable(view, cursorOf(view, page.state).row),
                        byId("matrix-twin")),
         view.asks ? el("p", { class: "fine direction" }, "Row asks, column answers.") : null);
  if (focused) byId("cell")?.focus({ preventScroll: true });
  refill(byId("exports"), exportButtons(view));
  drawCell(context, view, cursor.row, cursor.column);
}

/** Steps that come after the heads: joined, projected. */
function afterHeads(context) {
  const { trace, block } = context, at = trace.shown.indexOf(block.context ?? block.weights);
  const rest = trace.shown.slice(at + 1).filter((s) => s.section === block.section
                                                && s.kind === "values" && !s.minor);
  if (!rest.length || block.heads < 2) return null;
  return el("p", {}, "Then the heads are joined: ", rest.map((s) =>
    el("button", { type: "button", class: "tab", onclick: () => change({ step: s, stage: 0 }) },
       nameWords(s.name))));
}

function drawText(context) {
  const { view, state, block, trace } = context, nine = state.stage === 9;
  byId("setting").textContent = block.trained ? trace.trainedSetting : trace.setting;
  byId("step-title").textContent = nine ? "All heads" : view.title || view.name;
  byId("step-formula").textContent = nine ? "" : view.formula;
  byId("step-sentence").textContent = nine ? "Each head has its own queries, keys and values."
                                           : lineText(view.sentence);
  byId("step-name").textContent = nine ? "Layers and heads" : view.label;
  byId("save").hidden = byId("matrix-twin").hidden = nine;
  byId("step-section").textContent = view.step?.section ?? "";
  byId("rounded").textContent = view.rounded
    ? "Computed from vectors stored with 11 bits; the terminal's numbers have 24." : "";
  const printed = !nine && view.step?.printed;
  refill(byId("printed"), printed ? [el("summary", {}, view.step.beyond ? "PyTorch prints"
    : "The notebook printed"), el("pre", { tabindex: 0 }, view.step.printed)] : []);
  byId("printed").hidden = !printed;
  const changed = context.live.changed || state.settings.hideSink;
  byId("changed").hidden = !changed;
}

function blockSelect(context) {
  const { trace, block } = context;
  if (trace.blocks.length < 2) return null;
  return el("label", { class: "control" }, el("span", { class: "control-name" }, "Attention"),
    el("select", { id: "block", onchange: (e) => change({
        block: trace.blocks[Number(e.target.value)], step: null, stage: 7, quiz: null }) },
      trace.blocks.map((b, i) => el("option", { value: i, selected: b === block }, b.title))));
}

function headSelect(context) {
  const { block, state } = context, heads = Math.max(block.heads, state.step?.heads ?? 1);
  if (heads < 2) return null;
  return el("label", { class: "control" }, el("span", { class: "control-name" }, "Head"),
    el("select", { id: "head", onchange: (e) => change({ head: Number(e.target.value) }) },
      Array.from({ length: heads }, (_, h) => el("option", { value: h, selected: h === state.head },
                                                 String(h + 1)))));
}

function draw() {
  if (showTab()) {
    drawStory();
    return noteLink();
  }
  const width = byId("matrix-body").clientWidth; // before a change would need a new layout
  const { trace, state } = page, context = { ...contextOf(trace, state), width };
  if (state.step === null && stageAbsent(trace, context.block, state.stage, context.live)) {
    page.state = { ...state, stage: 7, step: null };
    return draw();
  }
  context.view = viewOf({ ...context, state: state.stage === 9 ? { ...state, stage: 7 } : state });
  const seven = { ...context, state: { ...state, stage: 7, step: null } };
  context.lines = attentionView(seven);
  page.context = context;
  refill(byId("stages"), stageBar(context, change));
  refill(byId("where"), blockSelect(context), headSelect(context), stepSelect(context, change));
  refill(byId("tabs"), stageTabs(context, change));
  drawText(context);
  drawMatrix(context);
  drawRow(context);
  refill(byId("code-body"), codePanel(context, context.view, change));
  refill(byId("labs-body"), labPanel(context, change));
  refill(byId("quiz-body"), quizPanel(context, change));
  drawFolds();
  const atHeads = state.stage === 9 && link.embed !== "heads"; // they are in the matrix's place
  refill(byId("heads-body"), atHeads ? [] : headsPanel(context, change));
  byId("heads-panel").hidden = atHeads;
  if (trace.shown.some((s) => s.kind === "curve")) {
    byId("learning-panel").hidden = false;
    refill(byId("learning-body"), learningPanel(context, change));
  }
  noteLink();
}

/** The panels that are computed only while they are unfolded. */
function drawFolds() {
  if (byId("mask-lab").open) drawMaskLab();
  if (byId("plane-panel").open) drawPlane();
  if (byId("compare-panel").open) drawCompare();
}

function drawMaskLab() {
  refill(byId("mask-body"), maskLabPanel(page.context));
}

function drawPlane() {
  refill(byId("plane-body"), planePanel(page.context));
}

function drawCompare() {
  refill(byId("compare-body"), comparePanel(page.context, drawCompare));
}

function drawSizeLab() {
  refill(byId("size-body"), sizeLabPanel(drawSizeLab));
}

/* ---------------------------------------------------------------------------------------- keys */

function onKey(event) {
  const { target, key } = event;
  if (event.ctrlKey || event.altKey || event.metaKey || !page.state) return;
  if (target.closest?.("input, select, textarea, [role=tab]")) return;
  if (page.state.tab === "story" && !/^Arrow(Left|Right)$/.test(key)) return;
  if (/^[1-9]$/.test(key)) {
    const button = byId(`stage-${key}`);
    if (!button.disabled) change({ stage: Number(key), step: null });
    else announce(button.title);
  } else if (key === "ArrowLeft" || key === "ArrowRight") {
    if (target.closest?.(".scroll, pre, code")) return;
    go(key === "ArrowLeft" ? -1 : 1);
  } else if (key === "[" || key === "]") {
    const heads = page.context.block.heads;
    change({ head: (page.context.head + (key === "]" ? 1 : heads - 1)) % heads, quiz: null });
  } else return;
  event.preventDefault();
}

function go(by) {
  if (page.state.tab === "story") return stepScreen(by);
  const to = neighbour(page.context, by);
  if (to) change(to);
}

/* -------------------------------------------------------------------------------------- header */

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", String(dark));
  byId("theme").textContent = dark ? "Light" : "Dark";
}

/** Pixels of a canvas keep their colours, so what is shown is drawn anew. */
function changeTheme(dark) {
  setTheme(dark);
  if (page.state) draw();
}

const SIZES = [100, 115, 130];
function nextSize() {
  const root = document.documentElement, now = Number(root.dataset.size ?? 100);
  root.dataset.size = SIZES[(SIZES.indexOf(now) + 1) % SIZES.length];
  if (page.state) draw();
}

function fillHeader(trace) {
  const name = trace.lesson ? `lesson ${trace.lesson}` : trace.command;
  document.title = `${trace.title} · attn ${name}`;
  const title = trace.text ? `“${lineText(trace.text)}”` : trace.title;
  byId("title").textContent = title;
  byId("title").title = title.length > 160 ? title : ""; // the header shows only two lines of it
  byId("command").textContent = `attn ${name}`;
  byId("setting").textContent = trace.setting;
  const rest = trace.notes.filter((n) => !["health", "cause", "try"].includes(n.label));
  const shown = (n) => [el("dt", {}, n.label), el("dd", {}, lineText(n.text))];
  refill(byId("notes"), rest.map(shown).flat());
}

function showEngine() {
  byId("engine").textContent = engine.name;
}

function start() {
  link.written = document.documentElement.cloneNode(true);
  const data = JSON.parse(byId("data").textContent);
  cividis = data.palette;
  page.trace = readTrace(data.trace);
  fillHeader(page.trace);
  byId("version").textContent = `libattn ${data.version}`;
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches);
  byId("theme").addEventListener("click", () =>
    changeTheme(document.documentElement.dataset.theme !== "dark"));
  byId("text-size").addEventListener("click", nextSize);
  byId("previous").addEventListener("click", () => go(-1));
  byId("next").addEventListener("click", () => go(1));
  byId("changed-reset").addEventListener("click", () => change({ settings: untouched() }));
  byId("run-check").addEventListener("click", runCheck);
  for (const id of ["mask-lab", "plane-panel", "compare-panel"])
    byId(id).addEventListener("toggle", () => page.context && drawFolds());
  byId("size-lab").addEventListener("toggle", (e) => e.target.open && drawSizeLab());
  document.addEventListener("keydown", onKey);
  if (data.trace.options) {
    own.written = data.trace;
    own.query = queryOf(data.trace);
  }
  engine.onchange = () => {
    showEngine();
    drawOwn();
    allowComputing();
    drawLearn();
    followLink();
  };
  engine.onchange();
  setTimeout(() => openLibrary().then(engine.onchange)); // after the page is drawn
  if (page.trace.blocks.length === 0) {
    byId("main").hidden = true;
    byId("empty").hidden = false;
    return;
  }
  page.state = startState(page.trace);
  startTabs();
  startLink();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) draw();
    width = innerWidth;
  });
}

/* For the browser's console, and for tests: the trace, the state, the pure functions. */
globalThis.attn = { page, engine, attend, change, numberText, general, readHalf, cellText,
                    csvField, csvText, svgText, pngBlob, codeLines, rowHealth, readAnswer,
                    labelText, measureSize, softmaxRows, numbersOf, liveNumbers, checkTrace,
                    library, explainByLibrary, own, computeOwn, story, storyScreens, motion,
                    link, savedPage, learn, learnTasks: LEARN_TASKS };
start();

/* "Watch it learn": the tasks of attn train, computed in the page by the program's own code, in a
 * Worker (learn-worker.js), so that the page stays quick. */

/** What can be learnt. A config is that of the command that the panel names; what follows any of
 * them is decided by the seed alone. */
const LEARN_TASKS = {
  "previous-token": {
    title: "the word before", steps: 150, layers: 1, length: 16, vocab: 16, embed: 32, batch: 16,
    lr: 0.003, says: "At each place, name the word before it. The words are random letters, so "
      + "only the place can help: the weights settle just below the diagonal." },
  induction: {
    title: "what came next last time", steps: 300, layers: 2, length: 16, vocab: 16, embed: 32,
    batch: 32, lr: 0.003, says: "A block of letters is repeated: continue it. Layer 1 learns to "
      + "look at the word before; layer 2 then finds what followed this word the last time." },
  "same-word": {
    title: "the same word, of any words", steps: 1300, layers: 1, length: 36, vocab: 36, embed: 48,
    batch: 16, lr: 0.005, says: "Where was this word last? Every sequence draws its own "
      + "embeddings, so only a rule can be learnt. Such a training made the head “same” of this "
      + "page." },
  "any-words": {
    title: "what came next, of any words", steps: 3000, layers: 2, length: 36, vocab: 36, embed: 48,
    batch: 64, lr: 0.003, says: "What followed this word the last time, with embeddings that every "
      + "sequence draws for itself. It takes some minutes. Such a training made the heads "
      + "“previous” and “followed” of this page." },
};
/** How long a run may take, in seconds; 0: as fast as it can. */
const LEARN_PACES = { slow: ["slowly", 30], normal: ["in 10 seconds", 10],
                      fast: ["as fast as it can", 0] };
const LEARN_REDUCED = 2000; // ms between pictures for readers who asked for less motion
const LEARN_MARKS = [0.25, 0.5, 0.75, 0.95]; // of the accuracy: what a screen reader is told

const learn = { worker: null, task: "previous-token", pace: "normal", state: "idle", // or running,
                why: "", // paused, done, failed: why
                step: 0, losses: [], checks: [], maps: [], labels: [], told: 0, drawn: 0 };

function learnConfig() {
  return { task: learn.task, heads: 1, seed: 1n, ...LEARN_TASKS[learn.task] };
}

/** The command that trains the same. */
function learnCommand() {
  const config = learnConfig(), usual = { length: 32, vocab: 32, embed: 64, heads: 2, layers: 2,
                                          batch: 32, lr: 0.003, steps: 600 };
  const given = Object.entries(usual).filter(([name, x]) => config[name] !== x)
    .map(([name]) => `--${name} ${config[name]}`);
  return ["ATTN_ISA=generic attn train --task", config.task, ...given].join(" ");
}

/* --------------------------------------------------------------------------------- the Worker */

function endLearning() {
  learn.worker?.terminate();
  Object.assign(learn, { worker: null, state: "idle", why: "", step: 0, losses: [], checks: [],
                         maps: [], labels: [], told: 0, drawn: 0 });
}

function failLearning(why) {
  endLearning();
  Object.assign(learn, { state: "failed", why });
  drawLearn();
}

function hearLearning({ target, data }) {
  if (target !== learn.worker) return; // of a run that has been given up
  if (data.said) return failLearning(data.said);
  learn.losses.push(...data.losses);
  Object.assign(learn, { step: data.step, maps: data.maps, labels: data.labels });
  learn.checks.push([data.step, data.accuracy, data.unseen]);
  if (data.done) learn.state = "done";
  tellLearning(data.accuracy);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (learn.state !== "running") return drawLearn();
  if (still && performance.now() - learn.drawn < LEARN_REDUCED) return;
  learn.drawn = performance.now();
  drawLearned();
}

/** Announces some moments only: a screen reader would not come to an end. */
function tellLearning(accuracy) {
  const passed = LEARN_MARKS.filter((mark) => accuracy >= mark).length;
  const now = `step ${learn.step}, ${percent(accuracy)} right`;
  if (learn.state === "done") announce(`Training has ended: ${now}.`);
  else if (passed > learn.told) announce(`Training: ${now}.`);
  learn.told = Math.max(learn.told, passed);
}

/** The Worker, with a run that has begun; null if there can be none. */
function learnWorkerOf() {
  if (learn.worker) return learn.worker;
  const url = URL.createObjectURL(new Blob([`(${learnWorker})();`], { type: "text/javascript" }));
  try {
    learn.worker = new Worker(url);
  } catch {
    failLearning("this browser refused a Worker");
    return null;
  } finally {
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }
  learn.worker.onmessage = hearLearning;
  learn.worker.onerror = (e) => {
    e.preventDefault();
    failLearning("this browser refused the Worker that trains");
  };
  const { module } = library;
  learn.worker.postMessage({ ...learnConfig(), module, imports: WebAssembly.Module.imports(module)
    .map(({ module: from, name }) => ({ module: from, name })) });
  return learn.worker;
}

function startLearning() {
  if (learn.state === "done" || learn.state === "failed") endLearning();
  if (!learnWorkerOf()) return;
  const seconds = LEARN_PACES[learn.pace][1];
  learn.worker.postMessage({ pace: seconds > 0 ? learnConfig().steps / seconds : 0 });
  learn.state = "running";
  announce(`Training has begun: ${LEARN_TASKS[learn.task].title}.`);
  drawLearn();
}

function pauseLearning() {
  learn.worker.postMessage({});
  learn.state = "paused";
  announce(`Training is paused at step ${learn.step}.`);
  drawLearn();
}

function stepLearning() {
  if (learn.state === "done" || learn.state === "failed") endLearning();
  if (!learnWorkerOf()) return;
  learn.state = "paused";
  learn.worker.postMessage({ steps: 1 });
}

/* -------------------------------------------------------------------------------- the pictures */

/** Points of a curve, at most 400 of them, as the step of a trace that learning.js draws. */
function learnCurve(name, title, label, points) {
  const every = Math.max(Math.ceil(points.length / 400), 1);
  const kept = points.filter((_, i) => i % every === 0 || i === points.length - 1);
  return { name, title, columns: ["step", label], heads: 1, height: kept.length, width: 2,
           all: Float64Array.from(kept.flat()), tensor: {}, made: {} };
}

function learnMap(weights, T) {
  const size = 12, width = size * T + 30; // drawn 330 pixels wide: labels of 11
  return el("svg", { viewBox: `-26 -18 ${width} ${size * T + 22}`, class: "learn-map",
                     "font-size": ((11 * width) / 330).toFixed(1),
                     role: "img", "aria-label": strongestPlaces(weights, T),
                     "shape-rendering": "crispEdges" },
    learn.labels.flatMap((label, i) => [
      el("text", { x: -6, y: size * i + 9, "text-anchor": "end", class: "label" }, label),
      el("text", { x: size * i + 6, y: -5, "text-anchor": "middle", class: "label" }, label)]),
    Array.from(weights, (w, at) => el("rect", { x: size * (at % T), y: size * Math.floor(at / T),
      width: size, height: size, fill: cssColour(mapColour(cividis, w)) })));
}

/** How far back the largest weight of each row is, in words. */
function strongestPlaces(weights, T) {
  const counts = new Map();
  for (let i = 0; i < T; i++) {
    let best = 0;
    for (let j = 1; j < T; j++) if (weights[i * T + j] > weights[i * T + best]) best = j;
    counts.set(i - best, (counts.get(i - best) ?? 0) + 1);
  }
  const [[back, rows]] = [...counts].sort((a, b) => b[1] - a[1]);
  const where = back === 0 ? "themselves" : back === 1 ? "the word before"
    : `the word ${back} places before`;
  return `${rows} of ${T} words look most at ${where}`;
}

function learnMaps() {
  const T = learn.labels.length;
  return learn.maps.map((weights, layer) => {
    const name = learn.maps.length > 1 ? `Attention of layer ${layer + 1}` : "Attention";
    return el("div", {}, el("h4", {}, name),
      figure(`learn-map-${layer}`, name, () => learnMap(weights, T),
        () => makeTable(`${name}, after step ${learn.step}`, ["asks ↓ answers →", ...learn.labels],
          learn.labels.map((label, i) => [label, ...Array.from({ length: T }, (_, j) =>
            exactText(weights[i * T + j]))]))),
      el("p", { class: "fine" }, `${strongestPlaces(weights, T)}.`));
  });
}

function learnFigures() {
  if (!learn.checks.length) return [];
  const losses = learn.losses.map((loss, i) => [i + 1, loss]);
  return [
    el("div", {},
      losses.length > 1 ? curveFigure(learnCurve("learn-loss", "Loss of each step", "loss", losses),
                                      -1) : null,
      curveFigure(learnCurve("learn-accuracy", "Right, of unseen sequences", "part",
                             learn.checks.map(([step, part]) => [step, part])), -1)),
    ...learnMaps()];
}

/* ----------------------------------------------------------------------------------- the panel */

function learnSaid() {
  const { steps } = learnConfig(), [step, accuracy, unseen] = learn.checks.at(-1) ?? [];
  if (learn.state === "failed") return `Not trained: ${learn.why}.`;
  if (step === undefined) return "Not begun.";
  return `Step ${step} of ${steps} · loss ${numberText(unseen)} · ${percent(accuracy)} right on `
         + "unseen sequences";
}

function learnControls() {
  const running = learn.state === "running", names = { idle: "Start", paused: "Go on",
                                                       done: "Again", failed: "Start" };
  const titles = Object.entries(LEARN_TASKS).map(([key, { title }]) => [key, title]);
  return el("div", { class: "controls" },
    control("Learn", choice("learn-task", Object.fromEntries(titles), learn.task, (task) => {
      endLearning();
      learn.task = task;
      drawLearn();
    })),
    control("Speed", choice("learn-pace", Object.fromEntries(Object.entries(LEARN_PACES)
      .map(([key, [name]]) => [key, name])), learn.pace, (pace) => {
      learn.pace = pace;
      if (running) startLearning();
    })),
    el("span", { class: "control" },
      el("button", { type: "button", id: "learn-start", onclick: running ? pauseLearning
                                                                         : startLearning },
         running ? "Pause" : names[learn.state]),
      el("button", { type: "button", id: "learn-step", disabled: running, onclick: stepLearning },
         "One step"),
      el("button", { type: "button", class: "quiet", id: "learn-again", onclick: () => {
        endLearning();
        drawLearn();
      }, disabled: learn.state === "idle" }, "Reset")));
}

/** Draws the panel; or says why nothing can be trained here. */
function drawLearn() {
  const { trace } = page;
  if (!trace.options && trace.command !== "train") return;
  byId("learn-panel").hidden = false;
  if (library.state === "starting") return;
  if (library.state !== "ready" || !globalThis.Worker) {
    const why = library.state !== "ready" ? library.why : "this browser has no Worker";
    endLearning();
    return refill(byId("learn-body"), el("p", { class: "fine", id: "learn-why" },
      `This page cannot train: ${why}. The program can: `, el("code", {}, learnCommand())));
  }
  refill(byId("learn-body"), el("p", {}, LEARN_TASKS[learn.task].says), learnControls(),
    el("p", { id: "learn-said", class: learn.state === "failed" ? "changed" : null }),
    el("div", { class: "learning", id: "learn-figures" }),
    el("p", { class: "fine" }, "Computed in this page by the program’s own code: forward, backward "
      + "and AdamW. The program trains the same: ", el("code", {}, learnCommand()), " ",
      copyButton(learnCommand(), "the command")));
  drawLearned();
}

/** Draws what changes from step to step; the controls stay as they are. */
function drawLearned() {
  byId("learn-said").textContent = learnSaid();
  refill(byId("learn-figures"), learnFigures());
}

/** From the story to the panel. */
function goLearn() {
  change({ tab: "explore" });
  byId("learn-panel").scrollIntoView({ block: "start" });
  byId("learn-start")?.focus({ preventScroll: true });
}

/* The link of the page: its state as key=value pairs in the URL's hash. A link opens what its
 * sender saw; Back and Forward go through the steps that the reader took.
 *
 * A change of one of the STEP_KEYS is a new entry of the browser's history, and so is the first
 * change of the sentence; other changes (the cell, the labs, more typing) replace the entry. Keys
 * that are not known, and values that are not possible, are ignored. */

/** Keys of the sentence; each names a control of sentence.js. An absent one is as in the file. */
const SENTENCE_KEYS = { text: "text", query: "query", heads: "heads", seed: "seed", d: "embed",
                        d_k: "qk", d_v: "v", causal: "causal", scale: "scale" };
const STEP_KEYS = ["tab", "screen", "attention", "stage", "step", "head"];

/* Browsers refuse frequent changes of the URL (Safari: 100 in 30 s). */
const LINK_PAUSE = 400, LINK_PUSHES = 50, LINK_PERIOD = 10000;

const link = { written: null, // the document as it was before the script changed it
               pairs: new Map(), text: "", // the state that was last read or noted
               waiting: null, // the pairs of a sentence that the page cannot compute (yet)
               embed: "", applying: false, typing: false, timer: 0, replaced: -Infinity,
               pushed: [] };

/* ------------------------------------------------------------------------- state to pairs */

/** What the labs change. */
function labPairs(s) {
  const pairs = [];
  if (!s.scale) pairs.push(["lab-scale", "off"]);
  if (s.size > 0) pairs.push(["lab-d_k", s.size]);
  if (s.temperature !== 1) pairs.push(["lab-T", s.temperature]);
  if (s.mask !== "trace") pairs.push(["lab-mask", s.mask]);
  if (s.masking !== "before") pairs.push(["lab-masking", s.masking]);
  if (s.view !== "weights") pairs.push(["lab-view", s.view]);
  if (s.hideSink) pairs.push(["lab-sink", "out"]);
  if (s.order) pairs.push(["lab-order", s.seed]);
  return pairs;
}

/** What the controls say otherwise than the file does. */
function sentencePairs() {
  if (!own.asked) return [];
  const written = controlsOf(askedOf(own.written)), asked = controlsOf(own.asked);
  return Object.entries(SENTENCE_KEYS).map(([key, name]) => [key, name, asked[name]])
    .filter(([, name, value]) => value !== written[name]).map(([key, , value]) => [key, value]);
}

function statePairs() {
  const { state, trace } = page, { block, step } = state;
  if (trace.script && state.tab === "story") return [["tab", "story"], ["screen", state.screen]];
  const pairs = [];
  if (block !== startState(trace).block) pairs.push(["attention", block.name]);
  if (step) pairs.push(["step", step.name]);
  else pairs.push(["stage", state.stage]);
  if (state.head > 0) pairs.push(["head", state.head + 1]);
  pairs.push(["row", state.row + 1], ["key", state.key + 1]);
  if (state.component > 0) pairs.push(["component", state.component + 1]);
  if (state.language !== LANGUAGES[0]) pairs.push(["code", state.language]);
  return [...pairs, ...labPairs(state.settings)];
}

/** A hash without its #. The full stop at its end is encoded too, because programs that turn the
 * addresses in a text into links take it for the end of the text's sentence. */
function hashOf(pairs) {
  const text = new URLSearchParams([...pairs].map(([key, value]) => [key, String(value)]));
  return text.toString().replace(/\.$/, "%2E");
}

function linkPairs(withSentence = true) {
  return new Map([...(link.embed ? [["embed", link.embed]] : []),
                  ...(withSentence ? sentencePairs() : []),
                  ...statePairs()]
    .map(([key, value]) => [key, String(value)]));
}

/* -------------------------------------------------------------------------------- writing */

/** Browsers may refuse, as they do in a document without an address of its own. */
function writeHistory(how, text) {
  try {
    history[how](null, "", `#${text}`);
  } catch {
    link.timer = 0;
  }
}

function replaceNow() {
  clearTimeout(link.timer);
  link.timer = 0;
  link.replaced = performance.now();
  writeHistory("replaceState", link.text);
}

function replaceSoon() {
  if (link.timer) return;
  const wait = link.replaced + LINK_PAUSE - performance.now();
  if (wait <= 0) replaceNow();
  else link.timer = setTimeout(replaceNow, wait);
}

/** Whether there may be a new entry of the history: not in a frame, whose entries would be those of
 * the page around it; and not for a key that is held down. */
function mayPush() {
  const now = performance.now();
  link.pushed = link.pushed.filter((when) => now - when < LINK_PERIOD);
  return !link.embed && link.pushed.length < LINK_PUSHES;
}

/** Called after every change of the state: writes it into the URL. */
function noteLink() {
  if (link.applying || !link.written) return;
  const pairs = linkPairs(), text = hashOf(pairs);
  if (text === link.text) return;
  const differs = (keys) => keys.some((key) => pairs.get(key) !== link.pairs.get(key));
  const step = differs(STEP_KEYS);
  const sentence = differs(Object.keys(SENTENCE_KEYS));
  const push = (step || (sentence && !link.typing)) && mayPush();
  if (push && link.timer) replaceNow(); // the entry that is left
  Object.assign(link, { pairs, text, typing: sentence });
  if (!push) return replaceSoon();
  link.pushed.push(performance.now());
  writeHistory("pushState", text);
}

/* -------------------------------------------------------------------------------- reading */

/** A whole number 1…most of a pair, counted from 0; or `otherwise`. */
function placeIn(said, key, most, otherwise) {
  const text = said.get(key) ?? "";
  return /^\d{1,9}$/.test(text) && text >= 1 && text <= most ? text - 1 : otherwise;
}

function labsOf(block, said) {
  const s = untouched(), can = abilities(block);
  const T = Number(said.get("lab-T")), mask = said.get("lab-mask"), view = said.get("lab-view");
  if (can.vectors) {
    s.scale = said.get("lab-scale") !== "off";
    s.size = placeIn(said, "lab-d_k", block.q.width - 1, -1) + 1;
  }
  if (T >= 0.01 && T <= 100) s.temperature = T;
  if (can.scores && can.square && ["none", "causal"].includes(mask)) s.mask = mask;
  if (can.scores && Object.hasOwn(MASKING, said.get("lab-masking") ?? ""))
    s.masking = said.get("lab-masking");
  if ((view === "contribution" && can.values) || (view === "rollout" && can.square)) s.view = view;
  s.hideSink = said.get("lab-sink") === "out";
  const seed = placeIn(said, "lab-order", 1e6, -1) + 1;
  if (seed > 0 && can.square) Object.assign(s, { seed, order: shuffled(block.T, seed) });
  return s;
}

/** The tab and the screen. Pairs that name a place in Explore need not name the tab. */
function tabOf(trace, said, first) {
  const tab = said.get("tab"), place = ["stage", "step", "attention", "row", "key"];
  const screen = (trace.script ? storyScreens(trace) : [])
    .find(({ name }) => name === said.get("screen"))?.name ?? first.screen;
  const known = tab === "story" || tab === "explore";
  return { screen, tab: known ? tab : place.some((key) => said.has(key)) ? "explore" : first.tab };
}

/** The state of this trace that pairs ask for; what they do not say is as at the start. */
function stateOf(trace, said) {
  const first = startState(trace);
  const block = trace.blocks.find((b) => b.name === said.get("attention")) ?? first.block;
  const state = { ...first, block, stage: placeIn(said, "stage", 9, first.stage - 1) + 1 };
  const step = trace.shown.find((s) => s.name === said.get("step") && s.kind !== "curve");
  if (step) Object.assign(state, goTo(trace, step, block));
  const row = placeIn(said, "row", 1e9, first.row), { weights, T } = state.block;
  const key = row < T && weights ? strongestKey(trace, state.block, row) : first.key;
  Object.assign(state, {
    head: placeIn(said, "head", 1e9, 0), row, key: placeIn(said, "key", 1e9, key),
    component: placeIn(said, "component", 1e9, 0),
    language: LANGUAGES.find((name) => name === said.get("code")) ?? first.language,
    settings: labsOf(state.block, said), ...tabOf(trace, said, first) });
  return clamp(state);
}

/** What the controls are to say; null if the pairs ask for no other sentence than the file's. */
function controlsSaid(said) {
  const pairs = Object.entries(SENTENCE_KEYS).filter(([key]) => said.has(key));
  if (!own.written || !pairs.length) return null;
  const controls = controlsOf(askedOf(own.written));
  for (const [key, name] of pairs) controls[name] = said.get(key);
  return controls;
}

/** The pairs of the URL; those of a saved page (save-page.js) if it has none. null: the hash is the
 * name of an element. */
function saidInUrl() {
  const text = location.hash.slice(1);
  if (text && !text.includes("=")) return null;
  return new URLSearchParams(text || document.documentElement.dataset.state || "");
}

/** Shows the state that pairs ask for. */
function applyLink(said) {
  link.applying = true;
  clearTimeout(link.timer);
  link.timer = 0;
  const controls = controlsSaid(said);
  link.waiting = controls && library.state !== "ready" ? said : null;
  if (link.waiting) drawOwn();
  else if (controls) computeControls(controls);
  else if (own.asked) resetOwn();
  link.embed = said.get("embed") ?? "";
  if (link.embed) said.set("tab", link.embed === "story" ? "story" : "explore");
  page.state = stateOf(page.trace, said);
  story.left = placeKey(); // Explore stays where the link says
  draw();
  showEmbedded();
  const pairs = linkPairs();
  Object.assign(link, { applying: false, typing: false, pairs, text: hashOf(pairs) });
}

/** Once the module is ready, or will not be: the sentence of the link. */
function followLink() {
  if (link.waiting && library.state === "ready") applyLink(link.waiting);
}

/** Why the page does not show the sentence of its link; null if it does. */
function linkRefused() {
  if (!link.waiting) return null;
  const controls = controlsSaid(link.waiting), says = `The link is of the sentence “${clip(
    controls.text, 200)}”, which this page cannot show: ${library.why}. `;
  try {
    const asked = checkAsked(controls);
    return el("p", { id: "link-why", class: "changed", role: "alert" }, says,
              "The program writes a page of it: ",
              el("code", {}, `${commandOf(asked)} -o page.html`));
  } catch (wrong) {
    return el("p", { id: "link-why", class: "changed", role: "alert" },
              `${says}Nor could the program: ${wrong.message}.`);
  }
}

/* ----------------------------------------------------------------------- one panel, embedded */

/** Panels that `embed` can name, and their headings. */
const EMBEDDABLE = { matrix: "step-name", sentence: "lines-title", cell: "cell-title",
                     labs: "labs-title", health: "health-title", quiz: "quiz-title",
                     heads: "heads-title", code: "code-title", learning: "learning-title",
                     train: "learn-title", plane: "plane-title", compare: "compare-title" };

/** Leaves out everything that is not around or in the embedded panel. */
function showEmbedded() {
  const heading = Object.hasOwn(EMBEDDABLE, link.embed) && byId(EMBEDDABLE[link.embed]);
  const panel = link.embed === "story" ? byId("story") : heading && heading.closest(".panel");
  if (panel?.localName === "details") panel.open = true;
  for (const e of document.querySelectorAll(".left-out")) e.classList.remove("left-out");
  byId("embedded")?.remove();
  if (!panel || panel.hidden) {
    link.embed = "";
    delete document.documentElement.dataset.embed;
    return;
  }
  document.documentElement.dataset.embed = link.embed;
  for (let e = panel; e !== document.body; e = e.parentElement)
    for (const other of e.parentElement.children)
      if (other !== e && other.id !== "patterns") other.classList.add("left-out");
  byId("status").closest("footer").classList.remove("left-out");
  const about = link.embed === "train" ? "" // it has nothing to do with the sentence
    : `${byId("title").textContent} · ${byId("setting").textContent} · `;
  panel.after(el("p", { id: "embedded", class: "fine" }, about,
    el("a", { href: "#", target: "_blank", rel: "noopener", onclick: (e) => {
      e.target.href = `#${hashOf([...linkPairs()].slice(1))}`;
    } }, "the whole page")));
  draw(); // its width is another one
}

/** Tells the page around an embedded panel how tall the panel is. */
function tellHeight() {
  if (!link.embed || parent === window) return;
  const height = Math.ceil(document.body.getBoundingClientRect().height);
  parent.postMessage({ attn: { embed: link.embed, height } }, "*");
}

/* ----------------------------------------------------------------------------------- start */

/** Called once, after the first drawing. */
function startLink() {
  byId("copy-link").hidden = byId("save-page").hidden = false;
  byId("copy-link").addEventListener("click", (e) => {
    replaceNow();
    copyText(`${location.href.split("#")[0]}#${link.text}`, e.target);
  });
  byId("save-page").addEventListener("click", savePage);
  document.querySelector(".skip").addEventListener("click", (e) => {
    e.preventDefault(); // the hash holds the state
    byId("matrix").focus();
  });
  addEventListener("popstate", () => {
    const said = saidInUrl();
    if (said) applyLink(said);
  });
  new ResizeObserver(tellHeight).observe(document.body);
  applyLink(saidInUrl() ?? new URLSearchParams());
}

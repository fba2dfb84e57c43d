/* The story: the script of the trace (docs/LESSONS.md) on screens, one idea on each, with a picture
 * that moves once, and something to do. Before it stands what a reader will learn, after it come
 * questions. All words are the script’s, with the numbers of this trace, so they change with it.
 *
 * page.state.tab is "story" or "explore"; page.state.screen is the name of the screen: "aims",
 * "questions", or the name of the first part on it. */

const story = { drawn: "", // the screen that is shown
                left: "", // the place from which the reader last went to Explore
                trained: 0, // which of the trained heads is shown
                answers: new Map() }; // the id of a question -> {text, right, tries}

/** The screens of a trace: {name, title, parts, section}. */
function storyScreens({ script }) {
  const screens = [];
  for (const part of script.parts) {
    if (part.also && screens.length) screens.at(-1).parts.push(part);
    else screens.push({ name: part.name, title: part.title?.[0] ?? nameWords(part.name),
                        section: part.section ?? "", parts: [part] });
  }
  const last = { name: "questions", title: "Do you understand it?", section: "", parts: [] };
  return [{ name: "aims", title: script.title, section: "", parts: [] }, ...screens,
          ...(script.questions.length ? [last] : [])];
}

function screenAt(screens) {
  return Math.max(screens.findIndex((s) => s.name === page.state.screen), 0);
}

/** The trace, its words and the facts of its script, as the pictures need them. */
function toldOf(trace, width, printed = false) {
  const { facts } = trace.script;
  const block = trace.blocks.find((b) => b.name === "weights") ?? trace.blocks[trace.firstBlock];
  const words = trace.tokens.map(labelText), place = (name) => Number(facts[name] ?? 0);
  const told = { trace, facts, block, width, printed, words, n: block.T, p: place("p"),
                 k: place("k"), q: Math.max(trace.query, 0), hidden: hiddenOf(trace, block, 0),
                 masked: facts.causal !== undefined };
  told.score = block.raw ? rowOf(told, block.raw, told.q)[told.p] : NaN;
  return told;
}

/* ---------------------------------------------------------------------------------- a screen */

/** The steps of a part as matrices, for parts that have no picture of their own. */
function stepPicture(told, part) {
  const step = told.trace.find.get(part.step);
  if (!step || step.kind === "curve") return null;
  const { block } = placeOf(told.trace, step, told.trace.blocks[0]);
  const hidden = step.kind === "weights" && block.weights === step
    ? hiddenOf(told.trace, block, 0) : null;
  const { element, plot } = square(stepView(told, step, 0, hidden), told.width);
  const shape = step.tensor.shape.join("×");
  return { element: el("figure", {}, element,
                       el("figcaption", { class: "fine" }, `${nameWords(step.name)} ${shape}`)),
           motion: [{ of: plot, from: fills, at: 200, for: 1400,
                      easing: `steps(${Math.max(step.height, 1)})` }] };
}

function pictureOf(told, part) {
  const own = told.trace.command === "explain" ? storyPictures[part.name] : null;
  return own ? own(told) : stepPicture(told, part);
}

/** A code of the script. */
function codeBlock({ language, cell, text }) {
  return [el("p", { class: "fine" }, cell ? `${language}, ${cell}` : language),
          el("pre", { tabindex: 0, "aria-label": language }, text)];
}

/** What is folded away: the formula’s steps, code in three languages. */
function moreOf(parts, printed) {
  const codes = parts.flatMap((p) => p.code.filter((c) => c.language !== "The notebook"));
  const rest = parts.slice(1).filter((p) => p.meaning);
  if (printed || (!codes.length && !rest.length)) return null;
  const languages = [...new Set(codes.map((c) => c.language))];
  return more(`story-${parts[0].name}`,
    rest.length ? el("dl", { class: "pairs" }, rest.map((p) => [
      el("dt", {}, p.title?.[0] ?? nameWords(p.name), " ",
         p.formula ? el("code", { class: "formula" }, p.formula[0]) : null),
      el("dd", {}, prose(p.meaning))]).flat()) : null,
    languages.map((language) => codeBlock({ language, text: codes
      .filter((c) => c.language === language).map((c) => c.text).join("\n") })).flat());
}

/** The one thing to do on a screen of attn explain, where its script has no prediction. */
const storyTasks = {
  "@alone": ({ printed }) => printed ? null : [
    el("p", {}, "Type a sentence of your own above, or click a word to follow it."),
    el("button", { type: "button", class: "computes", disabled: !canCompute(), id: "type-own",
                   onclick: () => { byId("own-text").focus(); byId("own-text").select(); } },
       "Type a sentence")],
  w_q: ({ printed }) => printed ? null
    : [el("p", {}, "Click another word: its three lists follow.")],
  scores: (told) => {
    const row = rowOf(told, told.block.raw, told.q), seen = listedRows(told.n, [told.p])
      .filter((j) => !told.hidden?.[told.q * told.n + j]);
    if (seen.length < 2) return null;
    const right = told.words[told.p], others = seen.map((j) => told.words[j]);
    const question = `Find the row of “${told.words[told.q]}”. Which word’s key has the largest `
      + "score in this row?";
    return [askBlock({ id: "scores", question: [question],
                       choices: [right, ...others.filter((w) => w !== right)],
                       answer: [`“${right}”: ${numberText(row[told.p])}.`] }, "", told.printed)];
  },
  "@trained": ({ printed }) => printed ? null
    : [el("p", {}, "Choose a head, and compare its map with the random one. Or train one here."),
       el("button", { type: "button", id: "watch-it-learn", onclick: goLearn }, "Watch it learn")],
};

function tasksOf(told, part) {
  const own = told.trace.command === "explain" ? storyTasks[part.name] : null;
  return [
    part.predict ? askBlock({ id: part.name, question: part.predict, choices: part.choices,
                              answer: part.answer ?? part.meaning ?? [] }, "Predict:",
                            told.printed) : own?.(told),
    part.exercise ? askBlock({ id: `${part.name} exercise`, question: part.exercise,
                               answer: part.solution ?? [] }, "Try it:", told.printed) : null,
  ].flat();
}

function replayButton(motions) {
  return motions.length && !isStill()
    ? el("button", { type: "button", class: "quiet replay", onclick: () => playMotion(motions) },
         "▶ Play again") : null;
}

/** One part: on the left what is said and asked, on the right the picture. motions: a list to which
 * those of the picture are added. */
function partBlock(told, part, also, motions) {
  const picture = pictureOf(told, part), notebook = part.code
    .filter((c) => c.language === "The notebook");
  motions.push(...(picture?.motion ?? []));
  return el("div", { class: `part${picture ? "" : " alone"}` },
    el("div", { class: "says" },
      el("div", { class: "idea" }, prose(part.idea), also.map((p) => prose(p.idea)).flat()),
      notebook.map(codeBlock).flat()),
    el("div", { class: "task" }, tasksOf(told, part)),
    el("div", { class: "shows" }, picture?.element,
       told.printed ? null : replayButton(picture?.motion ?? []),
       el("div", { class: "meaning" }, prose(part.meaning)),
       part.slip ? el("div", { class: "advice" },
                      prose(part.slip, el("strong", {}, "A slip of the notebook: "))) : null));
}

function partsOf(told, screen, motions) {
  const { parts } = screen, first = parts[0];
  /* In attn explain one picture shows all steps of a screen; a lesson shows each. */
  const whole = told.trace.command !== "explain";
  if (!whole) return [partBlock(told, first, parts.slice(1), motions), moreOf(parts, told.printed)];
  return parts.map((p, i) => [
    i ? el("h3", {}, p.title?.[0] ?? nameWords(p.name), " ", formulaOf(p)) : null,
    partBlock(told, p, [], motions), moreOf([p], told.printed)]).flat();
}

/** The formula of a part; not that of a drawn table, which is none. */
function formulaOf(part) {
  const [formula] = part?.formula ?? [""];
  return formula && !formula.startsWith("N(") ? el("code", { class: "formula" }, formula) : null;
}

/** The first screen. */
function aimsScreen({ trace }) {
  const { learn, time, need } = trace.script;
  return [el("p", {}, "You will learn"), el("ul", { class: "aims" }, learn.map((line) =>
            el("li", {}, line))),
          el("p", { class: "fine" }, [time && `Time: ${time}.`, need && `You need: ${need}`]
            .filter(Boolean).join(" "))];
}

/** The contents of a screen. */
function screenBody(told, screen, motions) {
  if (screen.name === "aims") return aimsScreen(told);
  if (screen.name === "questions") return questionsScreen(told);
  return partsOf(told, screen, motions);
}

/* -------------------------------------------------------------------------------- navigation */

/** A link to the screen with a part of this name: “Screen 8: Softmax”. */
function screenLink(name) {
  const screens = storyScreens(page.trace);
  const at = screens.findIndex((s) => s.name === name || s.parts.some((p) => p.name === name));
  if (at < 0) return "the story";
  return el("button", { type: "button", class: "quiet link", onclick: () => goScreen(at) },
            `screen ${at}, “${screens[at].title}”`);
}

/** Goes to a screen by its number, and puts the focus on its title. */
function goScreen(at) {
  const screens = storyScreens(page.trace);
  if (at < 0 || at >= screens.length) return;
  change({ tab: "story", screen: screens[at].name });
  const title = byId("story-title"), top = byId("story").getBoundingClientRect().top;
  title.focus({ preventScroll: true });
  if (top < 0 || title.getBoundingClientRect().bottom > innerHeight)
    byId("story").scrollIntoView({ block: "start" });
  announce(`Screen ${at + 1} of ${screens.length}`);
}

function stepScreen(by) {
  goScreen(screenAt(storyScreens(page.trace)) + by);
}

function progressOf(screens, at) {
  return el("div", { class: "progress" },
    el("label", { class: "control" }, el("span", { class: "offscreen" }, "Screen"),
      el("select", { id: "story-screen", onchange: (e) => goScreen(Number(e.target.value)) },
        screens.map((s, i) => el("option", { value: i, selected: i === at },
                                 i ? `${i}. ${s.title}` : s.title)))),
    el("span", { class: "fine" }, `${at + 1} of ${screens.length}`),
    el("svg", { viewBox: `0 0 ${screens.length} 1`, preserveAspectRatio: "none",
                "aria-hidden": "true" }, screens.map((_, i) =>
      el("rect", { x: i + 0.04, width: 0.92, height: 1, class: i <= at ? "bar" : "to-come" }))));
}

function storyButtons(screens, at) {
  const last = at === screens.length - 1;
  return el("div", { class: "story-buttons" },
    el("button", { type: "button", id: "story-back", disabled: at === 0,
                   onclick: () => stepScreen(-1) }, "‹ Back"),
    el("button", { type: "button", id: "story-explore", class: "quiet",
                   onclick: () => change({ tab: "explore" }) }, "See it in Explore"),
    el("button", { type: "button", id: "story-next", class: "primary", disabled: last,
                   onclick: () => stepScreen(1) }, at === 0 ? "Begin ›" : "Next ›"));
}

/** Draws the story; moves: its picture moves, as it does on a screen that was just opened. */
function drawStory({ moves = false } = {}) {
  const { trace } = page, screens = storyScreens(trace), at = screenAt(screens);
  const screen = screens[at], holder = byId("story"), motions = [];
  const room = holder.clientWidth - 42, part = trace.command === "explain" ? 0.6 : 0.48;
  const width = room > 820 ? Math.floor(room * part) : room; // as in story.css
  const told = toldOf(trace, Math.max(width, 220));
  holder.dataset.story = trace.command;
  stopMotion();
  refill(holder, progressOf(screens, at),
    screen.section ? el("p", { class: "fine section" }, screen.section) : null,
    el("h2", { id: "story-title", tabindex: -1 }, screen.title, " ", formulaOf(screen.parts[0])),
    el("div", { class: "screen", id: "story-body" }, screenBody(told, screen, motions)),
    storyButtons(screens, at));
  motion.parts = motions;
  if (moves || story.drawn !== screen.name) playMotion(motions);
  story.drawn = screen.name;
}

/** On paper stands the whole story, without its controls. */
function printStory() {
  const { trace, state } = page;
  if (state?.tab !== "story") return;
  stopMotion();
  const told = toldOf(trace, 380, true);
  refill(byId("story-print"), storyScreens(trace).map((screen) =>
    el("section", {}, el("h2", {}, screen.title, " ", formulaOf(screen.parts[0])),
       screenBody(told, screen, []))));
}

/* ------------------------------------------------------------------------- story and Explore */

/** Where Explore opens for a screen: the step, head and cell of the story. */
function placeOfScreen(trace, screen) {
  const told = toldOf(trace, 0), trained = trace.blocks.filter((b) => b.trained);
  const cell = { head: 0, row: told.q, key: told.k, component: 0, quiz: null };
  if (screen.name === "@trained" && trained.length)
    return { ...cell, block: trained[Math.min(story.trained, trained.length - 1)], step: null,
             stage: 7 };
  const found = placeOfFound(told, screen);
  if (found) return { ...cell, ...found, key: Math.max(told.q - 1, 0) };
  const nine = ["@eyes", "@heads", "@limits"].includes(screen.name);
  if (nine) return { ...cell, block: told.block, step: null, stage: 9 };
  if (screen.name === "@pair" || screen.name === "scores") cell.key = told.p;
  if (screen.name === "@pair") return { ...cell, block: told.block, step: null, stage: 4 };
  if (["@alone", "@tokens"].includes(screen.name))
    return { ...cell, block: told.block, step: null, stage: 1 };
  if (!screen.parts.length) return {}; // aims and questions
  const screens = storyScreens(trace), at = screens.findIndex((s) => s.name === screen.name);
  for (let i = at; i > 0; i--) { // a screen without a step: the one before
    const step = screens[i].parts.map((p) => trace.find.get(p.step)).find(Boolean);
    if (step) return { ...cell, ...goTo(trace, step, told.block) };
  }
  return { ...cell, block: told.block, step: null, stage: 7 };
}

/** What the place in Explore follows. */
function placeKey() {
  const { trace, state } = page;
  return JSON.stringify([state.screen, trace.query, trace.text, story.trained]);
}

/** Before Explore is drawn for the first time after a screen: goes to the story’s place. */
function followStory() {
  const { trace, state } = page, screens = storyScreens(trace), from = placeKey();
  if (from === story.left) return;
  story.left = from;
  page.state = clamp({ ...state, ...placeOfScreen(trace, screens[screenAt(screens)]),
                       settings: state.settings });
}

/** Shows the tab of page.state, and returns whether it is the story. */
function showTab() {
  const { tab } = page.state, has = page.trace.script !== undefined, told = has && tab === "story";
  const root = document.documentElement;
  byId("views").hidden = !has;
  byId("story").hidden = !told;
  byId("explore").hidden = told;
  for (const name of ["story", "explore"]) {
    byId(`tab-${name}`).setAttribute("aria-selected", String((name === "story") === told));
    byId(`tab-${name}`).tabIndex = (name === "story") === told ? 0 : -1;
  }
  if (root.dataset.tab === "story" && !told) {
    if (has) followStory();
    refill(byId("story"));
    story.drawn = "";
  }
  root.dataset.tab = told ? "story" : "explore";
  return told;
}

function startTabs() {
  addEventListener("beforeprint", printStory);
  addEventListener("afterprint", () => refill(byId("story-print")));
  const tabs = ["story", "explore"];
  tabs.forEach((tab, i) => {
    byId(`tab-${tab}`).addEventListener("click", () => change({ tab }));
    byId(`tab-${tab}`).addEventListener("keydown", ({ key }) => {
      if (key !== "ArrowLeft" && key !== "ArrowRight") return;
      change({ tab: tabs[1 - i] });
      byId(`tab-${tabs[1 - i]}`).focus();
    });
  });
}

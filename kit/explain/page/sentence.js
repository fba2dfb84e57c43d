/* The reader’s own sentence: attn explain, computed in the page by the program’s own code, wasm.js.
 *
 * Only pages of random weights have it: their trace has `options`, everything that it was made
 * from. A change computes the whole trace again, and every panel shows the new one. */

/** The largest matrix that the page computes: that of 512 words takes some tenths of a second. The
 * program’s limit is 256 times as large. */
const MOST_IN_PAGE = 2 ** 18;

const own = { written: null, // the trace of the file, as JSON
              asked: null, // what the controls say, if it was computed here
              query: "", // the number of the word that is followed, from 1; "": the second
              json: "", // its trace
              waiting: false };

/** The number fields: an option of attn explain, its label, its largest value here. */
const ownNumbers = [["heads", "Heads", 64], ["seed", "Seed", 2n ** 64n - 1n],
                    ["embed", "d", 4096], ["qk", "d_k", 4096], ["v", "d_v", 4096]];
const OWN_SCALES = { root: "÷ √d_k", none: "none", factor: "× factor" };

/** The sentence and options of a trace. */
function askedOf(trace) {
  const { options } = trace;
  return { ...options, text: trace.text, query: queryOf(trace), seed: BigInt(options.seed) };
}

/** The word that a trace follows, as --query names it; "" if it is the usual one. */
function queryOf({ query, tokens }) {
  return query < 0 || query === Math.min(1, tokens.length - 1) ? "" : String(query + 1);
}

/** Whether the page can compute another sentence. */
function canCompute() {
  return own.written !== null && library.state === "ready";
}

/** Enables what needs the module, wherever it stands, once the module is ready. */
function allowComputing() {
  for (const e of document.querySelectorAll(".chip, .computes")) e.disabled = !canCompute();
}

/** Sets a control of the panel, and computes. */
function setOwn(field, value) {
  const input = byId(`own-${field}`);
  if (input.type === "checkbox") input.checked = value;
  else input.value = value;
  askOwn();
}

/** Follows another word of the sentence. */
function followWord(i) {
  own.query = String(i + 1);
  askOwn();
}

/* ------------------------------------------------------------------------------ what is asked */

/** What the controls say, as texts. scale: "root", "none" or a factor. */
function textsOfControls() {
  const kind = byId("own-scale").value, said = { text: byId("own-text").value, query: own.query };
  for (const [name] of ownNumbers) said[name] = byId(`own-${name}`).value.trim();
  return { ...said, causal: byId("own-causal").checked ? "yes" : "no",
           scale: kind === "factor" ? byId("own-factor").value.trim() : kind };
}

/** The texts that controls have for a sentence and its options. */
function controlsOf(asked) {
  const said = { text: asked.text, query: asked.query };
  for (const [name] of ownNumbers) said[name] = String(asked[name]);
  return { ...said, causal: asked.causal ? "yes" : "no",
           scale: asked.no_scale ? "none" : asked.scale !== 0 ? String(asked.scale) : "root" };
}

/** The sentence and options that such texts mean. A mistake is thrown as a RangeError with one line
 * for the reader. */
function checkAsked(said) {
  const asked = { text: said.text, causal: said.causal === "yes",
                  query: /^\d{1,9}$/.test(said.query) ? said.query : "" };
  for (const [name, label, most] of ownNumbers) {
    const value = said[name], least = name === "seed" ? 0n : 1n;
    if (!/^\d{1,20}$/.test(value) || BigInt(value) < least || BigInt(value) > BigInt(most))
      throw new RangeError(`${label} must be a whole number from ${least} to ${most}`);
    asked[name] = name === "seed" ? BigInt(value) : Number(value);
  }
  const factor = !["root", "none"].includes(said.scale);
  asked.no_scale = said.scale === "none";
  asked.scale = factor ? Number(said.scale) : 0;
  if (factor && (said.scale === "" || !Number.isFinite(asked.scale) || asked.scale === 0))
    throw new RangeError("the factor must be a number other than 0");
  checkSize(asked);
  return asked;
}

/** Reads the controls; see checkAsked. */
function readControls() {
  return checkAsked(textsOfControls());
}

function checkSize({ text, heads, embed, qk, v }) {
  const words = text.split(/[\s\u0085]+/).filter(Boolean).length;
  const largest = Math.max(words * embed, heads * Math.max(qk, v) * Math.max(words, embed),
                           heads * words * words);
  if (largest > MOST_IN_PAGE)
    throw new RangeError(`a matrix of ${largest} numbers: this page computes matrices of up to `
                         + `${MOST_IN_PAGE}, the program larger ones`);
}

/** The command that prints the same numbers, for a POSIX shell. */
function commandOf(asked) {
  const given = [["seed", 123n], ["heads", 1], ["embed", 16], ["qk", 24], ["v", 28]]
    .filter(([name, usual]) => asked[name] !== usual).map(([name]) => `--${name} ${asked[name]}`);
  const isWord = asked.text.split(/[\s\u0085]+/).some((word) => word.includes(asked.query));
  if (asked.query) given.push(isWord ? `--query '#${asked.query}'` : `--query ${asked.query}`);
  if (asked.causal) given.push("--causal");
  if (asked.no_scale) given.push("--no-scale");
  else if (asked.scale !== 0) given.push(`--scale ${asked.scale}`);
  if (asked.text.startsWith("-")) given.push("--");
  return ["attn explain", ...given, `'${asked.text.replaceAll("'", "'\\''")}'`].join(" ");
}

/* ----------------------------------------------------------------------------------- computing */

/** Shows another trace, at the same stage; and at the same cell, if it has as many words. */
function showTrace(json) {
  const before = page.state, followed = page.trace.query;
  const trace = page.trace = readTrace(json);
  story.answers.clear();
  page.rolled.clear();
  lastLive.key = "";
  const first = startState(trace), { settings } = before;
  const block = trace.blocks.find((b) => b.name === before.block.name) ?? first.block;
  const step = trace.shown.find((s) => s.name === before.step?.name) ?? null;
  const size = settings.size <= block.q.width ? settings.size : 0;
  page.state = clamp({ ...before, block, step, stage: step ? before.stage : before.stage || 7,
                       quiz: null, settings: { ...settings, order: null, size },
                       ...(block.T === before.block.T && followed === trace.query ? {}
                           : { row: first.row, key: first.key }) });
  draw();
  fillHeader(trace); // after draw has measured the page
}

/** Computes what the controls say, and shows it; or says what is wrong. */
function computeOwn() {
  own.waiting = false;
  try {
    const asked = readControls();
    let { code, said } = explainByLibrary(asked);
    if (code !== 0 && asked.query) { // fewer words than that
      own.query = asked.query = "";
      ({ code, said } = explainByLibrary(asked));
    }
    if (code !== 0) throw new RangeError(said);
    Object.assign(own, { asked, json: said });
    showTrace(JSON.parse(said));
    sayOwn("");
  } catch (error) {
    if (error instanceof RangeError) sayOwn(error.message);
    else giveUpLibrary(); // out of memory
  }
}

/** Waits for the next frame, so that fast typing computes once for each. */
function askOwn() {
  byId("own-factor-field").hidden = byId("own-scale").value !== "factor";
  if (own.waiting) return;
  own.waiting = true;
  requestAnimationFrame(computeOwn);
}

/** Back to the trace of the file. */
function resetOwn() {
  own.asked = null;
  fillControls(controlsOf(askedOf(own.written)));
  showTrace(own.written);
  sayOwn("");
}

/* ----------------------------------------------------------------------------------- the panel */

function sayOwn(wrong) {
  const line = byId("own-wrong"), { asked } = own;
  line.textContent = wrong && `Not computed: ${wrong}. The panels show the last sentence that was.`;
  line.hidden = !wrong;
  const command = asked && `ATTN_ISA=generic ${commandOf(asked)}`;
  refill(byId("own-said"), asked
    ? ["Computed in this page by the library’s own code. The program prints the same numbers: ",
       el("code", {}, command), " ", copyButton(command, "the command")]
    : ["Computed by the program when it wrote this page. Type, and the page computes everything "
       + "again."],
    asked || wrong ? el("button", { type: "button", class: "quiet", id: "own-reset",
                                    onclick: resetOwn }, "As written") : null);
}

/** Makes the controls say these texts. */
function fillControls(said) {
  const factor = !["root", "none"].includes(said.scale);
  own.query = said.query;
  byId("own-text").value = said.text;
  for (const [name] of ownNumbers) byId(`own-${name}`).value = said[name];
  byId("own-causal").checked = said.causal === "yes";
  byId("own-scale").value = factor ? "factor" : said.scale;
  byId("own-factor").value = factor ? said.scale : "";
  byId("own-factor-field").hidden = !factor;
}

/** As if the reader had made the controls say these texts. */
function computeControls(said) {
  fillControls(said);
  computeOwn();
}

function ownControls() {
  const numeric = { inputmode: "numeric", autocomplete: "off", spellcheck: "false",
                    oninput: askOwn };
  const size = { seed: 8, heads: 3 };
  return [
    ...ownNumbers.map(([name, label]) =>
      control(label, el("input", { ...numeric, id: `own-${name}`, size: size[name] ?? 4 }))),
    control("Scale", el("select", { id: "own-scale", onchange: askOwn },
      Object.entries(OWN_SCALES).map(([value, text]) => el("option", { value }, text)))),
    el("label", { class: "control", id: "own-factor-field" },
      el("span", { class: "control-name" }, "Factor"),
      el("input", { ...numeric, inputmode: "decimal", id: "own-factor", size: 6 })),
    control("Causal mask", el("input", { type: "checkbox", role: "switch", id: "own-causal",
                                         onchange: askOwn })),
  ];
}

function ownPanel() {
  return el("fieldset", { id: "own-fields", disabled: true },
    el("legend", { class: "offscreen" }, "The sentence and how it is computed"),
    el("label", { class: "own-sentence" }, el("span", { class: "control-name" }, "Sentence"),
      el("textarea", { id: "own-text", rows: 1, spellcheck: "false", autocomplete: "off",
                       oninput: askOwn, "aria-describedby": "own-wrong" })),
    el("div", { class: "controls" }, ownControls()),
    el("p", { id: "own-wrong", class: "changed", role: "alert", hidden: true }),
    el("p", { id: "own-said", class: "fine" }));
}

/** Draws the panel, whose controls work once the module is ready; or says why they cannot. */
function drawOwn() {
  if (!own.written) return; // a lesson, a model, a training
  byId("own-panel").hidden = false;
  if (library.state === "absent" || library.state === "refused") {
    refill(byId("own-body"), el("p", { class: "fine", id: "own-why" },
      `The sentence cannot be changed in this page: ${library.why}. The program writes a page `
      + "of any sentence: ", el("code", {}, "attn explain '…' -o page.html")), linkRefused());
    return;
  }
  if (!byId("own-fields")) {
    refill(byId("own-body"), ownPanel());
    fillControls(controlsOf(askedOf(own.written)));
    sayOwn("");
  }
  byId("own-fields").disabled = library.state !== "ready";
}

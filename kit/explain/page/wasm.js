/* The program's own code, compiled to WebAssembly (wasm/): attn_sdpa_forward for the labs, in
 * double precision, and attn explain for the reader's own sentence (sentence.js). Without it the
 * labs compute by attend() of this page. */

/* The module, compressed by gzip, as base64; empty if no clang compiled it at build. */
const moduleText = "@WASM@";

/* of wasm/attend.c: attn_stage */
const STAGE_RAW = 0, STAGE_WEIGHTS = 3;

const library = { exports: null, // the module's functions, once it is ready
                  module: null, // for the Worker of learn.js
                  state: "starting", // then: ready, refused; or absent
                  why: "", // refused or absent: the reason
                  last: null }; // the queries and keys whose scores are still in its memory

async function unpack(text) {
  const packed = new Blob([readBase64(text)]).stream();
  return new Response(packed.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

/** Opens the module. It imports only what wasi-libc would ask of a system for files, which nothing
 * here calls. */
async function openLibrary() {
  const refuse = (state, why) => Object.assign(library, { state, why });
  if (!moduleText) return refuse("absent", "this build has no WebAssembly");
  if (!globalThis.WebAssembly) return refuse("refused", "this browser has no WebAssembly");
  if (!globalThis.DecompressionStream)
    return refuse("refused", "this browser has no DecompressionStream");
  try {
    const module = await WebAssembly.compile(await unpack(moduleText)), imports = {};
    for (const { module: from, name } of WebAssembly.Module.imports(module))
      (imports[from] ??= {})[name] = () => 52; // ENOSYS
    const { exports } = await WebAssembly.instantiate(module, imports);
    exports._initialize();
    return Object.assign(library, { exports, module, state: "ready" });
  } catch {
    return refuse("refused", "this browser refused the engine’s WebAssembly");
  }
}

/** After the module ran out of memory, which leaves it in an unknown state. */
function giveUpLibrary() {
  Object.assign(library, { exports: null, state: "refused",
                           why: "the engine’s WebAssembly ran out of memory" });
  engine.onchange();
}

/** attn explain: {code, said}; said is the page's trace as JSON, or what --json prints, or with a
 * code other than 0 the error. */
function explainByLibrary({ text, query = "", seed, embed, qk, v, heads, causal, no_scale, scale },
                          asPage = true) {
  const { exports } = library, clean = (x) => x.replaceAll("\0", "\ufffd");
  // #2 is the second word, also in a sentence with the word 2.
  const bytes = new TextEncoder().encode(`${clean(text)}\0#${clean(query)}\0`);
  const at = exports.text_room(bytes.length);
  if (at === 0) throw new WebAssembly.RuntimeError("no memory");
  new Uint8Array(exports.memory.buffer, at).set(bytes);
  const queryAt = query ? at + bytes.indexOf(0) + 1 : 0;
  const code = exports.explain(at, queryAt, seed, embed, qk, v, heads, Number(causal),
                               Number(no_scale), scale, Number(asPage));
  const said = new Uint8Array(exports.memory.buffer, exports.said_at(), exports.said_bytes());
  return { code, said: new TextDecoder().decode(said) };
}

function sameNumbers(x, y) {
  for (let i = 0; i < x.length; i++) if (x[i] !== y[i]) return false;
  return x.length === y.length;
}

/** The places of a call's matrices in the module's memory: `at` in bytes, of() as arrays. of() must
 * be called again after each call, because memory that has grown is a new buffer. The scores of the
 * previous call stay in their place. */
function libraryRoom(exports, { T, S, width, Dv }) {
  const sizes = { q: T * width, k: S * width, raw: T * S, v: S * Dv, mask: T * S, weights: T * S,
                  out: T * Dv };
  const total = Object.values(sizes).reduce((a, b) => a + b, 0), at = {};
  let next = total < 2 ** 28 ? exports.room(8 * total) : 0; // addresses have 32 bits
  if (next === 0) return null;
  for (const [name, size] of Object.entries(sizes)) {
    at[name] = next;
    next += 8 * size;
  }
  const of = (name, Numbers = Float64Array) =>
    new Numbers(exports.memory.buffer, at[name], sizes[name]);
  return { at, of };
}

/** Computes q·k of all pairs in the module's memory; false if the library refuses. */
function libraryScores(exports, { at, of }, { q, k, T, S, D, width }) {
  const x = Float64Array.from(q), y = Float64Array.from(k), last = library.last;
  if (last && last.T === T && last.S === S && last.D === D && last.width === width
      && sameNumbers(last.x, x) && sameNumbers(last.y, y)) return true;
  library.last = null;
  of("q").set(x);
  of("k").set(y);
  if (exports.attend(T, S, D, width, 0, 1, at.q, at.k, 0, 0, 0, at.raw, STAGE_RAW, 0) !== 0)
    return false;
  library.last = { T, S, D, width, x, y };
  return true;
}

/** attend(), computed by the library; null if it refuses. */
function attendByLibrary(exports, call) {
  const { q, v, scores, T, S, D, hidden = null, masking = "before" } = call;
  const width = q ? call.width ?? D : 0, Dv = v ? call.Dv : 0;
  const room = libraryRoom(exports, { T, S, width, Dv }), { at, of } = room ?? {};
  if (!room || (q && !libraryScores(exports, room, { ...call, width }))) return null;
  if (!q) library.last = null;
  const raw = q ? of("raw").slice() : scores, stages = scoreStages(call, raw);
  /* Given scores are passed as a mask that is added to zero scores. Scores times 0 are passed in
   * the same way, because a scale of 0 would mean 1/√D. */
  const added = !q || stages.factor === 0, hides = hidden !== null && masking === "before";
  if (v) of("v").set(v);
  if (added) of("mask").set(stages.used);
  else if (hides) of("mask", Uint8Array).set(hidden.map((h) => 1 - h));
  const status = exports.attend(T, S, added ? 0 : D, added ? 0 : width, Dv,
    added ? 1 : stages.factor, at.q, at.k, at.v, added || hides ? at.mask : 0, Number(added),
    at.weights, STAGE_WEIGHTS, at.out);
  if (status !== 0) return null;
  const weights = of("weights").slice(), sums = hideAfter(call, weights);
  const context = !v ? null
                : masking === "before" ? of("out").slice() : mixRows(weights, v, T, S, Dv);
  return { raw: q ? raw : null, ...stages, weights, sums, context };
}

/** The engine in use: name says which of the two; attend has the parameters of attend() in
 * attend.js. */
const engine = {
  attend(call) {
    try {
      const done = library.exports && attendByLibrary(library.exports, call);
      if (done) return done;
    } catch {
      giveUpLibrary();
    }
    return attend(call);
  },
  onchange() {},
  get name() {
    if (library.state === "ready")
      return "the engine’s own code (WebAssembly), double precision";
    return `JavaScript, double precision${library.why && `: ${library.why}`}`;
  },
};

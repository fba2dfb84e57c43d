/* The engine: attn_sdpa_forward of the C library, compiled to WebAssembly (wasm/), in double
 * precision; or attend() of this page, if that is not available. */

/* The module, as base64; empty if no clang compiled it for wasm32 at build. */
const moduleText = "@WASM@";

/* of wasm/attend.c: attn_stage */
const STAGE_RAW = 0, STAGE_WEIGHTS = 3;

const library = { exports: null, // the module's functions, after it was created
                  state: moduleText ? "untried" : "absent", // then: starting, ready, refused
                  last: null }; // the queries and keys whose scores are still in its memory

/**
 * The module's exports, or null. The module is created at the first call: immediately, if the
 * browser allows it for a module of this size; otherwise a moment later, and then `engine.onchange`
 * is called.
 */
function libraryExports() {
  if (library.state !== "untried") return library.exports;
  library.state = "refused";
  try {
    const bytes = readBase64(moduleText), imports = { Math: { log: Math.log, tanh: Math.tanh } };
    const take = (instance) => Object.assign(library, { exports: instance.exports,
                                                        state: "ready" });
    try {
      take(new WebAssembly.Instance(new WebAssembly.Module(bytes), imports));
    } catch {
      const later = WebAssembly.instantiate(bytes, imports);
      library.state = "starting";
      later.then(({ instance }) => take(instance), () => { library.state = "refused"; })
        .then(() => engine.onchange());
    }
  } catch {
    /* no WebAssembly at all */
  }
  return library.exports;
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
      const exports = libraryExports();
      const done = exports && attendByLibrary(exports, call);
      if (done) return done;
    } catch {
      Object.assign(library, { exports: null, state: "refused" }); // out of memory
      engine.onchange();
    }
    return attend(call);
  },
  onchange() {},
  get name() {
    libraryExports();
    return library.state === "ready" ? "the engine’s own code (WebAssembly), double precision"
         : `JavaScript, double precision${{ starting: "", refused: ": this browser refused the "
             + "engine’s WebAssembly", absent: ": this build has no WebAssembly" }[
           library.state]}`;
  },
};

/* What computes: attn_sdpa_forward itself, of the C library, compiled to WebAssembly (wasm/), in
 * double precision; where there is none, attend() of this page. */

/* The module, as base64; empty if no clang compiled it for wasm32 at build. */
const moduleText = "@WASM@";

/* of wasm/attend.c: attn_stage */
const STAGE_RAW = 0, STAGE_WEIGHTS = 3;

const library = { exports: null, // of the module, once there is one
                  state: moduleText ? "untried" : "absent", // then: starting, ready, refused
                  last: null }; // the queries and keys whose scores are still in its memory

/**
 * The module's exports, or null. It is made when it is first asked for: at once where the browser
 * makes one so large at once, else a moment later, and then `engine.onchange` is called.
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

/** Where the matrices of a call lie: at, in bytes; of(), as numbers, anew after each call, because
 * memory that grows is another buffer. The scores of the call before stay where they are. */
function libraryRoom(exports, { T, S, width, Dv }) {
  const sizes = { q: T * width, k: S * width, raw: T * S, v: S * Dv, mask: T * S, weights: T * S,
                  out: T * Dv };
  const total = Object.values(sizes).reduce((a, b) => a + b, 0), at = {};
  let next = total < 2 ** 28 ? exports.room(8 * total) : 0; // of 32-bit addresses
  if (next === 0) return null;
  for (const [name, size] of Object.entries(sizes)) {
    at[name] = next;
    next += 8 * size;
  }
  const of = (name, Numbers = Float64Array) =>
    new Numbers(exports.memory.buffer, at[name], sizes[name]);
  return { at, of };
}

/** q·k of all pairs, in the module's memory; false if it refuses. */
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

/** attend() by the library, or null if it refuses. */
function attendByLibrary(exports, call) {
  const { q, v, scores, T, S, D, hidden = null, masking = "before" } = call;
  const width = q ? call.width ?? D : 0, Dv = v ? call.Dv : 0;
  const room = libraryRoom(exports, { T, S, width, Dv }), { at, of } = room ?? {};
  if (!room || (q && !libraryScores(exports, room, { ...call, width }))) return null;
  if (!q) library.last = null;
  const raw = q ? of("raw").slice() : scores, stages = scoreStages(call, raw);
  /* Scores as they are go in as a mask that is added to nothing; so do those times 0, which as a
   * scale would mean 1/√D. */
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

/** What computes: name says which of the two; attend is called as attend() of attend.js is. */
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

/* The Worker of "Watch it learn" (learn.js). Its text becomes the Worker's script, so it uses
 * nothing of the page. It trains in short slices, between which it reads its messages:
 *
 *   {module, task, …}   begins a run of this config
 *   {pace}              trains on, at most this many steps a second; 0: as many as it can
 *   {steps}             trains this many steps
 *   {}                  pauses
 *
 * It answers each, and now and then while it trains, with what it shows: {step, losses of the steps
 * since the last answer, unseen, accuracy, maps, labels, done}; or {said}: what failed. */
function learnWorker() {
  const SLICE = 30, REST = 100; // ms of training, least ms between answers
  let wasm = null, config = null, step = 0, losses = [], timer = 0, labels = null;
  let pace = 0, since = 0, from = 0, answered = 0, rest = REST;

  function textAt(at) {
    const bytes = new Uint8Array(wasm.memory.buffer, at);
    return new TextDecoder().decode(bytes.subarray(0, bytes.indexOf(0)));
  }

  function works(code) {
    if (code !== 0) throw new Error(textAt(wasm.learn_said()));
  }

  /** The weights of the first head of each layer, for the sequence that is always shown. */
  function look() {
    const length = wasm.learn_look();
    if (length === 0) throw new Error(textAt(wasm.learn_said()));
    labels ??= Array.from({ length }, (_, i) => textAt(wasm.learn_label(i)));
    return Array.from({ length: config.layers }, (_, layer) => {
      const at = wasm.learn_map(layer); // may move the memory
      if (at === 0) throw new Error(textAt(wasm.learn_said()));
      return new Float32Array(wasm.memory.buffer, at, length * length).slice();
    });
  }

  function answer() {
    const began = performance.now();
    works(wasm.learn_measure());
    const maps = look();
    postMessage({ step, losses, maps, labels, unseen: wasm.learn_unseen_loss(),
                  accuracy: wasm.learn_accuracy(), done: step >= config.steps });
    losses = [];
    answered = performance.now();
    rest = Math.max(REST, 4 * (answered - began)); // most of the time is for training
  }

  function train(most) {
    const end = performance.now() + SLICE;
    for (let i = 0; i < most && step < config.steps && performance.now() < end; i++, step++) {
      works(wasm.learn_step());
      losses.push(wasm.learn_loss());
    }
  }

  function pause() {
    clearTimeout(timer);
    timer = 0;
  }

  /** One slice, and the next one after the messages that have arrived. */
  function slice() {
    timer = 0;
    const due = pace > 0 ? from + Math.floor(((performance.now() - since) * pace) / 1000) - step
                         : Infinity;
    train(due);
    const done = step >= config.steps;
    if (done || (losses.length > 0 && performance.now() - answered >= rest)) answer();
    if (!done) timer = setTimeout(guarded(slice), 0);
  }

  async function begin(data) {
    config = data;
    const { exports } = await WebAssembly.instantiate(data.module, data.imports
      .reduce((all, { module, name }) => {
        (all[module] ??= {})[name] = () => 52; // ENOSYS
        return all;
      }, {}));
    wasm = exports;
    wasm._initialize();
    const name = new TextEncoder().encode(`${data.task}\0`), at = wasm.text_room(name.length);
    new Uint8Array(wasm.memory.buffer, at).set(name);
    works(wasm.learn_begin(at, data.length, data.vocab, data.embed, data.heads, data.layers,
                           data.batch, data.seed, data.lr));
    answer();
  }

  function guarded(run) {
    return async (data) => {
      try {
        await run(data);
      } catch (error) {
        pause();
        postMessage({ said: error.message });
      }
    };
  }

  const obey = guarded(async (data) => {
    pause();
    if (data.module) return begin(data);
    if (data.steps) {
      for (const to = Math.min(step + data.steps, config.steps); step < to;) train(to - step);
      return answer();
    }
    if (data.pace === undefined) return answer();
    [pace, since, from] = [data.pace, performance.now(), step];
    return slice();
  });
  let before = Promise.resolve(); // a message waits for the one before it
  onmessage = ({ data }) => { before = before.then(() => obey(data)); };
}

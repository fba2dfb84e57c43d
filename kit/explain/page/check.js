/* Checks that the numbers of the trace, which the C library computed, equal those that this page
 * computes from their operands. This covers every head of every attention, not only those shown.
 * Differences are relative to the matrix's largest value. */

const WANTED = 1e-6;

/** The largest absolute value of the numbers; infinities and NaN count as 0. */
function largestSize(numbers) {
  return numbers.reduce((most, x) => (Number.isFinite(x) ? Math.max(most, Math.abs(x)) : most), 0);
}

/** max |x − y| / max |y|; 0 where both are the same infinity or both are NaN. */
function difference(x, y) {
  let most = x.length === y.length ? 0 : Infinity;
  for (let i = 0; i < y.length; i++) {
    if (Object.is(x[i], y[i]) || x[i] === y[i]) continue;
    const d = Math.abs(x[i] - y[i]);
    most = Math.max(most, Number.isNaN(d) ? Infinity : d);
  }
  const size = largestSize(y);
  return most === 0 ? 0 : most / (size || 1);
}

/**
 * The allowed differences, where they are larger than WANTED: { raw, weights, why }. The library
 * computed in double, as the page does, and stored floats. But if the page has the vectors with
 * only 11 bits, each product is uncertain by 2^-10 of itself.
 */
function knownTo(trace, block, head, live) {
  if (![block.q, block.k, block.v].some((step) => step?.rounded)) return { raw: 0, weights: 0 };
  const size = (step) => numbersOf(trace, step, head, block.heads).map(Math.abs);
  const most = largestSize(dotRows(size(block.q), size(block.k), block.T, block.S, block.q.width));
  return { raw: 2 ** -10 * most / largestSize(live.raw),
           weights: Math.expm1(2 ** -9 * Math.abs(block.scale) * most) + 2 ** -10,
           why: "this page has queries, keys and values with 11 bits" };
}

/** Checks one head: [{ name, error, limit, why }] for the matrices whose numbers the trace has. */
function checkHead(trace, block, head) {
  const live = recomputed(trace, block, head, untouched());
  const known = knownTo(trace, block, head, live);
  const given = (name) => block[name] && live[name] && allNumbers(block[name]) !== null;
  return ["raw", "weights", "context"].filter(given).map((name) => {
    const step = block[name], wide = name === "raw" ? known.raw : known.weights;
    return { name: `${step.name}${block.heads > 1 ? `, head ${head + 1}` : ""}`,
             error: difference(live[name], numbersOf(trace, step, head, block.heads)),
             limit: Math.max(WANTED, wide), why: known.why };
  });
}

/** Checks the whole trace: { checks, absent }. absent are the attentions that cannot be checked,
 * because the trace lacks their operands or their numbers (the page computes such numbers
 * itself). */
function checkTrace(trace) {
  const checks = [], absent = [];
  for (const block of trace.blocks) {
    const before = checks.length;
    for (let head = 0; head < block.heads && (block.q || block.scores); head++)
      checks.push(...checkHead(trace, block, head));
    if (checks.length === before) absent.push(block.name);
  }
  return { checks, absent };
}

function checkText({ checks, absent }) {
  const by = engine.name, worst = (list) => list.reduce((a, b) => (b.error > a.error ? b : a));
  const which = absent.length === 1 ? absent[0] : `${absent.length} attentions`;
  const rest = absent.length ? ` Of ${which} the trace has either no operands or no numbers of its `
                               + "own: nothing to compare." : "";
  if (!checks.length) return `Nothing was checked.${rest}`;
  const many = `${checks.length} ${checks.length === 1 ? "matrix" : "matrices"}`;
  const all = `${many}, recomputed by ${by}`;
  const failed = checks.filter((c) => !(c.error <= c.limit));
  const most = worst(failed.length ? failed : checks);
  const size = `The largest difference, in ${most.name}, is ${general(most.error, 2)} of the `
               + "matrix’s largest value";
  if (failed.length)
    return `Failed: ${failed.length} of ${all}, ${failed.length === 1 ? "is" : "are"} not equal. `
           + `${size}; ${general(most.limit, 2)} is allowed.${rest}`;
  if (most.error <= WANTED) return `Passed: ${all}, equal to 1e-6. ${size}.${rest}`;
  return `Passed, but not to 1e-6: ${all}. ${size}; ${most.why}, so up to `
         + `${general(most.limit, 2)} says nothing.${rest}`;
}

function runCheck() {
  const found = checkTrace(page.trace);
  const failed = found.checks.some((c) => !(c.error <= c.limit));
  byId("check-said").textContent = checkText(found);
  byId("check-said").className = failed ? "failed" : "fine";
  const rows = found.checks.map((c) => [c.name, general(c.error, 2), general(c.limit, 2),
                                        c.error <= c.limit ? "equal" : "not equal"]);
  refill(byId("check-each"), rows.length ? [el("summary", { class: "fine" }, "Each matrix"),
    makeTable("What was checked", ["Matrix", "Difference", "Allowed", ""], rows)] : []);
  byId("check-each").hidden = rows.length === 0;
}

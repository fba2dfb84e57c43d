/* Row health: the spread of each row's weights, as a share of the most that its visible keys allow.
 * For rows with a very small or very large spread it names a possible cause and a remedy. */

const SATURATED = 0.99, FLAT = 0.985; // as in recipe_health.c
const NOTHING = 1e-6, NOT_ONE = 1e-3; // of a row's sum; more than any rounding
const MOST_HEALTH = 40; // rows that are listed

function judgeRow(weights, hidden, row, S) {
  const h = rowHealth(weights, hidden, row, S);
  h.part = h.possible > 0 ? h.bits / h.possible : 0;
  h.verdict = h.sum < NOTHING ? "sum is 0" : Math.abs(h.sum - 1) > NOT_ONE ? "sum is not 1"
            : h.visible < 2 ? "one key" : h.largest > SATURATED ? "saturated"
            : h.bits > FLAT * h.possible ? "flat" : "fine";
  return h;
}

/** Standard deviation of a row's visible scores. */
function spread(scores, row, S) {
  const seen = Array.from(scores.subarray(row * S, (row + 1) * S)).filter(Number.isFinite);
  const mean = sumOf(seen) / Math.max(seen.length, 1);
  return Math.sqrt(sumOf(seen.map((s) => (s - mean) ** 2)) / Math.max(seen.length, 1));
}

/** The cause and the remedy for one row, from its own scores. */
function adviceFor(context, row, judged) {
  const { live, block, settings } = context;
  if (judged.verdict.startsWith("sum"))
    return { temperature: null,
             cause: `Its weights sum to ${numberText(judged.sum)}, not to 1`
                    + (live.hidden && settings.masking === "after"
                       ? ": the rest was on keys that the mask took away after softmax." : ".")
                    + (judged.verdict === "sum is 0" ? " Its context is 0." : "") };
  if (!live.masked || judged.verdict === "fine" || judged.verdict === "one key") return null;
  const size = spread(live.masked, row, block.S), to = settings.temperature * size;
  const saturated = judged.verdict === "saturated";
  const cause = saturated
    ? `Its scores differ a lot (standard deviation ${numberText(size)}); softmax makes all or `
      + "nothing of differences beyond about 5, and its derivative there is nearly 0."
    : `Its scores are nearly equal (standard deviation ${numberText(size)}), so its context is `
      + "close to an average of the values.";
  const within = Math.min(Math.max(to, 0.01), 100);
  return { cause, temperature: size > 0 ? Number(within.toPrecision(3)) : null };
}

function sinkText(context) {
  const { live, columns } = context, { sink } = live;
  if (!sink) return null;
  const name = columns(sink.at);
  const first = (context.settings.order ? context.settings.order[sink.at] : sink.at) === 0
                || /^(\[CLS\]|\[SEP\]|<s>|<\/s>|<\|endoftext\|>|\.|,)$/.test(name);
  const what = first ? "Trained models often rest weight on a first or marking token when there is "
                       + "nothing to look for; random ones do so by chance"
                     : "Look whether its key is long, or the scores are large";
  return `Sink: “${name}” takes ${percent(sink.share)} of all rows' weight; spread evenly over the `
         + `keys that each row sees, it would be ${percent(sink.even)}. ${what}.`;
}

function notesOf(trace) {
  return trace.notes.filter((n) => ["health", "cause", "try"].includes(n.label));
}

function healthList(context, judged, choose) {
  const { state } = context;
  const list = el("ul", { class: "health" }, judged.map((h, i) =>
    el("li", { class: i === state.row ? "chosen" : null },
      el("button", { type: "button", class: "quiet word", onclick: () => choose(i) },
         clip(context.rows(i), 12)),
      bar(h.part, h.possible > 0 ? h.part.toFixed(2) : "–", h.verdict),
      el("span", { class: `verdict ${h.verdict.replaceAll(" ", "-")}` }, h.verdict))));
  list.style.containIntrinsicHeight = `auto ${26 * judged.length}px`; // until it is laid out
  return list;
}

/** If there are too many rows to list: the number of rows of each kind. */
function healthCounts(judged) {
  const count = (v) => judged.filter((h) => h.verdict === v).length;
  return el("dl", { class: "pairs" }, ["saturated", "fine", "flat", "one key", "sum is not 1",
    "sum is 0"].filter((v) => !v.startsWith("sum") || count(v) > 0).flatMap((v) =>
    [el("dt", {}, v), el("dd", {}, bar(count(v) / judged.length, `${count(v)} rows`, v))]));
}

function healthPanel(context, choose, change) {
  const { live, block, state, trace, settings } = context;
  live.judged ??= Array.from({ length: block.T },
                             (_, i) => judgeRow(live.weights, live.hidden, i, block.S));
  const { judged } = live;
  const own = judged[state.row] ?? judged[0], advice = adviceFor(context, state.row, own);
  const sink = sinkText(context);
  const told = notesOf(trace)[0]?.text.startsWith(`${block.name}:`);
  const traced = !live.changed && told;
  return [
    el("p", {}, `“${context.rows(state.row)}”: entropy ${own.bits.toFixed(3)} of `
                + `${own.possible.toFixed(3)} bits – ${own.verdict}.`),
    advice ? el("p", { class: "advice" }, advice.cause, " ",
      advice.temperature && advice.temperature !== settings.temperature
        ? el("button", { type: "button", id: "repair", onclick: () => change({
            settings: { ...settings, temperature: advice.temperature } }) },
             `Try T = ${general(advice.temperature, 3)}`) : null) : null,
    figure("health", "Entropy of each row, of the most that it may have",
      () => (block.T <= MOST_HEALTH ? healthList(context, judged, choose) : healthCounts(judged)),
      () => makeTable("Entropy of each row", ["asks", "bits", "of", "part", "verdict"],
        judged.map((h, i) => [context.rows(i), h.bits.toFixed(4), h.possible.toFixed(4),
                              h.part.toFixed(4), h.verdict]))),
    sink ? el("p", { id: "sink" }, sink) : null,
    ...(traced ? notesOf(trace) : []).map((n) =>
      el("p", { class: "fine" }, `${n.label}: ${n.text}`)),
  ];
}

/* The panel "Learning", for a trace of attn train: the loss, the same heat-map at several steps of
 * the training, and beside each the gradient of its scores. */

/** The training steps at which this layer's attention was stored. */
function momentsOf(trace, block) {
  return trace.blocks.filter((b) => b.moment >= 0 && b.layer === block.layer)
    .sort((a, b) => a.moment - b.moment);
}

/** Curves as one picture: y over x, with a mark at `now`. */
function drawCurve(step, now) {
  const n = step.height, data = numbersOf({}, step, 0), width = 420, height = 130, left = 54;
  const x = (i) => data[2 * i], y = (i) => data[2 * i + 1];
  let low = 0, high = 0;
  for (let i = 0; i < n; i++) high = Math.max(high, y(i));
  const last = Math.max(n ? x(n - 1) : 1, 1);
  const px = (v) => left + ((width - left - 8) * v) / last;
  const py = (v) => 8 + (height - 30) * (1 - (v - low) / Math.max(high - low, 1e-12));
  const points = Array.from({ length: n }, (_, i) =>
    `${i ? "L" : "M"}${px(x(i)).toFixed(2)} ${py(y(i)).toFixed(2)}`).join("");
  const marks = [0, high / 2, high].flatMap((v) => [
    el("line", { x1: left, x2: width - 8, y1: py(v), y2: py(v), class: "axis" }),
    el("text", { x: left - 6, y: py(v) + 4, "text-anchor": "end", class: "label" },
       general(v, 3))]);
  return el("svg", { viewBox: `0 0 ${width} ${height}`, class: "curve", role: "img",
                     "aria-label": `${step.title}: from ${numberText(n ? y(0) : 0)} to `
                                   + numberText(n ? y(n - 1) : 0) },
    marks, el("path", { d: points || "M0 0", class: "curve-line" }),
    now >= 0 ? el("line", { x1: px(now), x2: px(now), y1: 8, y2: height - 22, class: "now-line" })
             : null,
    el("text", { x: px(0), y: height - 6, class: "label" }, "0"),
    el("text", { x: px(last), y: height - 6, "text-anchor": "end", class: "label" },
       `${columnLabel(step, 0)} ${last}`));
}

function curveFigure(step, now) {
  const data = numbersOf({}, step, 0);
  return el("div", {}, el("h4", {}, step.title), figure(`curve-${step.name}`, step.title,
    () => drawCurve(step, now),
    () => makeTable(step.title, [columnLabel(step, 0), columnLabel(step, 1)],
      Array.from({ length: step.height }, (_, i) => [general(data[2 * i], 9),
                                                     exactText(data[2 * i + 1])]))));
}

function slopeOf(trace, block) {
  return trace.steps.find((s) => s.made.op === "slope" && s.made.a === block.name) ?? null;
}

/** The gradient of the scores, drawn small with the signed colour map. */
function slopeFigure(context, step) {
  const { trace, block, state, rows, columns } = context, { T, S } = block;
  const numbers = numbersOf(trace, step, state.head, block.heads), range = rangeOf(numbers);
  const label = "The loss's gradient on these scores";
  return el("div", {}, el("h4", {}, label), figure("slope", label,
    () => el("svg", { viewBox: `0 0 ${S} ${T}`, class: "slope", role: "img", "aria-label":
                      `${label}: largest size ${numberText(range)}`,
                      "shape-rendering": "crispEdges" },
      Array.from(numbers, (x, at) => el("rect", { x: at % S, y: Math.floor(at / S), width: 1,
        height: 1, fill: cssColour(colourOf(x, "values", range)) },
        el("title", {}, `“${rows(Math.floor(at / S))}” asks, “${columns(at % S)}” answers: `
                        + numberText(x))))),
    () => makeTable(label, ["asks ↓ answers →", ...Array.from({ length: S }, (_, j) => columns(j))],
      Array.from({ length: T }, (_, i) => [rows(i), ...Array.from({ length: S }, (__, j) =>
        exactText(numbers[i * S + j]))]))),
    el("p", { class: "fine" }, "Blue: training raises this score; red: it lowers it "
      + `(−${numberText(range)} to ${numberText(range)}; a step goes against the gradient).`));
}

const playing = { timer: null };

function learningPanel(context, change) {
  const { trace, block } = context, curves = trace.shown.filter((s) => s.kind === "curve");
  const moments = momentsOf(trace, block), at = moments.indexOf(block);
  const go = (i) => change({ block: moments[i], step: null, stage: 7, quiz: null });
  const play = () => {
    clearInterval(playing.timer);
    let i = at === moments.length - 1 ? 0 : at + 1;
    go(i);
    playing.timer = setInterval(() => {
      i++;
      if (i >= moments.length) clearInterval(playing.timer);
      else go(i);
    }, 900);
  };
  const slope = slopeOf(trace, block);
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  return [
    moments.length > 1 ? el("div", { class: "control" },
      el("label", { for: "moment", class: "control-name" }, "After step"),
      slider("moment", 0, moments.length - 1, 1, at, `step ${block.moment}`, (i) => {
        clearInterval(playing.timer);
        go(i);
      }),
      el("output", {}, `${block.moment} of ${moments.at(-1).moment}`),
      still ? null : el("button", { type: "button", class: "quiet", id: "play", onclick: play },
                        "Play")) : null,
    slope ? slopeFigure(context, slope) : null,
    el("div", { class: "curves" }, curves.map((s) => curveFigure(s, block.moment))),
  ];
}

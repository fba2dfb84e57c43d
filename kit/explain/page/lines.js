/* The sentence twice: queries on the left, keys on the right, and between them lines whose strength
 * is the weight. For long texts only the chosen word's keys with the largest weights, as bars. */

const MOST_LINES = 40; // most words on each side
const STRONGEST = 20;

function drawLines(view, row, choose) {
  const step = 26, width = 262, top = 30, n = Math.max(view.T, view.S);
  const y = (i) => top + (i + 0.5) * step;
  const lines = [], words = [];
  for (let i = 0; i < view.T; i++)
    for (let j = 0; j < view.S; j++) {
      const w = view.numbers[i * view.S + j], at = i * view.S + j;
      if (!(w > 0.004) || view.hidden?.[at] || view.blank === at) continue;
      const chosen = i === row;
      lines.push(el("path", {
        d: `M84 ${y(i)} C 110 ${y(i)} 130 ${y(j)} 156 ${y(j)}`,
        class: chosen ? "line chosen" : "line", "stroke-width": chosen ? 1 + 6 * w : 1 + 2 * w,
        "stroke-opacity": chosen ? 0.25 + 0.75 * w : 0.12 * w, "data-row": i, "data-column": j }));
    }
  for (let i = 0; i < view.T; i++)
    words.push(el("text", { x: 76, y: y(i) + 4, "text-anchor": "end",
                            class: i === row ? "word chosen" : "word", "data-word": i,
                            onclick: () => choose(i) }, clip(view.rows(i), 10)));
  for (let j = 0; j < view.S; j++) {
    const w = view.numbers[row * view.S + j];
    const share = view.blank === row * view.S + j ? "?" : w > 0.004 ? percent(w) : "";
    words.push(el("text", { x: 164, y: y(j) + 4, class: w > 0.1 ? "word strong" : "word" },
                  clip(view.columns(j), 9)),
               el("text", { x: width, y: y(j) + 4, "text-anchor": "end", class: "share" }, share));
  }
  lines.sort((a, b) => a.classList.contains("chosen") - b.classList.contains("chosen"));
  return el("svg", { viewBox: `0 0 ${width} ${top + n * step + 6}`, class: "lines", role: "img",
                     "aria-label": linesSentence(view, row) },
    el("text", { x: 76, y: 16, "text-anchor": "end", class: "head" }, "asks"),
    el("text", { x: 164, y: 16, class: "head" }, "answers"), lines, words);
}

function strongest(view, row, most) {
  return Array.from({ length: view.S }, (_, j) => j)
    .filter((j) => !view.hidden?.[row * view.S + j] && view.blank !== row * view.S + j)
    .sort((a, b) => view.numbers[row * view.S + b] - view.numbers[row * view.S + a] || a - b)
    .slice(0, most);
}

function linesSentence(view, row) {
  const best = strongest(view, row, 3).map((j) => `“${view.columns(j)}” `
    + percent(view.numbers[row * view.S + j]));
  return `“${view.rows(row)}” asks; most of its weight: ${best.join(", ")}`;
}

function drawStrongest(view, row) {
  const best = strongest(view, row, STRONGEST);
  const shown = best.reduce((sum, j) => sum + view.numbers[row * view.S + j], 0);
  return el("div", {},
    el("p", {}, `“${view.rows(row)}” (${row + 1} of ${view.T}) asks:`),
    el("ol", { class: "strongest" }, best.map((j) => el("li", {},
      el("span", { class: "word" }, `${clip(view.columns(j), 10)}`),
      el("span", { class: "place" }, String(j + 1)),
      bar(view.numbers[row * view.S + j], view.numbers[row * view.S + j].toFixed(3))))),
    el("p", { class: "fine" }, `the other ${view.S - best.length} keys together: `
      + numberText(Math.max(0, 1 - shown))));
}

function linesPanel(view, row, choose) {
  const small = view.T <= MOST_LINES && view.S <= MOST_LINES;
  return figure("lines", "Sentence with lines",
    () => (small ? drawLines(view, row, choose) : drawStrongest(view, row)),
    () => makeTable(`“${view.rows(row)}” asks`, ["answers", "weight"],
      strongest(view, row, view.S).map((j) => [`${view.columns(j)} (${j + 1})`,
                                               exactText(view.numbers[row * view.S + j])])));
}

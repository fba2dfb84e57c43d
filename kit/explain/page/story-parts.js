/* What the pictures of the story are made of: words, strips of numbers, bars, squares. */

const MOST_ROWS = 8; // words that a picture lists
const MOST_TALL = 310; // pixels, for a matrix
const MOST_SHAPES = 24; // rows and columns of a matrix that is drawn as shapes; else as pixels

/** Prose of a script: a list of paragraphs and items, in which *terms* and `code` are marked. */
function prose(lines, start = []) {
  const out = [];
  for (const line of lines ?? []) {
    const item = line.startsWith("- ");
    const parts = (item ? line.slice(2) : line).split(/(\*[^*\s][^*]*\*|`[^`]+`)/).map((text) =>
      /^\*[^*]+\*$/.test(text) ? el("em", {}, text.slice(1, -1))
      : /^`[^`]+`$/.test(text) ? el("code", {}, text.slice(1, -1)) : text);
    if (!item) out.push(el("p", {}, out.length ? [] : start, parts));
    else if (out.at(-1)?.localName === "ul") out.at(-1).append(el("li", {}, parts));
    else out.push(el("ul", {}, el("li", {}, parts)));
  }
  return out;
}

/** Which of n rows a picture lists: all, or the first and those that must be among them. */
function listedRows(n, needed = []) {
  const all = Array.from({ length: n }, (_, i) => i);
  if (n <= MOST_ROWS) return all;
  const rest = all.filter((i) => !needed.includes(i)).slice(0, MOST_ROWS - new Set(needed).size);
  return all.filter((i) => needed.includes(i) || rest.includes(i));
}

function leftOut(n, rows) {
  const rest = n - rows.length;
  return rest > 0 ? el("p", { class: "fine" },
                       `… and ${rest} more ${rest > 1 ? "words" : "word"}, in Explore.`) : null;
}

/** The words of the sentence, which can be clicked where the page can compute. */
function wordChips(told) {
  const button = (i) => ({ type: "button", disabled: !canCompute(), id: `chip-${i}`,
    "aria-pressed": String(i === told.q), "aria-label": `Follow “${told.words[i]}”, word ${i + 1}`,
    onclick: () => followWord(i) });
  const chips = told.words.map((word, i) => el(told.printed ? "span" : "button",
    { class: i === told.q ? "chip chosen" : "chip", ...(told.printed ? {} : button(i)) },
    clip(word, 24)));
  return { element: el("div", { class: "chips" }, chips), chips };
}

/** A row of numbers as coloured cells; 0 is in the middle of the colours. */
function strip(numbers, range, kind = "values") {
  const shown = Array.from(numbers).slice(0, 64), n = shown.length;
  return el("svg", { class: "strip", viewBox: `0 0 ${n} 1`, preserveAspectRatio: "none",
                     "aria-hidden": "true" },
    shown.map((x, i) => el("rect", { x: i, y: 0, width: 1.03, height: 1,
                                     fill: cssColour(colourOf(x, kind, range)) })));
}

/** What a strip says: how many numbers, and the first of them. */
function stripText(numbers) {
  const n = numbers.length, first = Array.from(numbers).slice(0, 2).map(numberText).join(", ");
  return n > 2 ? `${first}, … (${n} numbers)` : first;
}

function rowOf(told, step, i, head = 0) {
  const all = numbersOf(told.trace, step, Math.min(head, step.heads - 1));
  return all.subarray(i * step.width, (i + 1) * step.width);
}

/** A bar from the middle to either side; part −1…1. */
function signedBar(part, kind = "") {
  const fill = el("span", { class: `fill signed ${part < 0 ? "negative" : "product"} ${kind}` });
  const size = 50 * Math.min(Math.abs(part), 1);
  fill.style.width = `${size}%`;
  fill.style.left = `${part < 0 ? 50 - size : 50}%`;
  fill.style.transformOrigin = part < 0 ? "right" : "left";
  return { element: el("span", { class: "share-bar" }, fill), fill };
}

/** A matrix as in Explore, without a cross-hair; row: the one that is followed. */
function square(view, width, row = -1) {
  const cell = Math.min(Math.max(MOST_TALL / view.T, CELL.least), CELL.most);
  const l = matrixLayout(view, Math.min(width, 110 + cell * view.S)), range = rangeOf(view.numbers);
  const canvas = view.T > MOST_SHAPES && view.S > MOST_SHAPES;
  const plot = el("div", { class: "plot", role: "img", "aria-label": view.label },
                  [canvas ? drawCanvas(view, l, range) : drawSvg(view, l, range)].flat());
  plot.style.width = `${l.width}px`;
  plot.style.height = `${l.height}px`;
  if (row >= 0 && row < view.T) {
    const box = el("div", { class: "cross row followed" });
    box.style.transform = `translate(${l.left}px, ${l.top + row * l.tall}px)`;
    box.style.width = `${l.cell * view.S}px`;
    box.style.height = `${l.tall}px`;
    plot.append(box);
  }
  return { element: el("div", { class: "plot-scroll" }, plot), plot };
}

/** The view of a step, or of one of its heads, for square(). */
function stepView(told, step, head = 0, hidden = null) {
  const own = Math.min(head, step.heads - 1), asks = ["scores", "weights"].includes(step.kind);
  const number = step.heads > 1 ? `, head ${own + 1} of ${step.heads}` : "";
  return { kind: { scalar: "values", probabilities: "weights" }[step.kind] ?? step.kind,
           numbers: numbersOf(told.trace, step, own), T: step.height, S: step.width, hidden, asks,
           rows: (i) => rowLabel(step, i), columns: (j) => columnLabel(step, j),
           label: `${step.title || nameWords(step.name)}${number}` };
}

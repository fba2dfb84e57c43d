/* The matrix of the step: SVG for small ones, a canvas above 24 × 24 cells. The cross-hair consists
 * of three boxes on top of the drawing, so moving it needs no redrawing. The middle box is the
 * cell; it has the focus, and the arrow keys move it. */

const MOST_SVG = 64; // rows or columns
const CELL = { least: 9, most: 64 };

/**
 * What to draw: {id, kind, T, S, numbers, hidden, rows: i => text, columns: j => text, asks: rows
 * are queries and columns are keys, blank: index of a cell that is not shown, dropped: a removed
 * column}
 */
function matrixLayout(view, width) {
  const measure = (label, n) => {
    let most = 1;
    for (let i = 0; i < Math.min(n, 600); i++) most = Math.max(most, [...label(i)].length);
    return most;
  };
  const font = 12, narrow = width < 480;
  const rowChars = Math.min(measure(view.rows, view.T), narrow ? 8 : 14);
  const columnChars = Math.min(measure(view.columns, view.S), 14);
  const left = Math.ceil(14 + rowChars * 7.3);
  const cellIn = (room) =>
    Math.min(Math.max(Math.floor(room), view.S > MOST_SVG ? 1 : CELL.least), CELL.most);
  let cell = cellIn((width - left - 4) / view.S);
  const slanted = columnChars * 7.3 + 6 > cell;
  /* Slanted labels reach beyond the middle of the last cell; 12: the height of a letter. */
  const overhang = slanted ? columnChars * 4.7 + 12 : 0;
  if (slanted) cell = Math.min(cell, cellIn((width - left - overhang) / (view.S - 0.5)));
  const top = Math.ceil(slanted ? 16 + columnChars * 5.4 : 26);
  const wide = ["weights", "scores", "difference"].includes(view.kind);
  const height = wide ? cell : Math.min(cell, 30);
  const tall = wide || view.S > MOST_SVG ? cell : Math.max(height, view.T > 40 ? 12 : 20);
  return { font, left, top, cell, tall, slanted, rowChars, columnChars,
           width: left + cell * view.S + Math.max(4, overhang - cell / 2),
           height: top + tall * view.T + 4 };
}

/** Writes every n-th label; n is such that labels do not touch. */
function labelStep(size) {
  return Math.max(1, Math.ceil(13 / size));
}

function drawLabels(view, l) {
  const out = [];
  for (let i = 0; i < view.T; i += labelStep(l.tall))
    out.push(el("text", { x: l.left - 8, y: l.top + (i + 0.5) * l.tall + 4, "text-anchor": "end",
                          class: "label", "data-row": i }, clip(view.rows(i), l.rowChars)));
  for (let j = 0; j < view.S; j += labelStep(l.cell)) {
    const x = l.left + (j + 0.5) * l.cell, text = clip(view.columns(j), l.columnChars);
    out.push(el("text", l.slanted
      ? { x: x + 3, y: l.top - 6, transform: `rotate(-50 ${x + 3} ${l.top - 6})`, class: "label",
          "data-column": j }
      : { x, y: l.top - 8, "text-anchor": "middle", class: "label", "data-column": j }, text));
  }
  return out;
}

function drawCells(view, l, range) {
  const out = [];
  for (let at = 0; at < view.T * view.S; at++) {
    const i = Math.floor(at / view.S), j = at % view.S, x = view.numbers[at];
    const box = { x: l.left + j * l.cell, y: l.top + i * l.tall, width: l.cell, height: l.tall };
    const middle = { x: box.x + l.cell / 2, y: box.y + l.tall / 2 + 4.5, "text-anchor": "middle" };
    if (view.blank === at) {
      out.push(el("rect", { ...box, class: "blank" }),
               el("text", { ...middle, class: "digits question" }, "?"));
      continue;
    }
    if (view.hidden?.[at]) {
      out.push(el("rect", { ...box, fill: "url(#hatch)", class: "hidden-cell" }));
      continue;
    }
    const colour = colourOf(x, view.kind, range);
    const plain = view.kind === "ids";
    out.push(el("rect", { ...box, fill: plain ? "none" : cssColour(colour),
                          class: plain ? "plain" : null }));
    const text = l.tall >= 14 ? cellText(x, view.kind, l.cell) : "";
    if (text)
      out.push(el("text", { ...middle, class: `digits${l.cell < 50 ? " small" : ""}`,
                            fill: plain ? "currentColor" : inkOn(colour) }, text));
  }
  return out;
}

function drawSvg(view, l, range) {
  return el("svg", { width: l.width, height: l.height, viewBox: `0 0 ${l.width} ${l.height}`,
                     class: "drawing", "aria-hidden": "true" },
            drawLabels(view, l), el("g", {}, drawCells(view, l, range)));
}

/** One pixel per cell. */
function pixels(view, range) {
  const image = new ImageData(view.S, view.T), out = new Uint32Array(image.data.buffer);
  /* Colours of 1,024 levels, once, instead of one mix per cell. */
  const grey = document.documentElement.dataset.theme === "dark" ? 0xff413933 : 0xffe4e0dc;
  const levels = 1024, table = new Uint32Array(levels + 1);
  for (let i = 0; i <= levels; i++) {
    const part = i / levels;
    const [r, g, b] = view.kind === "weights" ? mapColour(cividis, part)
                                              : mapColour(diverging, part);
    table[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  for (let at = 0; at < out.length; at++) {
    const x = view.numbers[at];
    const part = view.kind === "weights" ? x : divergingPart(x, range);
    out[at] = view.hidden?.[at] ? grey : Number.isNaN(part) ? 0xff1e1edc
            : table[Math.round(Math.min(Math.max(part, 0), 1) * levels)];
  }
  return image;
}

function drawCanvas(view, l, range) {
  const small = el("canvas", { width: view.S, height: view.T });
  small.getContext("2d").putImageData(pixels(view, range), 0, 0);
  const width = l.cell * view.S, height = l.tall * view.T;
  const canvas = el("canvas", { width, height, class: "drawing cells", "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, width, height);
  canvas.style.left = `${l.left}px`;
  canvas.style.top = `${l.top}px`;
  const labels = el("svg", { width: l.width, height: l.height, class: "drawing",
                             viewBox: `0 0 ${l.width} ${l.height}`, "aria-hidden": "true" },
                    drawLabels(view, l));
  return [labels, canvas];
}

/** The bar that says what colours mean: 0…1, or −most…most with 0 in the middle. */
function drawLegend(view, range, canvas) {
  if (view.kind === "ids") return null;
  const weights = view.kind === "weights", map = weights ? cividis : diverging;
  const stops = map.map((c, i) => el("stop", { offset: i / (map.length - 1),
                                               "stop-color": cssColour(c) }));
  const marks = weights ? ["0", ".25", ".5", ".75", "1"]
                        : [numberText(-range), "0", numberText(range)];
  return el("div", { class: "legend" },
    el("svg", { viewBox: "0 0 200 10", preserveAspectRatio: "none", role: "img",
                "aria-label": `Colours from ${marks[0]} to ${marks.at(-1)}` },
      el("defs", {}, el("linearGradient", { id: `map-${weights ? "w" : "s"}` }, stops)),
      el("rect", { width: 200, height: 10, fill: `url(#map-${weights ? "w" : "s"})` })),
    el("div", { class: "marks" }, marks.map((m) => el("span", {}, m))),
    view.hidden ? el("span", { class: `hidden-key${canvas ? " grey" : ""}` }, "hidden key")
                : null);
}

/** "“is” asks, “Life” answers: 0.3986". */
function cellSentence(view, i, j) {
  const at = i * view.S + j, x = view.numbers[at];
  const value = view.blank === at ? "yours to predict"
              : view.hidden?.[at] ? "hidden" : view.kind === "ids" ? String(x) : numberText(x);
  if (view.asks) return `“${view.rows(i)}” asks, “${view.columns(j)}” answers: ${value}`;
  const column = view.namedColumns ? `“${view.columns(j)}”` : `number ${view.columns(j)}`;
  if (view.T === 1 && !view.named) return `${column}: ${value}`;
  return `${view.named ? `“${view.rows(i)}”` : `row ${view.rows(i)}`}, ${column}: ${value}`;
}

/** The cell to which an arrow key (or Home, End, ...) moves; null for other keys. */
function keyTarget(event, at, view) {
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
                  PageUp: [-10, 0], PageDown: [10, 0] };
  const ends = { Home: [at.row, 0], End: [at.row, view.S - 1] };
  if (event.ctrlKey) Object.assign(ends, { Home: [0, 0], End: [view.T - 1, view.S - 1] });
  if (event.altKey || event.metaKey) return null;
  const [down, right] = steps[event.key] ?? [];
  return ends[event.key] ?? (down === undefined ? null : [at.row + down, at.column + right]);
}

/** The boxes on top of the drawing, and how they move: {boxes, at, move}. */
function makeCross(view, l, cursor) {
  const row = el("div", { class: "cross row" }), column = el("div", { class: "cross column" });
  const cell = el("div", { class: "cross cell", role: "gridcell", tabindex: 0, id: "cell" });
  const grid = el("div", { class: "grid", role: "grid", "aria-rowcount": view.T,
    "aria-colcount": view.S, "aria-label": `${view.label}. Arrow keys move the cell.` },
                  el("div", { role: "row" }, cell));
  const place = (e, x, y, w, h) => {
    e.style.transform = `translate(${x}px, ${y}px)`;
    e.style.width = `${w}px`;
    e.style.height = `${h}px`;
  };
  const at = { ...cursor };
  const move = (i, j) => {
    at.row = Math.min(Math.max(i, 0), view.T - 1);
    at.column = Math.min(Math.max(j, 0), view.S - 1);
    const x = l.left + at.column * l.cell, y = l.top + at.row * l.tall;
    place(row, l.left, y, l.cell * view.S, l.tall);
    place(column, x, l.top, l.cell, l.tall * view.T);
    place(cell, x, y, l.cell, l.tall);
    cell.setAttribute("aria-rowindex", at.row + 1);
    cell.setAttribute("aria-colindex", at.column + 1);
    cell.setAttribute("aria-label", cellSentence(view, at.row, at.column));
  };
  move(at.row, at.column);
  return { boxes: [row, column, grid], cell, grid, at, move };
}

/** The cell under the pointer; null outside the matrix. */
function cellUnder(event, plot, view, l) {
  const r = plot.getBoundingClientRect();
  const j = Math.floor((event.clientX - r.left - l.left) / l.cell);
  const i = Math.floor((event.clientY - r.top - l.top) / l.tall);
  return i >= 0 && j >= 0 && i < view.T && j < view.S ? [i, j] : null;
}

function listen(plot, view, l, cross, moved) {
  const { at, move, cell, grid } = cross;
  let waiting = null; // at most one move per frame
  plot.addEventListener("pointermove", (event) => {
    const to = cellUnder(event, plot, view, l);
    if (!to || (to[0] === at.row && to[1] === at.column)) return;
    if (waiting === null) requestAnimationFrame(() => {
      const [i, j] = waiting;
      waiting = null;
      move(i, j);
      moved(i, j, false);
    });
    waiting = to;
  });
  plot.addEventListener("click", (event) => {
    const to = cellUnder(event, plot, view, l);
    if (!to) return;
    move(...to);
    cell.focus({ preventScroll: true });
    moved(at.row, at.column, true);
  });
  grid.addEventListener("keydown", (event) => {
    const to = keyTarget(event, at, view);
    if (!to) return;
    event.preventDefault();
    event.stopPropagation();
    move(...to);
    moved(at.row, at.column, true);
  });
}

/**
 * The figure: drawing, cross-hair, legend. moved(i, j, pinned) is called when the cell changes.
 * Returns {element, layout}.
 */
function makeMatrix(view, width, cursor, moved) {
  const l = matrixLayout(view, width), range = rangeOf(view.numbers);
  /* Hundreds of cells without digits are faster as pixels. A blank cell is a shape. */
  const canvas = view.T > MOST_SVG || view.S > MOST_SVG
    || (view.T > MOST_SHAPES && view.S > MOST_SHAPES && (view.blank ?? -1) < 0);
  const cross = makeCross(view, l, cursor);
  const plot = el("div", { class: "plot" },
    [canvas ? drawCanvas(view, l, range) : drawSvg(view, l, range)].flat(), cross.boxes);
  plot.style.width = `${l.width}px`;
  plot.style.height = `${l.height}px`;
  listen(plot, view, l, cross, moved);
  return { element: el("div", {}, el("div", { class: "plot-scroll" }, plot),
                       drawLegend(view, range, canvas)), layout: l };
}

/** The same as a table: all of it up to 64 rows and columns, else the row of the cell. */
function matrixTable(view, row) {
  const text = (i, j) => {
    const at = i * view.S + j;
    return view.blank === at ? "?" : view.hidden?.[at] ? "hidden"
         : view.kind === "ids" ? String(view.numbers[at]) : exactText(view.numbers[at]);
  };
  const all = (n, f) => Array.from({ length: n }, (_, i) => f(i));
  if (view.T > MOST_SVG || view.S > MOST_SVG) {
    return makeTable(`${view.label}, row “${view.rows(row)}” (the file CSV has all rows)`,
                     ["column", "number"],
                     all(view.S, (j) => [`${j + 1} ${view.columns(j)}`, text(row, j)]));
  }
  return makeTable(view.label, [view.asks ? "asks ↓ answers →" : "", ...all(view.S, view.columns)],
                   all(view.T, (i) => [view.rows(i), ...all(view.S, (j) => text(i, j))]));
}

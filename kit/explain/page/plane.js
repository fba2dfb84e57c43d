/* Vectors in the plane: the query of the chosen word and all keys, drawn in two directions of their
 * space. A vector can be moved in these two directions by the pointer or the arrow keys; its other
 * directions stay, and the weights follow, because a score uses the whole vectors. */

const MOST_PLANE = 64; // keys
const PLANE_SIZE = 330; // pixels
const PLANE_AXES = { pca: "the two main directions", first: "numbers 1 and 2" };

const plane = { axes: "pca", reach: 1, // reach: the coordinate at the border
                place: "", // what the moves belong to: sentence, block, head, row, directions
                directions: null, // {key, axes}, see directionsOf
                moves: new Map() }; // -1: the query, or the number of a key -> [x, y]

/** Two orthonormal directions that keep most of these vectors' squared lengths: principal
 * components without centring, so that the origin stays where it is. Subspace iteration. */
function mainDirections(vectors, D) {
  let pair = [0, 1].map((a) => Float64Array.from({ length: D }, (_, d) => Math.cos((a + 1) * d)));
  for (let round = 0; round < 200; round++) {
    pair = pair.map((u) => {
      const out = new Float64Array(D);
      for (const v of vectors) {
        const c = dotRows(v, u, 1, 1, D)[0];
        for (let d = 0; d < D; d++) out[d] += c * v[d];
      }
      return out;
    });
    orthonormal(pair);
  }
  return pair;
}

/** Makes two vectors orthonormal, in place. A vector that vanishes becomes 0. */
function orthonormal([a, b]) {
  const D = a.length, size = (u) => Math.sqrt(dotRows(u, u, 1, 1, D)[0]);
  const long = size(a) || 1;
  for (let d = 0; d < D; d++) a[d] /= long;
  const before = size(b), c = dotRows(a, b, 1, 1, D)[0];
  for (let d = 0; d < D; d++) b[d] -= c * a[d];
  const rest = size(b), least = 1e-9 * before;
  for (let d = 0; d < D; d++) b[d] = rest > least ? b[d] / rest : 0;
}

function firstNumbers(D) {
  return [0, 1].map((a) => Float64Array.from({ length: D }, (_, d) => (d === a ? 1 : 0)));
}

/** The directions of the plane of these vectors, which `key` tells from others. They do not depend
 * on moves, so a drag does not compute them again. */
function directionsOf(key, vectors, D) {
  if (!plane.directions || key.some((x, i) => x !== plane.directions.key[i]))
    plane.directions = { key, axes: plane.axes === "pca" && D > 2 ? mainDirections(vectors, D)
                                                                  : firstNumbers(D) };
  return plane.directions.axes;
}

/** Everything that the panel shows of one row: the vectors as moved, their places in the plane,
 * scores and weights. part: what the plane keeps of the squared lengths. */
function planeNumbers({ trace, block, head, state }, moves = plane.moves) {
  const { T, S, scale } = block, row = Math.min(state.row, T - 1), D = block.q.width;
  const q = numbersOf(trace, block.q, head, block.heads), hidden = hiddenOf(trace, block, head);
  const k = numbersOf(trace, block.k, head, block.heads);
  const given = [q.subarray(row * D, (row + 1) * D),
                 ...Array.from({ length: S }, (_, j) => k.subarray(j * D, (j + 1) * D))];
  const axes = directionsOf([trace, block.name, head, row, plane.axes], given, D);
  const vectors = given.map((v, at) => {
    const [x, y] = moves.get(at - 1) ?? [0, 0];
    return Float64Array.from(v, (n, d) => n + x * axes[0][d] + y * axes[1][d]);
  });
  const places = vectors.map((v) => axes.map((u) => dotRows(v, u, 1, 1, D)[0]));
  const square = (list) => list.flatMap((v) => [...v]).reduce((sum, x) => sum + x * x, 0);
  const scores = vectors.slice(1).map((v, j) => (hidden?.[row * S + j] ? -Infinity
    : scale * dotRows(vectors[0], v, 1, 1, D)[0]));
  return { row, D, places, scores, weights: softmaxRows(scores, 1, S),
           hidden: scores.map((s) => s === -Infinity),
           part: square(places) / (square(vectors) || 1) };
}

/** Whether the weights of this head are softmax(q·k × scale) and nothing else. */
function planeExplains(context, { row, weights }) {
  const own = numbersOf(context.trace, context.block.weights, context.head);
  return weights.every((w, j) => Math.abs(w - own[row * context.block.S + j]) < 1e-3);
}

/* ------------------------------------------------------------------------------- the picture */

function planeSvg(context, m, names, reach) {
  const half = PLANE_SIZE / 2;
  const at = ([x, y]) => [half + (x / reach) * half, half - (y / reach) * half];
  const arrow = (place, kind) => {
    const [x, y] = at(place);
    return el("line", { x1: half, y1: half, x2: x, y2: y, class: `arrow ${kind}` });
  };
  const radius = (j) => 3 + 17 * Math.sqrt(m.weights[j]);
  const label = (i) => { // outwards; where the border is near, inwards above the arrow
    const [x, y] = at(m.places[i]), right = x > half, inwards = Math.abs(x - half) > half * 0.55;
    const away = Math.max(11, i ? radius(i - 1) + 3 : 0), onRight = right !== inwards;
    return el("text", { x: x + (onRight ? away : -away), y: y + (inwards ? -8 : 4),
                        class: `plane-name ${i ? "key" : "query"}`,
                        "text-anchor": onRight ? "start" : "end" }, clip(names[i], 12));
  };
  return el("svg", { class: "plane", "data-reach": reach,
                     viewBox: `0 0 ${PLANE_SIZE} ${PLANE_SIZE}`,
                     "aria-hidden": "true" },
    el("line", { x1: 0, x2: PLANE_SIZE, y1: half, y2: half, class: "zero" }),
    el("line", { y1: 0, y2: PLANE_SIZE, x1: half, x2: half, class: "zero" }),
    m.places.slice(1).map((place, j) => {
      const [x, y] = at(place);
      return [arrow(place, m.hidden[j] ? "key gone" : "key"),
              el("circle", { cx: x, cy: y, r: radius(j), class: "share" })];
    }).flat(),
    arrow(m.places[0], "query"),
    names.map((_, i) => label(i)));
}

/** The tip of a vector: dragged, or moved by the arrow keys. */
function planeTip(index, name, place, reach, redraw) {
  const role = index < 0 ? "query" : "key", [x, y] = place.map(numberText);
  const tip = el("button", { type: "button", class: `plane-tip ${role}`,
    id: index < 0 ? "plane-query" : `plane-key-${index}`,
    "aria-label": `${role} of “${name}”: ${x}, ${y}. Arrow keys move it` });
  tip.style.left = `${50 + (50 * place[0]) / reach}%`;
  tip.style.top = `${50 - (50 * place[1]) / reach}%`;
  const move = (dx, dy) => {
    const [a, b] = plane.moves.get(index) ?? [0, 0];
    plane.moves.set(index, [a + dx, b + dy]);
    redraw();
  };
  tip.addEventListener("keydown", (e) => {
    const to = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    if (!to[e.key] || e.ctrlKey || e.altKey || e.metaKey) return;
    e.preventDefault();
    e.stopPropagation();
    move(...to[e.key].map((step) => (step * reach) / 20));
  });
  tip.addEventListener("pointerdown", (down) => {
    const unit = (2 * reach) / tip.parentNode.getBoundingClientRect().width;
    let last = down;
    const drag = (to) => {
      const from = last;
      last = to;
      move((to.clientX - from.clientX) * unit, (from.clientY - to.clientY) * unit);
    };
    const stop = () => {
      removeEventListener("pointermove", drag);
      removeEventListener("pointerup", stop);
      removeEventListener("pointercancel", stop);
    };
    addEventListener("pointermove", drag);
    addEventListener("pointerup", stop);
    addEventListener("pointercancel", stop);
  });
  return tip;
}

function planePicture(context, m, names, redraw) {
  const far = Math.max(...m.places.flat().map(Math.abs)) || 1;
  plane.reach = plane.moves.size ? Math.max(plane.reach, far) : 1.15 * far;
  const holder = el("div", { class: "plane-holder" }, planeSvg(context, m, names, plane.reach),
    m.places.map((place, i) => planeTip(i - 1, names[i], place, plane.reach, redraw)));
  const bars = m.scores.map((s, j) => [
    el("span", { class: "told-word" }, clip(names[j + 1], 14)),
    el("span", { class: "number" }, m.hidden[j] ? "hidden" : numberText(s)),
    shareBar(m.weights[j], "weight").element,
    el("span", { class: "number" }, numberText(m.weights[j]))]);
  return el("div", { class: "plane-and-shares" }, holder,
    el("div", { class: "listing shares" }, headings("answers", "score", "share", ""), bars.flat()));
}

function planeTable(m, names) {
  return makeTable("Query and keys in the plane", ["vector", "x", "y", "score", "weight"],
    names.map((name, i) => [i ? `key of “${name}”` : `query of “${name}”`,
      ...m.places[i].map(exactText),
      ...(i ? [m.hidden[i - 1] ? "hidden" : exactText(m.scores[i - 1]),
               exactText(m.weights[i - 1])] : ["", ""])]));
}

/** What the panel says in words; also announced after a move. */
function planeText(m, names) {
  const best = m.weights.reduce((most, w, j) => (w > m.weights[most] ? j : most), 0);
  return `${plane.moves.size ? "After the move " : ""}“${names[0]}” gives its largest share, `
    + `${numberText(m.weights[best])}, to “${names[best + 1]}”.`;
}

function planePanel(context) {
  const { block, state } = context;
  if (!block.q || !block.k)
    return [el("p", { class: "fine" }, "It needs queries and keys; this trace has none here.")];
  if (block.S > MOST_PLANE)
    return [el("p", { class: "fine" }, `For up to ${MOST_PLANE} keys.`)];
  const place = [page.trace.text, block.name, context.head, state.row, plane.axes].join("\n");
  if (plane.place !== place) plane.moves.clear();
  plane.place = place;
  const m = planeNumbers(context);
  const names = [rowLabel(block.weights, m.row),
                 ...m.weights].map((n, i) => (i ? columnLabel(block.weights, i - 1) : n));
  if (!plane.moves.size && !planeExplains(context, m))
    return [el("p", { class: "fine" }, "These weights are not softmax of query times key alone.")];
  const redraw = () => {
    drawPlane();
    announce(byId("plane-said").textContent);
  };
  const axes = m.D > 2 ? control("Directions", choice("plane-axes", PLANE_AXES, plane.axes,
    (kind) => { plane.axes = kind; drawPlane(); })) : null;
  const reset = el("button", { type: "button", class: "quiet", id: "plane-reset",
    disabled: !plane.moves.size, onclick: () => { plane.moves.clear(); redraw(); } }, "As traced");
  return [
    el("p", {}, "The query of the chosen word and all keys. The area of a circle is the weight of "
      + "the key. Drag the tip of an arrow, or move it with the arrow keys: the weights follow."),
    el("div", { class: "controls" }, axes, reset),
    figure("plane", "Query and keys in the plane",
           () => planePicture(context, m, names, redraw), () => planeTable(m, names)),
    el("p", { id: "plane-said" }, planeText(m, names)),
    m.D > 2 ? el("p", { class: "fine" }, `The plane shows 2 of ${m.D} directions, which hold `
      + `${percent(m.part)} of the squared lengths. Scores use all ${m.D}.`) : null,
  ];
}

/* The neuron view: a query, a key and their products, number by number, as bars. */

function drawBars(name, numbers, range, y, hue) {
  const n = numbers.length, width = 300 / n, height = 44;
  const bars = Array.from(numbers, (x, i) => {
    const size = range > 0 ? (Math.abs(x) / range) * (height / 2 - 1) : 0;
    return el("rect", { x: 40 + i * width, y: x < 0 ? y + height / 2 : y + height / 2 - size,
                        width: Math.max(width - (width > 4 ? 1 : 0), 0.5),
                        height: Math.max(size, 0.5), class: x < 0 ? "negative" : hue },
              el("title", {}, `${name} ${i + 1}: ${numberText(x)}`));
  });
  return [el("text", { x: 32, y: y + height / 2 + 4, "text-anchor": "end", class: "label" }, name),
          el("line", { x1: 40, x2: 340, y1: y + height / 2, y2: y + height / 2, class: "axis" }),
          ...bars];
}

/** q and k share a scale; the products have their own. */
function neuronFigure(q, k, names) {
  const products = Array.from(q, (x, d) => x * k[d]);
  const range = Math.max(rangeOf(q), rangeOf(k));
  const label = `q of “${names.row}”, k of “${names.column}” and their products`;
  return figure("neuron", label,
    () => el("svg", { viewBox: "0 0 344 150", class: "neuron", role: "img", "aria-label": label },
      drawBars("q", q, range, 2, "query"), drawBars("k", k, range, 52, "key"),
      drawBars("q×k", products, rangeOf(products), 102, "product")),
    () => makeTable(label, ["component", "q", "k", "q×k"],
      products.map((x, d) => [String(d + 1), exactText(q[d]), exactText(k[d]), exactText(x)])));
}

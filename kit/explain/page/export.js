/* Exports the shown matrix as SVG, PNG or CSV. The file is created in the page and leaves it only
 * by the browser's "save". */

function save(name, type, bytes) {
  const url = URL.createObjectURL(new Blob([bytes], { type }));
  const a = el("a", { href: url, download: name });
  document.body.append(a);
  a.click();
  a.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** A field of CSV (RFC 4180). A text that a spreadsheet would take for a formula gets a ' in
 * front. */
function csvField(text) {
  const safe = /^[=+@\t\r]|^-[^0-9.i]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll("\"", "\"\"")}"` : safe;
}

/** All numbers, with enough digits to read back exactly. */
function csvText(view) {
  const all = (n, f) => Array.from({ length: n }, (_, i) => f(i));
  const lines = [["", ...all(view.S, view.columns)]];
  for (let i = 0; i < view.T; i++)
    lines.push([view.rows(i), ...all(view.S, (j) => {
      const at = i * view.S + j;
      if (view.blank === at) return "?";
      return view.hidden?.[at] && view.kind === "weights" ? "" : exactText(view.numbers[at]);
    })]);
  return lines.map((line) => line.map(csvField).join(",")).join("\r\n") + "\r\n";
}

/** The style sheet's properties of texts, as attributes. */
const exportStyles = {
  label: { "font-size": 12, fill: "#3c4043" },
  digits: { "font-size": 13, "font-family": "DejaVu Sans Mono, Menlo, Consolas, monospace" },
  small: { "font-size": 11 },
};

/** The pattern of masked keys; the page's own is in page.html. */
function hatch() {
  return byId("patterns").firstElementChild.cloneNode(true);
}

/** A stand-alone drawing: without the style sheet, with a white background. */
function svgText(view) {
  const l = matrixLayout(view, 900), range = rangeOf(view.numbers);
  const title = 26;
  const big = view.T > MOST_SVG || view.S > MOST_SVG;
  const cells = big ? imageCells(view, l, range) : drawCells(view, l, range);
  const width = Math.max(l.width, 8 * view.label.length + 20);
  const svg = el("svg", { xmlns: "http://www.w3.org/2000/svg", width, height: l.height + title,
                          viewBox: `0 0 ${width} ${l.height + title}`,
                          "font-family": "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif" },
    el("title", {}, view.label), hatch(),
    el("rect", { width: "100%", height: "100%", fill: "#ffffff" }),
    el("text", { x: 10, y: 18, "font-size": 14, fill: "#202124" }, view.label),
    el("g", { transform: `translate(0 ${title})` }, drawLabels(view, l), cells));
  for (const e of svg.querySelectorAll("[class]")) {
    for (const name of e.classList)
      for (const [key, value] of Object.entries(exportStyles[name] ?? {}))
        e.setAttribute(key, value);
    if (e.classList.contains("blank")) e.setAttribute("fill", "#fff1b8");
    if (e.classList.contains("plain")) e.setAttribute("stroke", "#dadce0");
    if (e.getAttribute("fill") === "currentColor") e.setAttribute("fill", "#202124");
    e.removeAttribute("class");
  }
  return new XMLSerializer().serializeToString(svg);
}

/** Too many cells for elements: an image inside the drawing. */
function imageCells(view, l, range) {
  const canvas = el("canvas", { width: view.S, height: view.T });
  canvas.getContext("2d").putImageData(pixels(view, range), 0, 0);
  const image = document.createElementNS("http://www.w3.org/2000/svg", "image");
  for (const [key, value] of Object.entries({ x: l.left, y: l.top, width: l.cell * view.S,
    height: l.tall * view.T, href: canvas.toDataURL("image/png"), preserveAspectRatio: "none",
    style: "image-rendering:pixelated" })) image.setAttribute(key, value);
  return [image];
}

/** The drawing, twice as large, as a PNG. */
function pngBlob(view) {
  const text = svgText(view), image = new Image();
  return new Promise((resolve, reject) => {
    image.onload = () => {
      const canvas = el("canvas", { width: 2 * image.width, height: 2 * image.height });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(resolve, "image/png");
    };
    image.onerror = reject;
    const bytes = new TextEncoder().encode(text);
    let binary = "";
    for (const b of bytes) binary += String.fromCharCode(b);
    image.src = `data:image/svg+xml;base64,${btoa(binary)}`;
  });
}

function exportButtons(view) {
  const name = view.file;
  const button = (id, text, run) => el("button", { type: "button", id, class: "quiet",
                                                   onclick: run }, text);
  return [
    button("save-svg", "SVG", () => save(`${name}.svg`, "image/svg+xml", svgText(view))),
    button("save-png", "PNG", async () => save(`${name}.png`, "image/png", await pngBlob(view))),
    button("save-csv", "CSV", () => save(`${name}.csv`, "text/csv;charset=utf-8", csvText(view))),
  ];
}

/* Creates elements. Text always becomes a text node: no part of a trace is interpreted as HTML. */

const svgNames = new Set(["svg", "g", "rect", "line", "path", "text", "title", "desc", "defs",
                          "pattern", "linearGradient", "stop", "circle"]);

/** An element with attributes (on… is a listener, null is left out) and children. */
function el(name, attributes = {}, ...children) {
  const e = svgNames.has(name) ? document.createElementNS("http://www.w3.org/2000/svg", name)
                               : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
    else e.setAttribute(key, value === true ? "" : value);
  }
  e.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return e;
}

const byId = (id) => document.getElementById(id);

/** Replaces an element's children. The focus stays on the element with the same id. */
function refill(e, ...children) {
  const focused = e.contains(document.activeElement) ? document.activeElement.id : "";
  e.replaceChildren(...children.flat().filter((c) => c !== null && c !== undefined));
  if (focused) byId(focused)?.focus({ preventScroll: true });
}

/** A real table. rows: lists of cells; the first of each is the row's heading. */
function makeTable(caption, columns, rows) {
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", { class: "twin" },
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, columns.map((c) => el("th", { scope: "col" }, c)))),
      el("tbody", {}, rows.map((row) => el("tr", {},
        row.map((cell, i) => el(i ? "td" : "th", i ? {} : { scope: "row" }, cell)))))));
}

/** The ids of the figures that are shown as tables. */
const asTables = new Set();

/** What is folded away in a panel, under one word. It stays open when the panel is drawn anew. */
const openFolds = new Set();
function more(id, ...children) {
  const toggle = (e) => (e.target.open ? openFolds.add(id) : openFolds.delete(id));
  return el("details", { class: "more", id: `${id}-more`, open: openFolds.has(id),
                         ontoggle: toggle }, el("summary", {}, "More"), children);
}

/**
 * A figure: a drawing and a button that shows the same data as a table, which is created on demand.
 * draw and table return elements; label describes the drawing. The button is under More, or in the
 * element `place`.
 */
function figure(id, label, draw, table, place = null) {
  const holder = el("div", { class: "figure", id: `${id}-figure` });
  const fill = () => {
    const open = asTables.has(id);
    const toggle = () => {
      if (!asTables.delete(id)) asTables.add(id);
      fill();
    };
    const button = el("button", { type: "button", class: "quiet twin-button", id: `${id}-table`,
      "aria-pressed": String(open), "aria-label": `${label}: show as table`, onclick: toggle },
                      open ? "Show as picture" : "Show as table");
    refill(holder, open ? table() : draw(), place ? null : more(id, button));
    if (place) refill(place, button);
  };
  fill();
  return holder;
}

/** Announces the text to screen readers. */
function announce(text) {
  const where = byId("status");
  if (where.textContent !== text) where.textContent = text;
}

/** Copies a text, and shows on the button that it was copied. */
async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { "aria-hidden": "true", class: "offscreen" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1200);
}

function copyButton(text, what) {
  const button = el("button", { type: "button", class: "quiet", "aria-label": `Copy ${what}` },
                    "Copy");
  button.addEventListener("click", () => copyText(typeof text === "function" ? text() : text,
                                                  button));
  return button;
}

/** Text shortened to fit; the whole stays in the title. */
function clip(text, most) {
  const characters = [...text];
  return characters.length > most ? `${characters.slice(0, most - 1).join("")}…` : text;
}

/** A bar of a part 0…1. Boxes, because the browser lays out many small SVG drawings more slowly. */
function shareBar(part, kind = "") {
  const fill = el("span", { class: `fill ${kind}` });
  fill.style.width = `${100 * Math.min(Math.max(part, 0), 1)}%`;
  return { element: el("span", { class: "share-bar" }, fill), fill };
}

/** Such a bar, small, with its number beside it. */
function bar(part, text, kind = "") {
  return el("span", { class: "gauge" },
    shareBar(part, kind).element, el("span", { class: "number" }, text));
}

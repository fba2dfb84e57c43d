/* Saves the page, as the reader sees it, as a page: the file as it was, with the trace of the
 * reader's sentence in place of its own, and the state as an attribute, which link.js reads. */

/** The page's JSON with the trace that is shown. A < in it is escaped: it is text in a script. */
function savedData(text) {
  if (!own.asked) return text;
  const { version, palette } = JSON.parse(text);
  const head = JSON.stringify({ version, palette }).slice(0, -1).replaceAll("<", "\\u003c");
  return `${head}, "trace": ${own.json}\n}`;
}

function savedPage() {
  const root = link.written.cloneNode(true), data = root.querySelector("#data");
  data.textContent = savedData(data.textContent);
  root.dataset.state = hashOf(linkPairs(false));
  return `<!doctype html>\n${root.outerHTML}\n`;
}

function savePage() {
  save("attn-page.html", "text/html;charset=utf-8", savedPage());
}

/* The button saves the answers as answers.json. Nothing is sent anywhere. */
"use strict";
const form = document.querySelector("form");
const said = document.getElementById("said");

function save(text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const a = document.createElement("a");
  a.href = url;
  a.download = "answers.json";
  document.body.append(a);
  a.click();
  a.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const answers = {};
  for (const [name, value] of new FormData(form)) {
    if (/^\d+$/.test(name) && value.trim() !== "") answers[name] = value.trim();
  }
  const { schema, seed, questions } = form.dataset;
  const name = form.elements.namedItem("student").value.trim();
  save(`${JSON.stringify({ schema, seed, name, answers }, null, 2)}\n`);
  said.textContent = `Saved: ${Object.keys(answers).length} of ${questions} answers.`;
});
document.getElementById("save").hidden = false;

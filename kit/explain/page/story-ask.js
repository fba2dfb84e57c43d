/* Questions of the story: a prediction beside its picture, and the questions at the end. An answer
 * is checked at once; after a wrong one the reader may try again or see why. */

/** The choices of a question in an order that does not begin with the right one each time:
 * {text, right}; [] if there is nothing to choose between. */
function mixedChoices(choices, id) {
  const texts = [...new Set((choices ?? []).map((c) => c.replace(/^- /, "")))];
  if (texts.length < 2) return [];
  const from = Array.from(id).reduce((sum, c) => sum + c.codePointAt(0), 0) % texts.length;
  const order = [...texts.slice(from), ...texts.slice(0, from)];
  return order.map((text) => ({ text, right: text === texts[0] }));
}

/** What is said of an answer. */
function repliesTo(choice, { answer, see }) {
  if (choice.right) return prose(answer, el("strong", { class: "right" }, "Right. "));
  return [el("p", {}, el("strong", { class: "not-yet" }, "Not this one. "),
             see ? ["Look again at ", screenLink(see), ", or try another answer."]
                 : "Look again, or try another answer.")];
}

/** A question with its choices: {id, question, choices, answer, see}. `label` stands before it. */
function askBlock(asked, label, printed = false) {
  const { id, question, answer } = asked, choices = mixedChoices(asked.choices, id);
  const said = el("div", { class: "reply", role: "status" });
  const first = prose(question, label ? el("strong", {}, `${label} `) : []);
  if (printed)
    return el("div", { class: "ask" }, first,
              choices.length ? el("ul", {}, choices.map((c) => el("li", {}, c.text))) : null);
  const buttons = choices.map((c) => el("button", { type: "button", class: "choice",
    "aria-pressed": "false", onclick: () => pick(c) }, c.text));
  const why = el("button", { type: "button", class: "quiet", onclick: () => {
    refill(said, prose(answer));
    why.hidden = true;
  } }, choices.length ? "Tell me" : "Show the answer");
  const mark = (c) => {
    const chosen = buttons[choices.indexOf(c)];
    buttons.forEach((b) => {
      b.setAttribute("aria-pressed", String(b === chosen));
      b.classList.toggle("right", b === chosen && c.right);
      b.classList.toggle("not-yet", b === chosen && !c.right);
    });
    refill(said, repliesTo(c, asked));
    why.hidden = c.right;
  };
  function pick(c) {
    const before = story.answers.get(id);
    story.answers.set(id, { text: c.text, right: c.right, tries: (before?.tries ?? 0) + 1 });
    mark(c);
    asked.onanswer?.();
  }
  const before = choices.find((c) => c.text === story.answers.get(id)?.text);
  if (before) mark(before);
  return el("div", { class: "ask", role: "group", "aria-label": label || "Question" }, first,
            el("div", { class: "choices" }, buttons, why), said);
}

/** How many questions are answered, and how many of them rightly at once. */
function tallyText(questions) {
  const given = questions.map((_, i) => story.answers.get(`question ${i + 1}`)).filter(Boolean);
  const right = given.filter((a) => a.right).length;
  const once = given.filter((a) => a.right && a.tries === 1).length;
  const checked = questions.some((q) => q.choices) ? "Each answer is checked at once."
                                                   : "Answer each for yourself, then look.";
  if (!right) return `${questions.length} questions. ${checked}`;
  return `${right} of ${questions.length} answered, ${once} at the first try.`
    + (right === questions.length ? " You can explain attention." : "");
}

/** The screen after the story. */
function questionsScreen(told) {
  const { questions } = told.trace.script, tally = el("p", { class: "tally", role: "status" });
  const count = () => { tally.textContent = tallyText(questions); };
  count();
  return [tally, el("ol", { class: "questions" }, questions.map((q, i) => el("li", {},
    askBlock({ ...q, id: `question ${i + 1}`, onanswer: count }, `${i + 1}.`, told.printed))))];
}

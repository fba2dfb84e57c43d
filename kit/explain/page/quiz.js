/* The quiz: one weight is hidden and asked for; an answer within 0.01 is right. The hint is the
 * equation with its operands, as in the terminal's --quiz. */

const TOLERANCE = 0.01, TRIES = 2;

/** Cells that can be asked for: visible, with known scores, in a row with more than one visible
 * key. */
function worthAsking(context, at) {
  const { live, block } = context, row = Math.floor(at / block.S);
  return live.scaled !== null && !live.hidden?.[at]
         && rowHealth(live.weights, live.hidden, row, block.S).visible > 1;
}

/** The n-th cell to ask for, in a fixed order and none of `before`; −1: there is none. After all
 * have been asked, the quiz begins again. */
function askFor(context, n, before = []) {
  const { block } = context, cells = block.T * block.S, next = uniform(1000 + n);
  for (let tries = 0; tries < 400; tries++) {
    const at = Math.floor(next() * cells);
    if (!before.includes(at) && worthAsking(context, at)) return at;
  }
  return before.length ? askFor(context, n) : -1;
}

function quizHint(context, quiz) {
  const { live, block } = context, row = Math.floor(quiz.at / block.S);
  const soft = softmaxText(live.masked, block.S, row, quiz.at % block.S);
  return `softmax of the row's scores, minus the largest (${numberText(soft.most)}): ${soft.text}`;
}

function quizQuestion(context, quiz) {
  const { live, block } = context, row = Math.floor(quiz.at / block.S), column = quiz.at % block.S;
  const scores = Array.from({ length: block.S }, (_, j) => {
    const s = live.masked[row * block.S + j];
    return `${isolated(context.columns(j))} ${s === -Infinity ? "hidden" : numberText(s)}`;
  });
  return [`“${isolated(context.rows(row))}” asks. How much of its attention goes to `
          + `“${isolated(context.columns(column))}”?`,
          `Scores: ${scores.join(", ")}`];
}

/** "0.25", "0,25", ".25", "25 %" as a number; NaN otherwise. */
function readAnswer(text) {
  const clean = text.trim().replace(",", "."), part = /^[0-9]*\.?[0-9]+(e-?[0-9]+)?( ?%)?$/i;
  if (!part.test(clean)) return NaN;
  return parseFloat(clean) / (clean.endsWith("%") ? 100 : 1);
}

/** The state of the question after an answer. */
function judgeAnswer(quiz, text, truth) {
  const answer = readAnswer(text);
  if (Number.isNaN(answer)) return { ...quiz, said: "A number such as 0.25, please." };
  const right = Math.abs(answer - truth) <= TOLERANCE + 1e-9, tries = quiz.tries + 1;
  if (right) return { ...quiz, tries, done: true, right: quiz.right + 1, asked: quiz.asked + 1,
                      said: `Right: ${fixed(truth, 4)}.` };
  if (tries >= TRIES) return { ...quiz, tries, done: true, asked: quiz.asked + 1,
                               said: `No: it is ${fixed(truth, 4)}.` };
  return { ...quiz, tries, said: `Not within ${TOLERANCE} of it.`, hint: true };
}

function quizPanel(context, change) {
  const { state, live } = context, { quiz } = state;
  const start = (at) => change({ stage: 7, step: null, settings: { ...state.settings,
    view: "weights", hideSink: false, masking: "before" },
    quiz: { at, tries: 0, done: false, hint: false, said: "", right: quiz?.right ?? 0,
            asked: quiz?.asked ?? 0, number: (quiz?.number ?? 0) + 1,
            before: [...(quiz?.before ?? []), at] },
    row: Math.floor(at / context.block.S), key: at % context.block.S });
  const here = state.row * context.block.S + state.key;
  const buttons = el("p", { class: "buttons" },
    el("button", { type: "button", id: "quiz-start", disabled: askFor(context, 0) < 0,
                   onclick: () => start(askFor(context, quiz?.number ?? 0, quiz?.before)) },
       quiz ? "Another one" : "Ask me"),
    el("button", { type: "button", class: "quiet", disabled: !worthAsking(context, here),
                   onclick: () => start(here) }, "Ask for this cell"));
  if (!quiz)
    return [el("p", {}, "A weight is blanked; work it out from the scores, within 0.01."), buttons];
  const [question, scores] = quizQuestion(context, quiz);
  const answer = (event) => {
    event.preventDefault();
    const next = judgeAnswer(quiz, byId("quiz-answer").value, live.weights[quiz.at]);
    change({ quiz: next });
    announce(next.said);
    byId(next.done ? "quiz-start" : "quiz-answer")?.focus();
  };
  return [
    el("p", { id: "quiz-question" }, question), el("p", { class: "fine" }, scores),
    quiz.done ? null : el("form", { onsubmit: answer, class: "answer" },
      el("label", { for: "quiz-answer" }, "weight? "),
      el("input", { id: "quiz-answer", inputmode: "decimal", autocomplete: "off", size: 8 }),
      el("button", { type: "submit" }, "Check")),
    el("p", { id: "quiz-said", role: "status" }, quiz.said),
    quiz.hint ? equation(`Hint: ${quizHint(context, quiz)}`, "the hint") : null,
    quiz.asked ? el("p", { class: "fine" }, `${quiz.right} of ${quiz.asked} right.`) : null,
    quiz.done ? buttons : null,
  ];
}

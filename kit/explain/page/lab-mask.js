/* Compares three ways to mask keys on this head: −∞ before softmax; setting weights to 0 after
 * softmax, so that rows no longer sum to 1; and setting to 0 and renormalising, which gives the
 * result of the first way but reads the masked scores. */

const MOST_MASK_LAB = 16; // most words for which small maps are drawn

function maskLabNumbers(context) {
  const { trace, block, head, settings } = context;
  const mask = context.live.hidden ? settings.mask : "causal";
  const ways = {};
  for (const masking of Object.keys(MASKING))
    ways[masking] = recomputed(trace, block, head, { ...settings, mask, masking });
  let difference = 0;
  ways.before.weights.forEach((w, i) => {
    difference = Math.max(difference, Math.abs(w - ways.renormalised.weights[i]));
  });
  return { ways, difference };
}

function maskMap(context, way) {
  const { T, S } = context.block, cell = Math.min(22, Math.floor(108 / S)), out = [];
  for (let at = 0; at < T * S; at++) {
    const box = { x: (at % S) * cell, y: Math.floor(at / S) * cell, width: cell, height: cell };
    out.push(el("rect", { ...box, fill: way.hidden?.[at] ? "url(#hatch)"
                                        : cssColour(mapColour(cividis, way.weights[at])) }));
  }
  for (let i = 0; i < T; i++)
    if (i % labelStep(cell) === 0)
      out.push(el("text", { x: S * cell + 6, y: (i + 0.5) * cell + 4, class: "label sum" },
                  `Σ ${way.sums[i].toFixed(3)}`));
  return el("svg", { viewBox: `0 0 ${S * cell + 66} ${T * cell}`, class: "mask-map",
                     width: S * cell + 66, height: T * cell, "aria-hidden": "true" },
    out);
}

function maskLabPanel(context) {
  const { block } = context;
  if (!abilities(block).square || !abilities(block).scores)
    return [el("p", { class: "fine" },
               "It needs scores, and the same words asking and answering.")];
  if (block.T > MOST_MASK_LAB)
    return [el("p", { class: "fine" }, `For up to ${MOST_MASK_LAB} words; with more, choose the `
                                       + "mask and how it is applied above.")];
  const { ways, difference } = maskLabNumbers(context);
  const names = Object.entries(MASKING);
  return [
    el("p", {}, `${context.live.hidden ? "This head's mask" : "A causal mask on this head"}, `
                + "applied in three ways; the sum of each row beside it."),
    figure("mask", "Three ways to mask, with the sums of the rows",
      () => el("div", { class: "three" }, names.map(([key, name]) =>
        el("div", {}, el("h4", {}, name), maskMap(context, ways[key])))),
      () => makeTable("The sum of every row", ["asks", ...names.map(([, name]) => name)],
        Array.from({ length: block.T }, (_, i) => [context.rows(i),
          ...names.map(([key]) => exactText(ways[key].sums[i]))]))),
    el("p", { class: "fine", id: "mask-said" },
      "Zeroing after softmax leaves rows that do not sum to 1. "
      + `Renormalised, they are those of −∞ before softmax (largest difference `
      + `${numberText(difference)}), but only after softmax has looked at hidden scores.`),
  ];
}

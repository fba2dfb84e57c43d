/* Colours: cividis for weights, on a fixed scale 0…1; for signed numbers, a map with 0 in the
 * middle. The lightness of both changes evenly, and colour-blind readers can read them. */

let cividis = []; // 33 colours, from the program, so that page, SVG and PNG have the same

/* Blue below 0, red above: ColorBrewer's RdBu, reversed (Brewer, Harrower). */
const diverging = [[5, 48, 97], [33, 102, 172], [67, 147, 195], [146, 197, 222], [209, 229, 240],
                   [247, 247, 247], [253, 219, 199], [244, 165, 130], [214, 96, 77], [178, 24, 43],
                   [103, 0, 31]];

const notANumber = [220, 30, 30];

/** The colour at 0…1 of a list of colours; outside is clamped. Rounded as draw.c does. */
function mapColour(map, part) {
  if (Number.isNaN(part)) return notANumber;
  const at = Math.min(Math.max(part, 0), 1) * (map.length - 1);
  const i = Math.min(Math.floor(at), map.length - 2), rest = at - i;
  return map[i].map((low, c) => Math.floor(low + (map[i + 1][c] - low) * rest + 0.5));
}

/** [r, g, b] of a number of this kind; range: the largest size, where 0 is the middle. */
function colourOf(x, kind, range) {
  if (kind === "weights") return mapColour(cividis, x);
  return mapColour(diverging, divergingPart(x, range));
}

/** The position of a signed number on its map: 0…1; infinities are at the ends. */
function divergingPart(x, range) {
  if (!Number.isFinite(x)) return x > 0 ? 1 : x < 0 ? 0 : NaN;
  return range > 0 ? 0.5 + (0.5 * x) / range : 0.5;
}

function cssColour([r, g, b]) {
  return `#${[r, g, b].map((c) => c.toString(16).padStart(2, "0")).join("")}`;
}

/** Black or white, whichever has more contrast (luminance by Rec. 709). */
function inkOn([r, g, b]) {
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 110 ? "#000000" : "#ffffff";
}

/** The largest finite absolute value of the numbers: the end of a signed map. */
function rangeOf(numbers) {
  let range = 0;
  for (const x of numbers) if (Number.isFinite(x)) range = Math.max(range, Math.abs(x));
  return range;
}

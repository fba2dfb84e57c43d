/* Numbers: decoded from JSON and base64, and formatted for people. The texts are those of the
 * terminal (number_text in draw.c), so that the same number looks the same everywhere. */

/** A number of the trace; values that JSON numbers cannot express are strings. */
function readNumber(x) {
  return typeof x === "number" ? x : { inf: Infinity, "-inf": -Infinity, nan: NaN }[x];
}

/** The bytes of a base64 text. */
function readBase64(text) {
  const binary = atob(text), bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

/** IEEE binary16, given as 16 bits, as a number. */
function readHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 25) * (1024 + fraction) : sign * 2 ** -24 * fraction;
}

/** A table of all 65,536 binary16 numbers. */
let halves = null;
function decodeHalves(bytes) {
  halves ??= Float32Array.from({ length: 65536 }, (_, bits) => readHalf(bits));
  const bits = new Uint16Array(bytes.buffer), out = new Float32Array(bits.length);
  for (let i = 0; i < out.length; i++) out[i] = halves[bits[i]];
  return out;
}

function stripZeros(text) {
  return text.endsWith("0") && text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** Whether a number, whose digits are `kept` and `rest`, is halfway between two shorter ones, and
 * `kept` is the even one. printf rounds such a number to `kept`; JavaScript rounds away from 0. */
function isEvenTie(kept, rest) {
  return /^50*$/.test(rest) && "02468".includes(kept.at(-1));
}

/** What printf writes for %.{digits}f. */
function fixed(x, digits) {
  // A tie has an integer here. Of other numbers, exact texts would make pictures of matrices slow.
  const tie = Number.isInteger(2 * x * 10 ** digits) && Math.abs(x) < 1e21;
  const exact = tie ? x.toFixed(100) : "", end = exact.indexOf(".") + 1 + digits;
  return exact && isEvenTie(exact.slice(0, end), exact.slice(end)) ? exact.slice(0, end)
                                                                   : x.toFixed(digits);
}

/** What printf writes for %.{digits}g. */
function general(x, digits) {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "nan" : x > 0 ? "inf" : "-inf";
  if (x === 0) return "0";
  const [exact, ten] = x.toExponential(100).split("e"), end = exact.indexOf(".") + digits;
  if (isEvenTie(exact.slice(0, end), exact.slice(end))) x = Number(`${exact.slice(0, end)}e${ten}`);
  const plain = x.toPrecision(digits); // with an exponent below 1e-6; %g has one below 1e-4
  if (!plain.includes("e") && Math.abs(Number(plain)) >= 1e-4) return stripZeros(plain);
  const [mantissa, power] = x.toExponential(digits - 1).split("e"), exponent = Number(power);
  const size = String(Math.abs(exponent)).padStart(2, "0");
  return `${stripZeros(mantissa)}e${exponent < 0 ? "-" : "+"}${size}`;
}

/** "0.3986", "-57.1016", "5.46e-20", "0", "-inf": short enough for a sentence. */
function numberText(x) {
  const size = Math.abs(x);
  if (!Number.isFinite(x)) return general(x, 3);
  return x === 0 ? "0" : size < 5e-4 || size >= 1e5 ? general(x, 3) : fixed(x, 4);
}

/** All of it: the fewest digits that read back as the same float, as in the JSON. */
function exactText(x) {
  let digits = Math.fround(x) === x ? 6 : 9;
  while (digits < 9 && Math.fround(Number(x.toPrecision(digits))) !== x) digits++;
  return general(x, digits);
}

/** A number in a cell of the heat-map; room in pixels. "" where there is no room. */
function cellText(x, kind, room) {
  if (Number.isNaN(x)) return room >= 34 ? "nan" : "";
  if (kind === "ids") return room >= 8 * String(x).length ? String(x) : "";
  if (kind === "weights") {
    if (room >= 50) return fixed(x, 3);
    return room >= 34 ? (x > 0.995 ? fixed(x, 1) : fixed(x, 2)).replace(/^0/, "") : "";
  }
  if (kind === "difference") { // of two weights: between −1 and 1
    const text = Math.abs(x) < 5e-4 ? "0" : fixed(x, room >= 50 ? 3 : 2);
    return room >= 50 ? text : room >= 34 ? text.replace(/^(-?)0(?=\.)/, "$1") : "";
  }
  if (!Number.isFinite(x)) return room >= 34 ? (x > 0 ? "∞" : "−∞") : "";
  const size = Math.abs(x);
  const text = size >= 1e5 || (x !== 0 && size < 5e-4) ? general(x, 2)
             : fixed(x, size >= 100 ? 1 : size >= 10 ? 2 : 3);
  return room >= 8 * text.length ? text : room >= 34 ? general(x, 2).slice(0, 5) : "";
}

/** "40 %". */
function percent(x) {
  return `${Math.round(100 * x)} %`;
}

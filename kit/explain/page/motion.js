/* Pictures that move once. A picture is drawn as it looks at the end; its motion says from where
 * its parts came. So a page that is printed, or read with reduced motion, shows the same. */

const motion = { running: [], parts: [] };

/** Whether the reader has asked for less motion. */
function isStill() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

function stopMotion() {
  for (const animation of motion.running) animation.cancel();
  motion.running = [];
}

/** Plays the parts: a list of {of: element, from: keyframes, at, for: in ms, easing}. */
function playMotion(parts = motion.parts) {
  stopMotion();
  motion.parts = parts;
  if (isStill()) return;
  motion.running = parts.map((p) => p.of.animate(p.from, {
    delay: p.at, duration: p.for ?? 500, easing: p.easing ?? "ease-out", fill: "backwards" }));
}

/** The motions of a picture: parts that appear one after the other. */
const appears = { opacity: 0 };
const unfolds = { clipPath: "inset(0 100% 0 0)" };
const fills = { clipPath: "inset(0 0 100% 0)" };
const pops = { opacity: 0, transform: "scale(.4)" };

function inTurn(elements, from, { at = 0, each = 120, length = 500 } = {}) {
  const pause = Math.min(each, 2400 / Math.max(elements.length, 1)); // many parts: a little faster
  return elements.map((of, i) => ({ of, from, at: at + i * pause, for: length }));
}

// Charts over time, drawn as SVG. Each has its latest figures in words, for readers that see no picture.

import { element, shape } from "./dom.js";
import { time } from "./format.js";

const WIDTH = 440;
const HEIGHT = 160;
const LEFT = 52;
const BOTTOM = 20;
const TOP = 8;

// lines: [{name, points: [[at, value | null]], kind}]; marks: [{at, label}]; span: seconds until `now`.
export function timeChart({ now, span, lines, marks = [], format, most = null, gap = 30 }) {
  const peak = Math.max(0, ...lines.flatMap((line) => line.points.map(([, value]) => value ?? 0)));
  const top = most ?? niceTop(peak);
  const x = (at) => LEFT + ((at - (now - span)) / span) * (WIDTH - LEFT - 4);
  const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  const drawing = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words(lines, format) });
  for (const share of [0, 0.5, 1]) {
    const at = y(top * share);
    drawing.append(shape("line", { class: "grid", x1: LEFT, x2: WIDTH - 4, y1: at, y2: at }));
    drawing.append(shape("text", { class: "axis", x: LEFT - 6, y: at + 4, "text-anchor": "end" }, format(top * share)));
  }
  for (const share of [0, 0.5, 1]) {
    const at = now - span * (1 - share);
    const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
    drawing.append(shape("text", { class: "axis", x: x(at), y: HEIGHT - 4, "text-anchor": anchor }, time(at)));
  }
  for (const mark of marks.filter(({ at }) => at > now - span && at <= now)) {
    const line = shape("line", { class: "mark", x1: x(mark.at), x2: x(mark.at), y1: TOP, y2: HEIGHT - BOTTOM });
    drawing.append(shape("g", {}, shape("title", {}, mark.label), line));
  }
  lines.forEach((line, place) => {
    for (const piece of pieces(line.points, gap)) {
      const path = piece.map(([at, value], step) => `${step ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`);
      const attributes = { class: `line line-${place}`, d: path.join("") };
      drawing.append(
        piece.length > 1
          ? shape("path", attributes)
          : shape("circle", { class: `dot line-${place}`, cx: x(piece[0][0]), cy: y(piece[0][1]), r: 2.5 }),
      );
    }
  });
  const legend = lines.map((line, place) =>
    element("li", {}, element("span", { class: `swatch line-${place}`, "aria-hidden": "true" }), latest(line, format)),
  );
  return [drawing, element("ul", { class: "legend" }, legend)];
}

function latest(line, format) {
  const point = line.points.findLast(([, value]) => value !== null);
  return `${line.name}: ${point === undefined ? "none in the last hour" : format(point[1])}`;
}

function words(lines, format) {
  return lines.map((line) => latest(line, format)).join("; ");
}

// Cuts a line where nothing is known for longer than `gap` seconds.
function pieces(points, gap) {
  const cut = [];
  let last = -Infinity;
  for (const [at, value] of points) {
    if (value === null) continue;
    if (at - last > gap || !cut.length) cut.push([]);
    cut.at(-1).push([at, value]);
    last = at;
  }
  return cut;
}

function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

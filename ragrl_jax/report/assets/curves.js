// Charts, drawn at the size they are shown, so that lines and letters stay crisp.
const HEIGHT = 164, LEFT = 46, RIGHT = 10, TOP = 16, BOTTOM = 22, TONES = 8;
const RUNS = DATA.curves.runs;
const charts = [], hidden = new Set();  // hidden: runs that the reader has switched off
const DENSE = 30;                       // points from which on a line needs no dots
let smooth = 1;                         // steps that a bold line is the mean of

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const units = [0.5, 1, 2, 2.5, 5, 10].map((m) => m * power), place = units.findIndex((unit) => unit >= raw * 0.999);
  const every = (unit) => {
    const found = [];
    for (let i = Math.ceil(low / unit - 1e-9); i * unit <= high + unit * 1e-9; i++) found.push(i === 0 ? 0 : i * unit);
    return found;
  };
  const found = every(units[place]);
  return found.length > 1 ? found : every(units[place - 1]);  // one tick alone tells no scale
}

// What stands beside the ticks: short enough for the margin, and no two alike.
function labels(found) {
  const said = (tick, style) => tick.toLocaleString("en-US", style).replace("-", "−");
  const short = found.map((tick) => Math.abs(tick) < 1e5 || Math.abs(tick) >= 1e7 ? tidy(tick) :
    said(tick, {notation: "compact", maximumSignificantDigits: 3}));
  return new Set(short).size === found.length ? short : found.map((tick) => said(tick, {maximumSignificantDigits: 6}));
}

// The mean of the last `width` known values; unknown places stay unknown.
function running(values, width) {
  const recent = [];
  return values.map((value) => {
    if (value === null) return null;
    recent.push(value);
    if (recent.length > width) recent.shift();
    return recent.reduce((sum, item) => sum + item, 0) / recent.length;
  });
}

// Places of the unbroken stretches: [3, null, 4, 5] → [[0], [2, 3]].
function stretches(values) {
  const found = [];
  values.forEach((value, place) => {
    if (value === null) return;
    if (place && values[place - 1] !== null) found.at(-1).push(place); else found.push([place]);
  });
  return found;
}

function range(columns, unit) {
  const known = columns.flat().filter((value) => value !== null);
  let low = known.length ? Math.min(...known) : 0, high = known.length ? Math.max(...known) : 0;
  if (unit === "share" && low >= 0 && high <= 1 && high > 0.5) return [0, 1];
  if (low > 0 && low < 0.5 * high) low = 0;
  if (low === high) [low, high] = low === 0 ? [0, 1] : [Math.min(0, 2 * low), Math.max(0, 2 * high)];
  const room = 0.06 * (high - low);
  return [low === 0 ? 0 : low - room, high === 0 ? 0 : high + room];
}

// Where the known value nearest to a step stands.
function nearest(steps, step, values = steps) {
  let best = -1;
  steps.forEach((candidate, i) => {
    if (values[i] !== null && (best < 0 || Math.abs(candidate - step) < Math.abs(steps[best] - step))) best = i;
  });
  return best;
}

class Curves {
  constructor(panel, parent, height = HEIGHT) {
    this.panel = panel;
    this.height = height;
    this.all = panel.series.map((series, i) => {
      const run = RUNS[series.run], values = run.columns[series.column], joined = run.joined.includes(series.column);
      // What is measured now and then keeps only its own steps; of all else, what is missing leaves a gap.
      const places = values.map((_, place) => place).filter((place) => !joined || values[place] !== null);
      const tone = RUNS.length > 1 ? series.run : i;
      return {label: series.label, run: series.run, joined, tone: `line${tone % TONES}${tone >= TONES ? " dashed" : ""}`,
              values: places.map((place) => values[place]), steps: places.map((place) => run.steps[place])};
    });
    this.card = element("div", "card chart", null, parent);
    const top = element("div", "top", null, this.card);
    element("h3", "", panel.title, top);
    this.read = element("div", "read", "", top);
    if (panel.note) element("div", "note", panel.note, this.card);
    if (this.all.length > 1 && RUNS.length === 1) legend(this.all, element("div", "legend", null, this.card));
    this.box = element("div", "plot", null, this.card);
    this.box.addEventListener("pointermove", (event) => {
      const box = this.box.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      const [first, last] = this.span;
      charts.forEach((chart) => chart.point(first + Math.min(1, Math.max(0, share)) * (last - first)));
    });
    this.box.addEventListener("pointerleave", () => charts.forEach((chart) => chart.point(null)));
    charts.push(this);
    this.point(null);
  }

  get lines() {
    return this.all.filter((line) => !hidden.has(line.run));
  }

  get span() {
    const ends = RUNS.filter((run) => run.steps.length).map((run) => [run.steps[0], run.steps.at(-1)]);
    const first = Math.min(...ends.map((end) => end[0]));
    return [first, Math.max(first + 1, ...ends.map((end) => end[1]))];
  }

  draw(again = false) {
    const width = this.box.clientWidth;
    if (!width || (width === this.width && !again)) return;
    this.width = width;
    const [first, last] = this.span;
    const [low, high] = range(this.lines.map((line) => line.values), this.panel.unit);
    const x = (step) => LEFT + (step - first) / (last - first) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (high - value) / (high - low) * (this.height - TOP - BOTTOM);
    this.x = x; this.y = y;
    const known = (line) => line.values.filter((value) => value !== null);
    const words = this.lines.map((line) => `${line.label} from ${tidy(known(line)[0])} to ${tidy(known(line).at(-1))}`);
    const svg = drawn("svg", {viewBox: `0 0 ${width} ${this.height}`, height: this.height, role: "img",
                              "aria-label": `${this.panel.title}: ${words.join(", ")}`});
    scale(svg, y, ticks(low, high, this.height > 200 ? 5 : 3), width);
    drawn("text", {x: 0, y: 8}, svg, this.panel.unit);
    steps(svg, x, first, last, width, this.height);
    for (const step of RUNS.length > 1 ? [] : RUNS[0].rollbacks) {
      const line = drawn("line", {class: "rollback", x1: x(step), x2: x(step), y1: TOP, y2: this.height - BOTTOM}, svg);
      drawn("title", {}, line, `Returned to an earlier checkpoint after step ${step}`);
    }
    for (const line of [...this.lines].reverse()) this.#line(svg, line, x, y);  // the first lies on top
    this.mark = drawn("g", {}, svg);
    this.box.replaceChildren(svg);
  }

  #line(svg, line, x, y) {
    // Two measurements say nothing about the way between them.
    const few = line.joined && line.values.length < 3 ? " few" : "";
    const group = drawn("g", {class: line.tone + few}, svg), width = line.joined ? 1 : smooth, parts = stretches(line.values);
    const path = (values) => parts.map((part) => part.map(
      (place, i) => `${i ? "L" : "M"}${x(line.steps[place]).toFixed(1)} ${y(values[place]).toFixed(1)}`).join("")).join("");
    if (width > 1) drawn("path", {class: "raw", d: path(line.values)}, group);
    drawn("path", {class: "curve", d: path(running(line.values, width))}, group);
    const dots = line.values.length < DENSE && width === 1 && (few || RUNS.length === 1) ? parts.flat() :
      parts.filter((part) => part.length === 1).flat();  // a value between two gaps draws no line
    for (const place of dots) drawn("circle", {class: "dot", cx: x(line.steps[place]), cy: y(line.values[place]), r: 2.6}, group);
  }

  point(step) {
    const parts = this.lines.map((line) => {
      const place = step === null ? line.values.findLastIndex((value) => value !== null) :
        nearest(line.steps, step, line.values);
      return {line, step: line.steps[place], value: line.values[place] ?? null};
    });
    this.read.replaceChildren(step !== null && parts.length ? `step ${parts[0].step}: ` : "");
    parts.forEach((part, i) => {
      if (i) this.read.append(" · ");
      element("span", parts.length > 1 ? part.line.tone : "", tidy(part.value), this.read);
    });
    if (!this.mark) return;
    this.mark.replaceChildren();
    if (step === null || !parts.length) return;
    drawn("line", {class: "cursor", x1: this.x(parts[0].step), x2: this.x(parts[0].step), y1: TOP, y2: this.height - BOTTOM}, this.mark);
    for (const part of parts.filter((part) => part.value !== null)) {
      const group = drawn("g", {class: part.line.tone}, this.mark);
      drawn("circle", {class: "dot", cx: this.x(part.step), cy: this.y(part.value), r: 3.5}, group);
    }
  }
}

function legend(lines, parent) {
  for (const line of lines) {
    const item = element("span", "", null, parent);
    element("i", line.tone, null, item);
    item.append(visible(line.label));
  }
}

function scale(svg, y, found, width) {
  labels(found).forEach((label, i) => {
    drawn("line", {class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(found[i]), y2: y(found[i])}, svg);
    drawn("text", {x: LEFT - 7, y: y(found[i]) + 4, "text-anchor": "end"}, svg, label);
  });
}

function steps(svg, x, first, last, width, height) {
  const all = ticks(first, last, Math.max(2, Math.floor(width / 80))).filter((tick) => Number.isInteger(tick));
  drawn("line", {class: "base", x1: LEFT, x2: width - RIGHT, y1: height - BOTTOM, y2: height - BOTTOM}, svg);
  for (const tick of all) {
    if (x(tick) > width - 44) continue;
    drawn("text", {x: x(tick), y: height - 6, "text-anchor": "middle"}, svg, tick.toLocaleString("en-US"));
  }
  drawn("text", {x: width, y: height - 6, "text-anchor": "end"}, svg, "step");
}

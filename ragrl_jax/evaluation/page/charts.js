// Curves and the stacked time breakdown, drawn at the size they are shown, so that lines and letters stay crisp.
const HEIGHT = 164, LEFT = 46, RIGHT = 10, TOP = 16, BOTTOM = 22;
const charts = [];

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 2.5, 5, 10].map((m) => m * power).find((candidate) => candidate >= raw * 0.999);
  const found = [];
  for (let i = Math.ceil(low / unit - 1e-9); i * unit <= high + unit * 1e-9; i++) found.push(i === 0 ? 0 : i * unit);
  return found;
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

function range(columns, unit) {
  const known = columns.flat().filter((value) => value !== null);
  let low = Math.min(...known), high = Math.max(...known);
  if (unit === "share" && low >= 0 && high <= 1 && high > 0.25) return [0, 1];
  if (low > 0 && low < 0.5 * high) low = 0;
  if (low === high) [low, high] = low === 0 ? [0, 1] : [Math.min(0, 2 * low), Math.max(0, 2 * high)];
  const room = 0.06 * (high - low);
  return [low === 0 ? 0 : low - room, high === 0 ? 0 : high + room];
}

function nearest(steps, step) {
  let best = 0;
  steps.forEach((candidate, i) => { if (Math.abs(candidate - step) < Math.abs(steps[best] - step)) best = i; });
  return best;
}

class Curves {
  constructor(panel, parent, height = HEIGHT) {
    this.panel = panel;
    this.height = height;
    this.lines = panel.series.map((series, i) => {
      // Every line keeps only its own steps: an evaluation is measured now and then.
      const all = DATA.curves.columns[series.column];
      const places = all.map((_, place) => place).filter((place) => all[place] !== null);
      const values = places.map((place) => all[place]);
      return {label: series.label, tone: "line" + Math.min(i, 4), values, steps: places.map((p) => DATA.curves.steps[p])};
    });
    this.card = element("div", "card chart", null, parent);
    const top = element("div", "top", null, this.card);
    element("h3", "", panel.title, top);
    this.read = element("div", "read", "", top);
    if (panel.note) element("div", "note", panel.note, this.card);
    if (this.lines.length > 1) {
      const legend = element("div", "legend", null, this.card);
      for (const line of this.lines) {
        const item = element("span", "", null, legend);
        element("i", line.tone, null, item);
        item.append(line.label);
      }
    }
    this.box = element("div", "", null, this.card);
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

  get span() {
    const steps = DATA.curves.steps;
    return [steps[0], Math.max(steps[steps.length - 1], steps[0] + 1)];
  }

  draw() {
    const width = this.box.clientWidth;
    if (!width || width === this.width) return;
    this.width = width;
    const [first, last] = this.span;
    const [low, high] = range(this.lines.map((line) => line.values), this.panel.unit);
    const x = (step) => LEFT + (step - first) / (last - first) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (high - value) / (high - low) * (this.height - TOP - BOTTOM);
    this.x = x; this.y = y;
    const words = this.lines.map((line) => `${line.label} from ${tidy(line.values[0])} to ${tidy(line.values.at(-1))}`);
    const svg = drawn("svg", {viewBox: `0 0 ${width} ${this.height}`, height: this.height, role: "img",
                              "aria-label": `${this.panel.title}: ${words.join(", ")}`});
    for (const tick of ticks(low, high, this.height > 200 ? 5 : 3)) {
      drawn("line", {class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick)}, svg);
      drawn("text", {x: LEFT - 7, y: y(tick) + 4, "text-anchor": "end"}, svg, tidy(tick));
    }
    drawn("text", {x: 0, y: 8}, svg, this.panel.unit);
    steps(svg, x, first, last, width, this.height);
    for (const line of [...this.lines].reverse()) this.#line(svg, line, x, y);  // the first lies on top
    this.mark = drawn("g", {}, svg);
    this.box.replaceChildren(svg);
  }

  #line(svg, line, x, y) {
    const group = drawn("g", {class: line.tone}, svg);
    const path = (values) => values.map((v, i) => `${i ? "L" : "M"}${x(line.steps[i]).toFixed(1)} ${y(v).toFixed(1)}`).join("");
    const sparse = line.values.length < 30;
    if (!sparse) drawn("path", {class: "raw", d: path(line.values)}, group);
    const bold = sparse ? line.values : running(line.values, Math.max(5, Math.round(line.values.length / 25)));
    drawn("path", {class: "curve", d: path(bold)}, group);
    if (sparse) line.values.forEach((v, i) => drawn("circle", {class: "dot", cx: x(line.steps[i]), cy: y(v), r: 2.6}, group));
  }

  point(step) {
    const parts = this.lines.map((line) => {
      const place = step === null ? line.values.length - 1 : nearest(line.steps, step);
      return {line, step: line.steps[place], value: line.values[place]};
    });
    this.read.textContent = parts.map((part) => tidy(part.value)).join(" · ");
    if (step !== null) this.read.textContent = `step ${parts[0].step}: ${this.read.textContent}`;
    if (!this.mark) return;
    this.mark.replaceChildren();
    if (step === null) return;
    drawn("line", {class: "cursor", x1: this.x(parts[0].step), x2: this.x(parts[0].step), y1: TOP, y2: this.height - BOTTOM}, this.mark);
    for (const part of parts) {
      const group = drawn("g", {class: part.line.tone}, this.mark);
      drawn("circle", {class: "dot", cx: this.x(part.step), cy: this.y(part.value), r: 3.5}, group);
    }
  }
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

class Stack {
  constructor(time, parent) {
    this.time = time;
    this.box = element("div", "", null, parent);
    this.read = element("p", "small", "", parent);
    this.totals = time.steps.map((_, i) => time.parts.reduce((sum, part) => sum + (part.seconds[i] ?? 0), 0));
    const sorted = [...this.totals].sort((a, b) => a - b);
    // A few slow steps (the first compiles) would flatten all others.
    this.top = Math.min(sorted.at(-1), 1.6 * sorted[Math.floor(0.9 * (sorted.length - 1))]) || 1;
    this.box.addEventListener("pointermove", (event) => {
      const box = this.box.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      this.say(Math.min(time.steps.length - 1, Math.max(0, Math.floor(share * time.steps.length))));
    });
    this.box.addEventListener("pointerleave", () => this.say(null));
    charts.push(this);
    this.say(null);
  }

  point() {}

  say(place) {
    const cut = this.totals.filter((total) => total > this.top * 1.001).length;
    this.read.textContent = place !== null ? `Step ${this.time.steps[place]}: ` + tidy(this.totals[place]) + " s = " +
      this.time.parts.map((part) => `${part.name} ${tidy(part.seconds[place])}`).join(" + ") :
      cut ? `${cut} ${cut === 1 ? "step is" : "steps are"} taller than the axis (▲); the tallest took ${tidy(Math.max(...this.totals))} s.` :
      "Point at a bar to read it off.";
  }

  draw() {
    const width = this.box.clientWidth, height = 240;
    if (!width || width === this.width) return;
    this.width = width;
    const svg = drawn("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img",
                              "aria-label": `Seconds of each step by part; most go to ${this.time.bottleneck}`});
    const y = (value) => TOP + (1 - Math.min(1, value / (1.04 * this.top))) * (height - TOP - BOTTOM);
    for (const tick of ticks(0, this.top, 4)) {
      drawn("line", {class: "rule", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick)}, svg);
      drawn("text", {x: LEFT - 7, y: y(tick) + 4, "text-anchor": "end"}, svg, tidy(tick));
    }
    drawn("text", {x: 0, y: 8}, svg, "seconds");
    const count = this.time.steps.length, slot = (width - LEFT - RIGHT) / count, gap = slot > 4 ? Math.min(4, 0.16 * slot) : 0;
    for (let i = 0; i < count; i++) {
      let below = 0;
      this.time.parts.forEach((part, p) => {
        const value = Math.min(part.seconds[i] ?? 0, this.top * 1.04 - below);
        if (value > 0) drawn("rect", {class: "part" + p % 8, x: LEFT + i * slot + gap / 2, width: Math.max(slot - gap, 0.5),
                                      y: y(below + value), height: Math.max(0, y(below) - y(below + value))}, svg);
        below += Math.max(0, value);
      });
      if (this.totals[i] > this.top * 1.001) drawn("text", {x: LEFT + (i + 0.5) * slot, y: TOP - 3, "text-anchor": "middle"}, svg, "▲");
    }
    const first = this.time.steps[0], last = this.time.steps.at(-1);
    steps(svg, (step) => LEFT + (last > first ? (step - first) / (last - first) : 0) * (count - 1) * slot + slot / 2, first,
          Math.max(last, first + 1e-6), width, height);
    this.box.replaceChildren(svg);
  }
}

const curvesBox = document.getElementById("curves"), more = document.getElementById("more");
const featured = document.getElementById("featured");
if (curvesBox) DATA.curves.panels.forEach((panel) => {
  if (panel.featured && featured) new Curves(panel, featured, 300); else new Curves(panel, curvesBox);
});
if (more) {
  DATA.curves.more.forEach((panel) => new Curves(panel, more.querySelector(".grid")));
  more.addEventListener("toggle", () => charts.forEach((chart) => chart.draw()));
}
if (DATA.time) new Stack(DATA.time, document.getElementById("stack"));
const redraw = () => charts.forEach((chart) => chart.draw());
addEventListener("resize", redraw);
redraw();

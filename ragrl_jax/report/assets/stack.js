// The seconds of each step, its parts stacked.
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

  draw(again = false) {
    const width = this.box.clientWidth, height = 240;
    if (!width || (width === this.width && !again)) return;
    this.width = width;
    const svg = drawn("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img",
                              "aria-label": `Seconds of each step by part; most go to ${this.time.bottleneck}`});
    const y = (value) => TOP + (1 - Math.min(1, value / (1.04 * this.top))) * (height - TOP - BOTTOM);
    scale(svg, y, ticks(0, this.top, 4), width);
    drawn("text", {x: 0, y: 8}, svg, "seconds");
    const count = this.time.steps.length, slot = (width - LEFT - RIGHT) / count, gap = slot > 4 ? Math.min(4, 0.16 * slot) : 0;
    for (let i = 0; i < count; i++) {
      let below = 0;
      this.time.parts.forEach((part) => {
        const value = Math.min(part.seconds[i] ?? 0, this.top * 1.04 - below);
        if (value > 0) drawn("rect", {class: "part" + part.tone, x: LEFT + i * slot + gap / 2, width: Math.max(slot - gap, 0.5),
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

if (DATA.time) {
  const stack = new Stack(DATA.time, document.getElementById("stack"));
  stack.draw();
}

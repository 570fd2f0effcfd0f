// The charts of the page, and what a reader can do with all of them: smooth them, switch runs off, take them away.
const WIDTHS = [1, 3, 5, 9, 15, 25, 41, 65, 101, 165];
const redraw = (again) => charts.forEach((chart) => chart.draw(again === true));

function smoothing(parent) {
  const most = Math.max(...RUNS.map((run) => run.steps.length));
  const widths = WIDTHS.filter((width) => width === 1 || width <= most / 2);
  if (widths.length < 2) return;
  // Long runs are smoothed from the start; in short ones every step can be seen.
  const start = most < DENSE ? 0 : widths.findLastIndex((width) => width <= Math.max(5, most / 25));
  const label = element("label", "", "Smoothing", parent), row = element("span", "slider", null, label);
  const slider = element("input", "", null, row), said = element("output", "", null, row);
  Object.assign(slider, {type: "range", min: 0, max: widths.length - 1, step: 1, value: start});
  const change = () => {
    smooth = widths[slider.value];
    const unit = Math.max(...RUNS.map((run) => run.every)) > 1 ? "points" : "steps";
    said.textContent = smooth === 1 ? "none" : `mean of ${smooth} ${unit}`;
    slider.setAttribute("aria-valuetext", said.textContent);
    redraw(true);
  };
  slider.addEventListener("input", change);
  change();
}

// The curves as drawn, before smoothing: a line a step, of several runs with their names.
function csv() {
  const several = RUNS.length > 1, names = [...new Set(RUNS.flatMap((run) => Object.keys(run.columns)))].sort();
  const lines = [[...(several ? ["run"] : []), "step", ...names]];
  for (const run of RUNS) run.steps.forEach((step, place) => lines.push(
    [...(several ? [run.name] : []), step, ...names.map((name) => run.columns[name]?.[place])]));
  return lines.map((line) => line.map(cell).join(",") + "\n").join("");
}

function switches(parent) {
  const box = element("div", "switches", null, parent);
  RUNS.forEach((run, place) => {
    const button = presser("plain", null, box, () => {
      if (!hidden.delete(place)) hidden.add(place);
      button.setAttribute("aria-pressed", String(!hidden.has(place)));
      redraw(true);
      charts.forEach((chart) => chart.point(null));
    });
    element("i", `swatch line${place % TONES}`, null, button);
    button.append(visible(run.name));
    button.setAttribute("aria-pressed", "true");
  });
}

const featured = document.getElementById("featured"), more = document.getElementById("more");
const reading = document.getElementById("reading");
for (const panel of DATA.curves.panels) {
  if (panel.featured && featured) new Curves(panel, featured, 300);
  else new Curves(panel, document.getElementById("curves"));
}
if (more) {
  const grids = more.querySelectorAll(".grid");
  DATA.curves.more.forEach((part, i) => part.charts.forEach((panel) => new Curves(panel, grids[i])));
  more.addEventListener("toggle", redraw);
}
if (reading) {
  if (RUNS.length > 1) switches(reading);
  smoothing(reading);
  const name = RUNS.length > 1 ? "curves.csv" : `${RUNS[0].name}.csv`;
  downloads(reading, name, csv, "The points of all curves, before smoothing; metrics.jsonl has every digit and the text");
}
addEventListener("resize", redraw);
redraw();

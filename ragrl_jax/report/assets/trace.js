// One episode of an evaluation: its segments with quotes and citations, and what a judge said of its steps.
const MARKS = {
  found: "a quote that stands there word for word", near: "a quote that stands there nearly so", missing: "a quote that stands nowhere",
  cite: "a citation", cited: "what it cites",
};

class Trace {
  constructor(root, trace) {
    this.seen = new Set();
    const talk = element("div", "", null, root);
    this.legend = element("p", "small legend-marks", null, talk);
    trace.segments.forEach((segment, place) => this.#segment(talk, segment, place));
    for (const kind of Object.keys(MARKS)) if (this.seen.has(kind)) {
      element("span", "mark " + kind, MARKS[kind], this.legend);
      this.legend.append(" ");
    }
    if (!this.seen.size) this.legend.remove();
    if (trace.judged.length) this.#judged(root, trace.judged);
    if (trace.facts) {
      const box = element("details", "", null, root);
      element("summary", "", "Facts that were asked of a model", box);
      element("pre", "", trace.facts, box);
    }
  }

  #segment(parent, segment, place) {
    const model = segment.owner === "model";
    const box = element("div", "segment " + (place === 0 && !model ? "prompt" : segment.owner), null, parent);
    const who = element("div", "who", null, box);
    element("b", "", model ? "Model" : place === 0 ? "Prompt" : "Environment", who);
    const stop = {length: "cut at its length", eos: "ended its turn"}[segment.stop] ?? (segment.stop ? `stopped at ${segment.stop}` : "");
    if (model && stop) who.append(visible(" · " + stop));
    if (segment.found) who.append(visible(` · answers “${segment.query ?? ""}”` + (VERDICTS[segment.verdict] ? `, ${VERDICTS[segment.verdict]}` : "")));
    if (!segment.found) { this.#text(box, segment.runs, place === 0 ? 300 : 1500); return; }
    if (!segment.found.length) element("div", "dim", "Nothing was found.", box);
    segment.found.forEach((passage, i) => {
      const item = element("div", "passage" + (passage.cited ? " is-cited" : ""), null, box), title = element("div", "title", null, item);
      element("b", "", `${i + 1}  ${passage.title}`, title);
      const marks = element("span", "score", null, title);
      if (passage.cited) { this.seen.add("cited"); element("span", "mark cited", "cited", marks); marks.append(" "); }
      if (passage.gold) element("span", "gold", "★ gold ", marks);
      if (passage.score !== null) marks.append(tidy(passage.score));
      this.#text(item, passage.runs, 420, "");
    });
  }

  // Long texts are folded, but to what is marked in them.
  #text(parent, runs, most, tone = "text") {
    const body = element("div", tone, null, parent);
    let length = 0, marked = Infinity, lines = 0;
    for (const [text, kind, said] of runs) {
      if (kind) {
        this.seen.add(kind);
        marked = Math.min(marked, length);
        const mark = element("span", "mark " + kind, null, body);
        mark.title = visible(said);
        this.#tagged(text, mark);
      } else this.#tagged(text, body);
      length += text.length;
      lines += text.split("\n").length - 1;
    }
    if (length <= most && lines <= 20) return;
    fold(body, parent);
    if (marked > most && marked < Infinity) parent.querySelector(":scope > .unfold").click();
  }

  #tagged(text, parent) {
    let at = 0;
    for (const match of text.matchAll(TAG)) {
      parent.append(visible(text.slice(at, match.index)));
      element("span", "tag", match[0], parent);
      at = match.index + match[0].length;
    }
    parent.append(visible(text.slice(at)));
  }

  #judged(root, steps) {
    const box = element("div", "judged", null, root);
    element("h4", "", "What the judge said", box);
    for (const step of steps) {
      const line = element("details", "", null, box), head = element("summary", "", null, line);
      const [tone, sign] = step.verdict === null ? ["unscored", "○ no verdict"] : step.verdict >= 0.5 ? ["right", "✓ follows"] : ["wrong", "✗ does not follow"];
      element("span", tone, sign + (step.verdict > 0 && step.verdict < 1 ? ` (${tidy(step.verdict)})` : ""), head);
      head.append(visible(` · ${step.name}: `));
      element("span", "", step.claim.length > 140 ? step.claim.slice(0, 140) + " …" : step.claim, head);
      element("div", "small", "The step", line);
      element("pre", "", step.claim, line);
      element("div", "small", "What it was judged against", line);
      element("pre", "", step.basis, line);
    }
  }
}

// The questions of one evaluation or of two: a table that filters, searches and sorts, and one question with its episodes.
const AT_A_TIME = 100;
const TWO = DATA.names.length > 1;
const RESULTS = TWO ?
  {won: "won", lost: "lost", right: "right both times", wrong: "wrong both times", unjudged: "no verdict", failed: "failed"} :
  {right: "right", wrong: "wrong", silent: "no answer", unjudged: "no verdict", failed: "failed"};
const SIGNS = {won: "▲", lost: "▼", right: "✓", wrong: "✗", silent: "∅", unjudged: "○", failed: "!"};
const TONES = {won: "right", lost: "wrong", right: "right", wrong: "wrong", silent: "wrong", unjudged: "unscored", failed: "unscored"};

class Questions {
  constructor(root, article, index) {
    Object.assign(this, {index, article, opened: new Map()});
    this.count = index.id.length;
    this.chosen = {result: "", by: "em", source: "", hops: "", ended: "", words: "", held: false};
    this.sort = {column: -1, down: true};
    this.texts = [];  // lower case, made where they are first searched
    this.failed = index.ends.indexOf("failed");
    this.#controls(element("div", "tools", null, root));
    this.said = element("p", "small", null, root);
    const table = element("table", "answers questions", null, element("div", "scroll tall", null, root));
    this.columns = this.#columns();
    const head = element("tr", "", null, element("thead", "", null, table));
    this.heads = this.columns.map((column, place) => {
      const cell = element("th", column.tone ?? "", null, head);
      cell.scope = "col";
      presser("sort", column.title, cell, () => this.#sortBy(place));
      return cell;
    });
    this.body = element("tbody", "", null, table);
    this.body.addEventListener("click", (event) => {
      const line = event.target.closest("tr");
      if (line && !getSelection().toString()) this.open(Number(line.dataset.at), true);
    });
    this.more = presser("plain", "Show more", root, () => { this.most += AT_A_TIME; this.#draw(); });
    addEventListener("hashchange", () => this.#fromAddress(true));
    this.show();
    if (!this.#fromAddress(true) && this.found.length) this.open(this.found.find((at) => index.trace[at] >= 0) ?? this.found[0], false);
  }

  // ---- what is asked for -------------------------------------------------------------------------------------------

  #choice(tools, title, options, key) {
    const label = element("label", "", title, tools), select = element("select", "", null, label);
    for (const [value, text] of options) element("option", "", text, select).value = value;
    select.addEventListener("change", () => { this.chosen[key] = select.value; this.show(); });
  }

  #controls(tools) {
    const {index} = this, all = ["", "all"];
    this.#choice(tools, "Result", [all, ...Object.entries(RESULTS)], "result");
    const binary = Object.entries(DATA.measures).filter(([name]) => name !== "f1");
    if (binary.length > 1) this.#choice(tools, "Right by", binary.map(([name, label]) => [name, label.toLowerCase()]), "by");
    if (index.sources.length > 1) this.#choice(tools, "Set", [all, ...index.sources.map((name, i) => [i, name || "(no name)"])], "source");
    const hops = [...new Set(index.hops)].filter((n) => n !== null).sort((a, b) => a - b);
    if (hops.length > 1) this.#choice(tools, "Hops", [all, ...hops.map((n) => [n, n])], "hops");
    if (index.ends.length > 1) this.#choice(tools, "Ended by", [all, ...index.ends.map((name, i) => [i, name || "(nothing)"])], "ended");
    searcher(tools, "Search", "words, an answer, an id", (words) => { this.chosen.words = words.toLowerCase(); this.show(); });
    const held = index.trace.filter((trace) => trace >= 0).length;
    if (held && held < this.count) {
      const box = element("label", "check", null, tools), check = element("input", "", null, box);
      check.type = "checkbox";
      box.append(" with episode");
      check.addEventListener("change", () => { this.chosen.held = check.checked; this.show(); });
    }
    downloads(tools, `${DATA.names.join("_and_")}.csv`, () => this.csv(), "The questions chosen here, one a line");
  }

  // One run: right, wrong, no answer, no verdict or failed. Two: what became of it.
  result(at) {
    const {sides} = this.index, by = this.chosen.by;
    if (sides.some((side) => side.ended[at] === this.failed && this.failed >= 0)) return "failed";
    if (sides.some((side) => side[by][at] === null)) return "unjudged";
    const right = sides.map((side) => side[by][at] > 0);
    if (TWO) return right[0] ? right[1] ? "right" : "lost" : right[1] ? "won" : "wrong";
    return right[0] ? "right" : sides[0].said[at] === null ? "silent" : "wrong";
  }

  #text(at) {
    const {index} = this;
    return this.texts[at] ??= [index.question[at], ...index.golds[at], ...index.sides.map((side) => side.said[at] ?? ""), index.id[at]]
      .join("\n").toLowerCase();
  }

  show() {
    const {index, chosen} = this, words = chosen.words.split(/\s+/).filter(Boolean), found = [];
    for (let at = 0; at < this.count; at++) {
      if (chosen.source !== "" && index.source[at] !== Number(chosen.source)) continue;
      if (chosen.hops !== "" && index.hops[at] !== Number(chosen.hops)) continue;
      if (chosen.ended !== "" && !index.sides.some((side) => side.ended[at] === Number(chosen.ended))) continue;
      if (chosen.held && index.trace[at] < 0) continue;
      if (chosen.result && this.result(at) !== chosen.result) continue;
      if (words.length && !words.every((word) => this.#text(at).includes(word))) continue;
      found.push(at);
    }
    if (this.sort.column >= 0) {
      const {value} = this.columns[this.sort.column], keys = new Map(found.map((at) => [at, value(at)]));
      found.sort((one, other) => compared(keys.get(one), keys.get(other), this.sort.down));
    }
    this.found = found;
    this.most = AT_A_TIME;
    this.#draw();
  }

  // ---- the table ---------------------------------------------------------------------------------------------------

  #columns() {
    const {index} = this, last = index.sides.at(-1);
    const number = (title, name) => name in DATA.measures || name in DATA.counts ? [{
      title, tone: "number", value: (at) => last[name][at],
      draw: (at, cell) => { cell.textContent = index.sides.map((side) => tidy(side[name][at])).join(" → "); },
    }] : [];
    return [
      {title: TWO ? "Change" : "Result", tone: "kind", value: (at) => this.result(at), draw: (at, cell) => {
        const result = this.result(at);
        element("span", TONES[result], `${SIGNS[result]} ${RESULTS[result]}`, cell);
      }},
      {title: "Question", value: (at) => index.question[at], draw: (at, cell) => this.#question(at, cell)},
      {title: "Gold", value: (at) => index.golds[at].join(" / "), draw: (at, cell) => { cell.textContent = visible(index.golds[at].join(" / ")); }},
      ...index.sides.map((side, place) => ({
        title: TWO ? DATA.names[place] : "Answer", value: (at) => side.said[at], draw: (at, cell) => {
          if (side.said[at] === null) cell.classList.add("dim");
          cell.textContent = visible(side.said[at] ?? (side.ended[at] === this.failed ? "failed" : "no answer"));
        },
      })),
      ...number("F1", "f1"), ...number("Searches", "num_searches"), ...number("Tokens", "response_tokens"),
    ];
  }

  #question(at, cell) {
    const {index} = this;
    const link = element("a", "ask", index.question[at], cell);
    link.href = this.address(at);
    const facts = [index.sources[index.source[at]], index.hops[at] && plural(index.hops[at], "hop"), index.id[at]].filter(Boolean);
    element("div", "dim", facts.join(" · ") + (index.trace[at] < 0 && this.index.trace.length ? " · no episode here" : ""), cell);
  }

  #sortBy(place) {
    const {sort} = this, first = this.columns[place].tone === "number";
    if (sort.column !== place) Object.assign(sort, {column: place, down: first});
    else if (sort.down === first) sort.down = !first;
    else sort.column = -1;
    sorted(this.heads, sort.column, sort.down);
    this.show();
  }

  #draw() {
    const shown = this.found.slice(0, this.most);
    this.said.textContent = this.found.length < this.count ?
      `${this.found.length.toLocaleString("en-US")} of ${plural(this.count, "question")}` : plural(this.count, "question");
    this.more.hidden = shown.length === this.found.length;
    this.body.replaceChildren();
    for (const at of shown) {
      const line = element("tr", "", null, this.body);
      line.dataset.at = at;
      this.columns.forEach((column) => column.draw(at, element("td", column.tone ?? "", null, line)));
    }
    this.#current();
  }

  #current() {
    for (const line of this.body.rows) line.toggleAttribute("aria-current", Number(line.dataset.at) === this.at);
  }

  // A line a question, as chosen and sorted.
  csv() {
    const {index} = this, sides = index.sides.map((side, place) => [TWO ? `${DATA.names[place]} ` : "", side]);
    const names = [...Object.keys(DATA.measures), ...Object.keys(DATA.counts)];
    const lines = [["id", "set", "hops", "question", "golds", "result", ...sides.flatMap(([of]) => [`${of}answer`, ...names.map((name) => of + name), `${of}ended`])]];
    for (const at of this.found) lines.push([
      index.id[at], index.sources[index.source[at]], index.hops[at], index.question[at], index.golds[at].join(" / "), RESULTS[this.result(at)],
      ...sides.flatMap(([, side]) => [side.said[at], ...names.map((name) => side[name][at]), index.ends[side.ended[at]]])]);
    return lines.map((line) => line.map(cell).join(",") + "\n").join("");
  }

  // ---- one question ------------------------------------------------------------------------------------------------

  #key(at) {
    const set = this.index.sources[this.index.source[at]];
    return (set ? set + "/" : "") + this.index.id[at];
  }

  address(at) {
    return "#question=" + encodeURIComponent(this.#key(at));
  }

  // "#question=SET/ID", so that a question can be pointed at.
  #fromAddress(scroll) {
    const match = /^#question=(.+)$/.exec(location.hash);
    if (!match) return false;
    let key = match[1];
    try { key = decodeURIComponent(key); } catch { /* as it stands */ }
    if (!this.places) {
      this.places = new Map();
      for (let at = this.count - 1; at >= 0; at--) this.places.set(this.#key(at), at);
    }
    if (!this.places.has(key)) return false;
    this.open(this.places.get(key), scroll);
    return true;
  }

  async open(at, scroll) {
    this.at = at;
    if (scroll && location.hash !== this.address(at)) address(this.address(at));
    const trace = this.index.trace[at], block = Math.floor(trace / DATA.block);
    let held = null;
    if (trace >= 0) {
      if (!this.opened.has(block)) this.opened.set(block, unpacked(`traces-${block}`));
      held = (await this.opened.get(block))[trace % DATA.block];
      if (this.at !== at) return;  // the reader went on meanwhile
    }
    this.#show(at, held);
    this.#current();
    if (scroll) this.article.scrollIntoView({block: "start", behavior: "instant"});
  }

  #show(at, held) {
    const {index, article} = this, result = this.result(at);
    article.replaceChildren();
    const bar = element("div", "step turn", null, article), here = this.found.indexOf(at);
    for (const [sign, by, name] of [["←", -1, "Question before"], ["→", 1, "Question after"]]) {
      const button = presser("", sign, bar, () => this.open(this.found[this.found.indexOf(at) + by], true));
      button.setAttribute("aria-label", name);
      button.disabled = here < 0 || this.found[here + by] === undefined;
    }
    if (here >= 0) element("span", "dim", `${(here + 1).toLocaleString("en-US")} of ${this.found.length.toLocaleString("en-US")}`, bar);
    const link = element("a", "dim", "link", bar);
    link.href = this.address(at);
    element("h3", "", index.question[at], article);
    const chips = element("div", "chips", null, article);
    element("span", "chip " + TONES[result], `${SIGNS[result]} ${RESULTS[result]}`, chips);
    element("span", "chip", "gold: " + index.golds[at].join(" / "), chips);
    for (const fact of [index.sources[index.source[at]], index.hops[at] && plural(index.hops[at], "hop"), index.id[at]]) if (fact) element("span", "chip", fact, chips);
    const both = element("div", TWO ? "sides" : "", null, article);
    index.sides.forEach((side, place) => this.#side(element("div", "one-side", null, both), at, side, place, held?.[place]));
  }

  #side(parent, at, side, place, trace) {
    if (TWO) element("h4", "", DATA.names[place], parent);
    const said = element("p", "said", null, parent), right = side[this.chosen.by][at];
    element("span", right === null ? "unscored" : right > 0 ? "right" : "wrong", right === null ? "○ " : right > 0 ? "✓ " : "✗ ", said);
    if (side.said[at] === null) element("span", "dim", "no answer", said); else element("b", "", side.said[at], said);
    const numbers = [...Object.entries(DATA.measures), ...Object.entries(DATA.counts)].filter(([name]) => side[name][at] !== null)
      .map(([name, label]) => `${label} ${tidy(side[name][at])}`);
    element("p", "small", [...numbers, `ended by ${this.index.ends[side.ended[at]] || "nothing"}`].join(" · "), parent);
    if (trace?.failure) element("p", "callout", trace.failure, parent);
    if (trace) new Trace(parent, trace);
    else element("p", "dim", `The episode is not in this page: line ${(side.line[at] + 1).toLocaleString("en-US")} of episodes.jsonl, if that has been kept.`, parent);
  }
}

const questioned = unpacked("questions-index").then(
  (index) => new Questions(document.getElementById("question-list"), document.getElementById("question"), index));

// Held-out questions one by one, before and after. Words and kinds choose; a hundred rows at a time are drawn.
const AT_A_TIME = 100;
const KINDS = {gained: "gained", lost: "lost", wrong: "wrong both times", right: "right both times"};

class Answers {
  constructor(root, rows, counts) {
    this.rows = rows;
    this.chosen = {kind: "", words: ""};
    const tools = element("div", "tools", null, root);
    const label = element("label", "", "Exact match", tools), select = element("select", "", null, label);
    element("option", "", `all (${rows.length.toLocaleString("en-US")})`, select).value = "";
    for (const [kind, name] of Object.entries(KINDS)) if (counts[kind]) element("option", "", `${name} (${counts[kind]})`, select).value = kind;
    select.addEventListener("change", () => { this.chosen.kind = select.value; this.show(); });
    searcher(tools, "Search answers", "words, a gold, an answer", (words) => { this.chosen.words = words.toLowerCase(); this.show(); });
    this.count = element("p", "small", null, root);
    const table = element("table", "answers questions fixed", null, element("div", "scroll tall", null, root));
    const head = element("tr", "", null, element("thead", "", null, table));
    for (const title of ["", "Question", "Gold", "Before", "After"]) element("th", "", title, head).scope = "col";
    this.body = element("tbody", "", null, table);
    this.more = presser("plain", "Show more", root, () => { this.most += AT_A_TIME; this.#draw(); });
    this.show();
  }

  #fits(row) {
    if (this.chosen.kind && row.kind !== this.chosen.kind) return false;
    const text = [row.question, ...row.golds, row.before.said ?? "", row.after.said ?? "", row.id].join("\n").toLowerCase();
    return this.chosen.words.split(/\s+/).every((word) => text.includes(word));
  }

  show() {
    this.found = this.rows.filter((row) => this.#fits(row));
    this.most = AT_A_TIME;
    this.#draw();
  }

  #draw() {
    const shown = this.found.slice(0, this.most), count = (n) => n.toLocaleString("en-US");
    this.count.textContent = `${count(shown.length)} of ${plural(this.found.length, "question")}`;
    this.more.hidden = shown.length === this.found.length;
    this.body.replaceChildren();
    for (const row of shown) {
      const line = element("tr", row.kind, null, this.body);
      element("th", "kind", KINDS[row.kind], line).scope = "row";
      const asked = element("td", "", row.question, line);
      const facts = [row.source, row.hops && plural(row.hops, "hop")].filter(Boolean).join(", ");
      if (facts) element("div", "dim", facts, asked);
      element("td", "", row.golds.join(" / "), line);
      for (const side of [row.before, row.after]) {
        const cell = element("td", side.said === null ? "dim" : "", side.said === null ? "no answer" : side.said, line);
        if (side.searches) element("div", "dim", plural(side.searches, "search"), cell);
      }
    }
  }
}

const answered = document.getElementById("answers-table") ? unpacked("answers-rows").then(
  (rows) => new Answers(document.getElementById("answers-table"), rows, DATA.answers.counts)) : null;

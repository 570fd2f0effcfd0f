// One episode: who wrote what, token by token, and what it earned.

function verdictOf(sample) {
  if (sample.reward === null) return ["unscored", "○", "not scored"];
  if (sample.outcome === null) return ["unscored", "○", "no outcome"];
  return sample.outcome > 0 ? ["right", "✓", "right"] : ["wrong", "✗", "wrong"];
}

const searchesOf = (sample) => sample.segments.filter((segment) => segment.found);
const tokensOf = (sample) => sample.segments.reduce((sum, s) => sum + (s.owner === "model" ? s.tokens : 0), 0);

class Episode {
  // `largest`: the step's largest absolute advantage, so that shades are alike in all its episodes.
  constructor(root, group, sample, largest, shade) {
    Object.assign(this, {largest, shade});
    const [tone, sign, word] = verdictOf(sample);
    root.replaceChildren();
    element("h3", "", group.question, root);
    const chips = element("div", "chips", null, root);
    element("span", "chip " + tone, `${sign} ${word}`, chips);
    element("span", "chip", "gold: " + group.golds.join(" / "), chips);
    element("span", "chip", `reward ${tidy(sample.reward)}`, chips);
    if (sample.advantage !== null) element("span", "chip", `advantage ${signed(sample.advantage)}`, chips);
    element("span", "chip", `ended by ${sample.ended || "nothing"}`, chips);
    element("span", "chip", `sample ${sample.sample} · weights of version ${sample.version}`, chips);
    if (sample.failure) element("p", "callout", sample.failure, root);
    const columns = element("div", "columns", null, root), talk = element("div", "", null, columns);
    this.#scale(talk);
    this.#text(this.#segment(talk, "prompt", "Prompt", `${group.prompt.tokens} tokens`), group.prompt);
    for (const segment of sample.segments) {
      if (segment.owner === "model") this.#model(talk, segment, sample);
      else this.#environment(talk, segment);
    }
    this.#side(element("aside", "side", null, columns), sample);
  }

  #segment(parent, tone, owner, note) {
    const box = element("div", "segment " + tone, null, parent), who = element("div", "who", null, box);
    element("b", "", owner, who);
    who.append(visible(" · " + note));
    return box;
  }

  // `parts`: text and control tokens by turns.
  #text(parent, {text, parts = [text]}) {
    const body = element("div", "text", null, parent);
    parts.forEach((part, i) => { if (i % 2) element("span", "control", part, body); else body.append(visible(part)); });
    if (text.length > 700 || text.split("\n").length > 14) fold(body, parent);
  }

  #model(parent, segment, sample) {
    const stop = segment.stop === "length" ? "cut at its length" : segment.stop === "eos" ? "ended its turn" : `stopped at ${segment.stop}`;
    const box = this.#segment(parent, "model", "Model", `${segment.tokens} tokens` + (segment.stop ? `, ${stop}` : ""));
    const body = element("div", "text", null, box), pieces = segment.pieces ?? [segment.text];
    const tags = [...pieces.join("").matchAll(TAG)].map((match) => [match.index, match.index + match[0].length]);
    const advantages = segment.advantages ?? sample.advantage;  // one per token, or one for all
    let at = 0;
    pieces.forEach((piece, i) => {
      const token = element("span", "token", null, body);
      const one = segment.pieces !== undefined;
      const advantage = Array.isArray(advantages) ? advantages[i] : advantages;
      this.#shade(token, advantage, one ? segment.logprobs[i] : null);
      const control = segment.control?.[i];
      if (one) token.dataset.tip = about(control ?? piece, segment.logprobs[i], advantage);
      const edges = [at, ...tags.flat().filter((edge) => edge > at && edge < at + piece.length), at + piece.length];
      for (let e = 0; e + 1 < edges.length; e++) {
        const inside = tags.some(([from, to]) => edges[e] >= from && edges[e + 1] <= to && edges[e + 1] > edges[e]);
        const text = piece.slice(edges[e] - at, edges[e + 1] - at);
        if (inside) element("span", "tag", text, token); else token.append(visible(text));
      }
      if (control) element("span", "control", control, token);
      else if (!piece && one && i === pieces.length - 1) element("span", "control", "■", token);
      at += piece.length;
    });
  }

  #environment(parent, segment) {
    const note = segment.found ? `${segment.tokens} tokens, answers “${segment.query ?? ""}”` : `${segment.tokens} tokens`;
    const box = this.#segment(parent, "environment", "Environment", note);
    if (!segment.found) { this.#text(box, segment); return; }
    if (!segment.found.length) element("div", "dim", "Nothing was found.", box);
    segment.found.forEach((passage, i) => {
      const item = element("div", "passage", null, box), title = element("div", "title", null, item);
      element("b", "", `${i + 1}  ${passage.title || passage.id}`, title);
      const marks = element("span", "score", null, title);
      if (passage.gold) element("span", "gold", "★ gold ", marks);
      if (passage.score !== null) marks.append(tidy(passage.score));
      const text = element("div", "", passage.text, item);
      if (passage.text.length > 420) fold(text, item);
    });
    const raw = element("details", "raw-view", null, box);
    element("summary", "", "As the model read it", raw);
    this.#text(raw, segment);
  }

  #shade(token, advantage, logprob) {
    let tone = "", strength = 0;
    if (this.shade === "advantage" && advantage) [tone, strength] = [advantage > 0 ? "positive" : "negative", 0.06 + 0.34 * Math.abs(advantage) / this.largest];
    if (this.shade === "probability" && logprob !== null) [tone, strength] = ["unlikely", 0.45 * Math.min(1, -logprob / Math.log(100))];
    if (!tone) return;
    token.classList.add(tone);
    token.style.setProperty("--a", strength.toFixed(3));
  }

  #scale(parent) {
    if (this.shade === "nothing") return;
    const box = element("div", "scale", null, parent), ramp = element("span", "ramp");
    const advantage = this.shade === "advantage";
    if (advantage && !this.largest) {
      box.append("No advantage in this step: every group's samples earned the same.");
      return;
    }
    element("span", "", advantage ? `Advantage ${tidy(-this.largest)}` : "Probability 1", box);
    box.append(ramp);
    for (let i = 0; i <= 8; i++) {
      const value = advantage ? (i / 4 - 1) * this.largest : i / 8 * Math.log(0.01);
      this.#shade(element("span", "token", null, ramp), value, value);
    }
    element("span", "", advantage ? signed(this.largest) : "0.01 or less", box);
    element("span", "", "· model tokens only", box);
  }

  #side(parent, sample) {
    const parts = element("div", "", null, parent);
    element("h4", "", "Reward", parts);
    const table = element("table", "", null, parts), head = element("tr", "", null, element("thead", "", null, table));
    for (const title of ["Term", "Value", "Weight", "Gives"]) element("th", "", title, head);
    const body = element("tbody", "", null, table);
    for (const name of Object.keys(sample.terms)) {
      const value = sample.terms[name], weight = sample.weights[name] ?? 0, row = element("tr", "", null, body);
      element("th", "", name, row);
      element("td", "", value === null ? "none" : tidy(value), row);
      element("td", "dim", "× " + tidy(weight), row);
      element("td", "", value === null ? "–" : tidy(value * weight), row);
    }
    const foot = element("tr", "", null, element("tfoot", "", null, table));
    element("th", "", "Reward", foot).colSpan = 3;
    element("td", "", sample.reward === null ? "not scored" : tidy(sample.reward), foot);
    const searches = searchesOf(sample);
    if (searches.length) {
      const box = element("div", "", null, parent), list = element("ol");
      element("h4", "", plural(searches.length, "search"), box);
      box.append(list);
      for (const search of searches) {
        const item = element("li", "", `“${search.query ?? ""}”`, list);
        if (VERDICTS[search.verdict]) element("div", search.verdict === "gold" ? "right" : "wrong", VERDICTS[search.verdict], item);
      }
    }
    if (Object.keys(sample.facts).length) {
      const box = element("div", "", null, parent);
      element("h4", "", "Facts", box);
      const text = JSON.stringify(sample.facts, null, 1);
      element("pre", "", text.length > 4000 ? text.slice(0, 4000) + " …" : text, box);
    }
  }
}

function about(piece, logprob, advantage) {
  const shown = piece.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "(no text: part of a character, or end of turn)";
  const lines = [visible(shown)];
  if (logprob !== null && logprob !== undefined) lines.push(`log-probability ${tidy(logprob)} (p ${tidy(Math.exp(logprob))})`);
  if (advantage !== null && advantage !== undefined) lines.push(`advantage ${signed(advantage)}`);
  return lines.join("\n");
}

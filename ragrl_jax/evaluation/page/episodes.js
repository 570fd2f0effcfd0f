// The episode browser: a step's groups and samples on the left, one episode on the right.
const VERDICTS = {"gold": "brought a new gold passage", "no gold": "brought no new gold passage", "repeat": "repeated a query"};
const TAG = /<\/?[A-Za-z_][\w.|:-]*>/g;
const view = {step: 0, group: 0, sample: 0, outcome: "", ended: "", shade: "advantage"};

function verdictOf(sample) {
  if (sample.reward === null) return ["unscored", "○", "not scored"];
  if (sample.outcome === null) return ["unscored", "○", "no outcome"];
  return sample.outcome > 0 ? ["right", "✓", "right"] : ["wrong", "✗", "wrong"];
}

const searchesOf = (sample) => sample.segments.filter((segment) => segment.found);
const tokensOf = (sample) => sample.segments.reduce((sum, s) => sum + (s.owner === "model" ? s.tokens : 0), 0);
const fits = (sample) => (!view.outcome || verdictOf(sample)[0] === view.outcome) && (!view.ended || sample.ended === view.ended);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : word.endsWith("ch") ? "es" : "s"}`;

function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
}

class Browser {
  constructor(root) {
    this.steps = DATA.episodes.steps;
    view.step = this.steps.length - 1;
    this.tip = element("div", "", null, document.body);
    this.tip.id = "tip";
    this.tools = element("div", "tools", null, root);
    const panes = element("div", "panes", null, root);
    this.groups = element("div", "card groups", null, panes);
    this.episode = element("article", "card episode", null, panes);
    this.#controls();
    this.#tooltips();
    this.start();
    const asked = this.#fromAddress();
    addEventListener("hashchange", () => { if (this.#fromAddress()) this.show(); });
    this.show();
    if (asked) document.getElementById("episodes").scrollIntoView();
  }

  // "#episode-120-0-3": step, group, sample; so that an episode can be pointed at.
  #fromAddress() {
    const match = /^#episode-(\d+)-(\d+)-(\d+)$/.exec(location.hash);
    if (!match) return false;
    const place = nearest(this.steps.map((step) => step.step), Number(match[1]));
    [view.step, view.group, view.sample] = [place, Number(match[2]), Number(match[3])];
    return true;
  }

  #choice(title, options, key) {
    const label = element("label", "", title, this.tools), select = element("select", "", null, label);
    for (const [value, text] of options) element("option", "", text, select).value = value;
    select.value = view[key];
    select.addEventListener("change", () => {
      view[key] = key === "step" ? Number(select.value) : select.value;
      if (key === "step") this.start();
      this.show();
    });
    return select;
  }

  #controls() {
    const label = (step, i) => {
      const reward = mean(step.groups.flatMap((group) => group.samples.map((sample) => sample.reward)));
      return [i, `${step.step.toLocaleString("en-US")} · reward ${tidy(reward)}`];
    };
    this.select = this.#choice("Step", this.steps.map(label), "step");
    const row = element("div", "step");
    this.select.replaceWith(row);
    this.back = element("button", "", "←", row);
    row.append(this.select);
    this.next = element("button", "", "→", row);
    for (const [button, by, name] of [[this.back, -1, "Step before"], [this.next, 1, "Step after"]]) {
      button.type = "button";
      button.setAttribute("aria-label", name);
      button.addEventListener("click", () => { view.step += by; this.start(); this.show(); });
    }
    const ended = [...new Set(this.steps.flatMap((s) => s.groups.flatMap((g) => g.samples.map((e) => e.ended))))].sort();
    this.#choice("Outcome", [["", "all"], ["right", "right"], ["wrong", "wrong"], ["unscored", "not scored"]], "outcome");
    this.#choice("Ended by", [["", "anything"], ...ended.map((why) => [why, why || "(nothing)"])], "ended");
    this.#choice("Shade tokens by", [["advantage", "advantage"], ["probability", "probability"], ["nothing", "nothing"]], "shade");
  }

  #tooltips() {
    const say = (event) => {
      const token = event.target.closest?.(".token[data-tip]");
      this.tip.style.visibility = token ? "visible" : "hidden";
      if (!token) return;
      this.tip.textContent = token.dataset.tip;
      const box = token.getClientRects()[0], tip = this.tip.getBoundingClientRect();
      this.tip.style.left = Math.max(8, Math.min(box.left, innerWidth - tip.width - 8)) + "px";
      this.tip.style.top = (box.top - tip.height - 6 > 56 ? box.top - tip.height - 6 : box.bottom + 6) + "px";
    };
    this.episode.addEventListener("pointerover", say);
    this.episode.addEventListener("click", say);
    this.episode.addEventListener("pointerleave", () => { this.tip.style.visibility = "hidden"; });
  }

  // Of a new step, the group whose samples differ most; of that, the best paid right answer that took most searches.
  start() {
    const spread = (group) => {
      const rewards = group.samples.map((sample) => sample.reward).filter((reward) => reward !== null);
      const middle = mean(rewards);
      return mean(rewards.map((reward) => (reward - middle) ** 2)) ?? -1;
    };
    const worth = (sample) => [sample.outcome ?? -1, sample.reward ?? -1, searchesOf(sample).length];
    const better = (one, other) => {
      const place = worth(one).findIndex((value, i) => value !== worth(other)[i]);
      return place >= 0 && worth(one)[place] > worth(other)[place];
    };
    const groups = this.steps[view.step].groups;
    view.group = groups.reduce((best, group, place) => spread(group) > spread(groups[best]) ? place : best, 0);
    view.sample = groups[view.group].samples.reduce((best, sample) => better(sample, best) ? sample : best).sample;
  }

  show() {
    const step = this.steps[view.step];
    this.select.value = view.step;
    this.back.disabled = view.step === 0;
    this.next.disabled = view.step === this.steps.length - 1;
    const groups = step.groups.map((group, place) => ({group, place, samples: group.samples.filter(fits)}))
      .filter((entry) => entry.samples.length);
    this.groups.replaceChildren();
    if (!groups.length) return this.#nothing();
    let open = groups.find((entry) => entry.place === view.group);
    if (!open) { open = groups[0]; view.group = open.place; }
    if (!open.samples.some((sample) => sample.sample === view.sample)) view.sample = open.samples[0].sample;
    for (const entry of groups) this.#group(entry, entry === open);
    const left = step.in_file - step.groups.length;
    if (left > 0) element("div", "group sub dim", `${plural(left, "more group")} of this step ${left === 1 ? "is" : "are"} in the log.`, this.groups);
    this.#episode(open.group, open.samples.find((sample) => sample.sample === view.sample));
  }

  // A choice of the reader's: shown, and kept in the address.
  #pick(group, sample) {
    [view.group, view.sample] = [group, sample];
    history.replaceState(null, "", `#episode-${this.steps[view.step].step}-${group}-${sample}`);
    this.show();
  }

  #nothing() {
    this.episode.replaceChildren();
    element("div", "empty", "No episode fits.", this.groups);
    const other = this.steps.findIndex((step) => step.groups.some((group) => group.samples.some(fits)));
    const box = element("div", "empty", "No episode of this step fits the filter. ", this.episode);
    if (other < 0) return;
    const button = element("button", "unfold", `Go to step ${this.steps[other].step}, which has one`, box);
    button.addEventListener("click", () => { view.step = other; this.start(); this.show(); });
  }

  #group({group, place, samples}, open) {
    const box = element("div", open ? "group open" : "group", null, this.groups);
    const head = element("button", "", null, box);
    head.type = "button";
    head.setAttribute("aria-expanded", open);
    element("div", "question", group.question, head);
    const right = group.samples.filter((sample) => sample.outcome > 0).length;
    element("div", "sub", `reward ${tidy(mean(group.samples.map((s) => s.reward)))} · ${right} of ${group.samples.length} right` +
            (group.hops ? ` · ${plural(group.hops, "hop")}` : ""), head);
    head.addEventListener("click", () => this.#pick(place, samples[0].sample));
    if (!open) return;
    const list = element("ul", "samples", null, box), searching = group.samples.some((s) => searchesOf(s).length);
    for (const sample of samples) {
      const button = element("button", "", null, element("li", "", null, list));
      const [tone, sign, word] = verdictOf(sample);
      element("span", tone, sign, button).title = word;
      const count = searching ? plural(searchesOf(sample).length, "search") + ", " : "";
      element("span", "", `${count}${tokensOf(sample)} tokens`, button);
      element("span", "", tidy(sample.reward), button).title = "reward";
      button.setAttribute("aria-current", sample.sample === view.sample);
      button.addEventListener("click", () => this.#pick(place, sample.sample));
    }
  }

  #episode(group, sample) {
    const root = this.episode, [tone, sign, word] = verdictOf(sample);
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
    this.largest = Math.max(1e-9, ...this.steps[view.step].groups.flatMap((g) => g.samples.flatMap(
      (s) => [Math.abs(s.advantage ?? 0), ...s.segments.flatMap((part) => (part.advantages ?? []).map(Math.abs))])));
    this.#scale(talk);
    this.#segment(talk, "prompt", "Prompt", `${group.prompt.tokens} tokens`).then(group.prompt.text);
    for (const segment of sample.segments) {
      if (segment.owner === "model") this.#model(talk, segment, sample);
      else this.#environment(talk, segment);
    }
    this.#side(element("aside", "side", null, columns), sample);
  }

  #segment(parent, tone, owner, note) {
    const box = element("div", "segment " + tone, null, parent), who = element("div", "who", null, box);
    element("b", "", owner, who);
    who.append(" · " + note);
    const then = (text, under = box) => {
      const body = element("div", "text", null, under);
      body.textContent = text.replace(/^\n+|\n+$/g, "");
      if (text.length > 700 || text.split("\n").length > 14) fold(body, under);
      return body;
    };
    return {box, then};
  }

  #model(parent, segment, sample) {
    const stop = segment.stop === "length" ? "cut at its length" : segment.stop === "eos" ? "ended its turn" : `stopped at ${segment.stop}`;
    const {box} = this.#segment(parent, "model", "Model", `${segment.tokens} tokens` + (segment.stop ? `, ${stop}` : ""));
    const body = element("div", "text", null, box), pieces = segment.pieces ?? [segment.text];
    const tags = [...pieces.join("").matchAll(TAG)].map((match) => [match.index, match.index + match[0].length]);
    let at = 0;
    pieces.forEach((piece, i) => {
      const token = element("span", "token", null, body);
      const one = segment.pieces !== undefined;
      const advantage = segment.advantages?.[i] ?? sample.advantage;
      this.#shade(token, advantage, one ? segment.logprobs[i] : null);
      if (one) token.dataset.tip = about(piece, segment.logprobs[i], advantage);
      const edges = [at, ...tags.flat().filter((edge) => edge > at && edge < at + piece.length), at + piece.length];
      for (let e = 0; e + 1 < edges.length; e++) {
        const inside = tags.some(([from, to]) => edges[e] >= from && edges[e + 1] <= to && edges[e + 1] > edges[e]);
        const text = piece.slice(edges[e] - at, edges[e + 1] - at);
        if (inside) element("span", "tag", text, token); else token.append(text);
      }
      if (!piece && one && i === pieces.length - 1) element("span", "end", "■", token);
      at += piece.length;
    });
  }

  #environment(parent, segment) {
    const note = segment.found ? `${segment.tokens} tokens, answers “${segment.query ?? ""}”` : `${segment.tokens} tokens`;
    const {box, then} = this.#segment(parent, "environment", "Environment", note);
    if (!segment.found) { then(segment.text); return; }
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
    element("div", "text", segment.text.trim(), raw);
  }

  #shade(token, advantage, logprob) {
    let tone = "", strength = 0;
    if (view.shade === "advantage" && advantage) [tone, strength] = [advantage > 0 ? "positive" : "negative", 0.06 + 0.34 * Math.abs(advantage) / this.largest];
    if (view.shade === "probability" && logprob !== null) [tone, strength] = ["unlikely", 0.45 * Math.min(1, -logprob / Math.log(100))];
    if (!tone) return;
    token.classList.add(tone);
    token.style.setProperty("--a", strength.toFixed(3));
  }

  #scale(parent) {
    if (view.shade === "nothing") return;
    const box = element("div", "scale", null, parent), ramp = element("span", "ramp");
    const advantage = view.shade === "advantage";
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

function fold(body, parent) {
  body.classList.add("clipped");
  const button = element("button", "unfold", "Show all", parent);
  button.type = "button";
  button.addEventListener("click", () => {
    const clipped = body.classList.toggle("clipped");
    button.textContent = clipped ? "Show all" : "Show less";
  });
}

function about(piece, logprob, advantage) {
  const shown = piece.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "(no text: part of a character, or end of turn)";
  const lines = [shown];
  if (logprob !== null && logprob !== undefined) lines.push(`log-probability ${tidy(logprob)} (p ${tidy(Math.exp(logprob))})`);
  if (advantage !== null && advantage !== undefined) lines.push(`advantage ${signed(advantage)}`);
  return lines.join("\n");
}

const browser = document.getElementById("browser");
if (browser) new Browser(browser);

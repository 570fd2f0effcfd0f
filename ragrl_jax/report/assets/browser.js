// The episode browser: a step's groups and samples on the left, one episode on the right. A step's episodes are unpacked
// when it is opened.
const view = {step: 0, group: 0, sample: 0, outcome: "", ended: "", shade: "advantage", words: ""};
const MOST_FOUND = 50;

const holds = (group) => {
  const text = [group.question, ...group.golds, group.id].join("\n").toLowerCase();
  return view.words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
};
const fitsKind = ([verdict, ended]) => (!view.outcome || verdict === view.outcome) && (!view.ended || ended === view.ended);
const fits = (sample) => fitsKind([verdictOf(sample)[0], sample.ended]);
const fitting = (group) => group.kinds.some(fitsKind) && holds(group);

class Browser {
  constructor(root, index) {
    this.steps = index.steps;
    this.opened = new Map();  // place of a step → its groups' prompts and samples
    view.step = this.steps.length - 1;
    this.tip = element("div", "", null, document.body);
    this.tip.id = "tip";
    this.tools = element("div", "tools", null, root);
    const panes = element("div", "panes", null, root);
    this.groups = element("div", "card groups", null, panes);
    this.episode = element("article", "card episode", null, panes);
    this.#controls();
    this.#tooltips();
    addEventListener("keydown", (event) => this.#key(event));
    const shown = () => document.getElementById("episodes").scrollIntoView();
    addEventListener("hashchange", () => { if (this.#fromAddress()) this.go().then(shown); });
    const asked = this.#fromAddress();
    this.ready = this.go({start: !asked}).then(() => { if (asked) shown(); });
  }

  // "#episode-120-0-3": step, group, sample; so that an episode can be pointed at.
  #fromAddress() {
    const match = /^#episode-(\d+)-(\d+)-(\d+)$/.exec(location.hash);
    if (!match) return false;
    const place = nearest(this.steps.map((step) => step.step), Number(match[1]));
    [view.step, view.group, view.sample] = [place, Number(match[2]), Number(match[3])];
    return true;
  }

  // Shows the step of the view, unpacked first; `start`: at the episode worth reading first.
  async go({start = false} = {}) {
    const place = view.step;
    if (!this.opened.has(place)) this.opened.set(place, await unpacked(`step-${place}`));
    if (place !== view.step) return;  // the reader went on meanwhile
    const inside = this.opened.get(place);
    this.now = this.steps[place].groups.map((group, i) => ({...group, ...inside[i]}));
    const largest = Math.max(0, ...this.now.flatMap((group) => (group.samples ?? []).flatMap((sample) => [
      Math.abs(sample.advantage ?? 0), ...sample.segments.flatMap((part) => [part.advantages ?? []].flat().map(Math.abs))])));
    this.largest = largest > 1e-6 ? largest : 0;  // less is rounding
    if (start) this.#start();
    this.show();
  }

  #choice(title, options, key) {
    const label = element("label", "", title, this.tools), select = element("select", "", null, label);
    for (const [value, text] of options) element("option", "", text, select).value = value;
    select.value = view[key];
    select.addEventListener("change", () => {
      view[key] = key === "step" ? Number(select.value) : select.value;
      if (key === "step") this.go({start: true}); else this.show();
    });
    return select;
  }

  #controls() {
    const label = (step, i) => [i, `${step.step.toLocaleString("en-US")} · reward ${tidy(step.reward)}`];
    this.select = this.#choice("Step", this.steps.map(label), "step");
    const row = element("div", "step");
    this.select.replaceWith(row);
    const turn = (by) => () => {  // pressed twice before the step is unpacked, the button is not disabled yet
      view.step = Math.max(0, Math.min(view.step + by, this.steps.length - 1));
      this.go({start: true});
    };
    this.back = presser("", "←", row, turn(-1));
    row.append(this.select);
    this.next = presser("", "→", row, turn(1));
    this.back.setAttribute("aria-label", "Step before");
    this.next.setAttribute("aria-label", "Step after");
    searcher(this.tools, "Search questions", "words, a gold answer, an id", (words) => { view.words = words; this.show(); });
    const ended = [...new Set(this.steps.flatMap((s) => s.groups.flatMap((g) => g.kinds.map((kind) => kind[1]))))].sort();
    this.#choice("Outcome", [["", "all"], ["right", "right"], ["wrong", "wrong"], ["unscored", "not scored"]], "outcome");
    this.#choice("Ended by", [["", "anything"], ...ended.map((why) => [why, why || "(nothing)"])], "ended");
    this.#choice("Shade tokens by", [["advantage", "advantage"], ["probability", "probability"], ["nothing", "nothing"]], "shade");
    element("p", "small keys", "← → the next sample, ↑ ↓ the next group, while the list has the focus", this.tools);
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

  // Arrows: sideways through the samples of all groups shown, up and down through the groups.
  #key(event) {
    const by = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    if (!by || !this.shown?.length || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (!this.groups.contains(document.activeElement)) return;
    event.preventDefault();
    const [over, along] = by;
    const all = over ? this.shown.map((entry) => [entry.place, entry.samples[0]?.sample ?? 0]) :
      this.shown.flatMap((entry) => entry.samples.map((sample) => [entry.place, sample.sample]));
    const here = all.findIndex(([place, sample]) => place === view.group && (over || sample === view.sample));
    const there = all[here + over + along];
    if (!there) return;
    this.#pick(...there);
    const button = this.groups.querySelector('[aria-current="true"], .group.open > button');
    button?.focus({preventScroll: true});
  }

  // Of a new step, the group whose samples differ most; of that, the best paid right answer that took most searches.
  #start() {
    const worth = (sample) => [sample.outcome ?? -1, sample.reward ?? -1, searchesOf(sample).length];
    const better = (one, other) => {
      const place = worth(one).findIndex((value, i) => value !== worth(other)[i]);
      return place >= 0 && worth(one)[place] > worth(other)[place];
    };
    const spread = (group) => group.samples ? group.spread ?? -1 : -2;
    view.group = this.now.reduce((best, group, place) => spread(group) > spread(this.now[best]) ? place : best, 0);
    const samples = this.now[view.group].samples;
    view.sample = samples ? samples.reduce((best, sample) => better(sample, best) ? sample : best).sample : 0;
  }

  show() {
    const step = this.steps[view.step];
    this.select.value = view.step;
    this.back.disabled = view.step === 0;
    this.next.disabled = view.step === this.steps.length - 1;
    this.shown = this.now.map((group, place) => ({group, place, samples: (group.samples ?? []).filter(fits)}))
      .filter((entry) => fitting(entry.group));
    const scrolled = this.groups.scrollTop;
    this.groups.replaceChildren();
    const all = this.now.length, found = this.shown.length, missing = step.episodes - step.taken;
    element("div", "count", (found < all ? `${found} of ${plural(all, "group")}` : plural(all, "group")) +
            (missing ? `; ${missing.toLocaleString("en-US")} of ${plural(step.episodes, "episode")} are in ${step.file} only` : ""), this.groups);
    let open = this.shown.find((entry) => entry.place === view.group);
    if (!open && found) { open = this.shown[0]; view.group = open.place; }
    if (open?.samples.length && !open.samples.some((sample) => sample.sample === view.sample)) view.sample = open.samples[0].sample;
    for (const entry of this.shown) this.#group(entry, entry === open);
    if (view.words) this.#elsewhere();
    this.#keepInSight(scrolled);
    if (!open) this.#nothing();
    else if (!open.group.samples) this.#absent(step, open.group);
    else new Episode(this.episode, open.group, open.samples.find((sample) => sample.sample === view.sample), this.largest, view.shade);
  }

  // The list stays where it was, unless the open group would be out of its window.
  #keepInSight(scrolled) {
    this.groups.scrollTop = scrolled;
    const open = this.groups.querySelector(".group.open")?.getBoundingClientRect(), list = this.groups.getBoundingClientRect();
    if (!open || (open.top >= list.top && open.bottom <= list.bottom)) return;
    this.groups.scrollTop += open.top - list.top - 8;
  }

  // A choice of the reader's: shown, and kept in the address.
  #pick(group, sample) {
    [view.group, view.sample] = [group, sample];
    address(`#episode-${this.steps[view.step].step}-${group}-${sample}`);
    this.show();
  }

  #nothing() {
    const other = this.steps.findIndex((step) => step.groups.some(fitting));
    this.episode.replaceChildren();
    const box = element("div", "empty", "No episode of this step fits. ", this.episode);
    if (other < 0) { box.append("None of the others does."); return; }
    presser("unfold", `Go to step ${this.steps[other].step}, which has one`, box, () => {
      view.step = other;
      view.group = this.steps[other].groups.findIndex(fitting);
      this.go();
    });
  }

  // A group that the page has no room for.
  #absent(step, group) {
    this.episode.replaceChildren();
    element("h3", "", group.question, this.episode);
    const chips = element("div", "chips", null, this.episode);
    for (const text of [`gold: ${group.golds.join(" / ")}`, `reward ${tidy(group.reward)}`, `${group.right} of ${group.count} right`])
      element("span", "chip", text, chips);
    const box = element("p", "dim", `These ${plural(group.count, "episode")} are not in this page. They are the rows of `, this.episode);
    element("code", "", step.file, box);
    box.append(" with ");
    element("code", "", `"prompt_index":${group.prompt_index}`, box);
    box.append("; ragrl report --megabytes makes room for more.");
  }

  // The same words in the questions of other steps.
  #elsewhere() {
    const found = this.steps.flatMap((step, place) => place === view.step ? [] : step.groups.map((group, i) => ({step, place, group, i}))
      .filter((entry) => fitting(entry.group)));
    const more = found.length > MOST_FOUND ? `, the first ${MOST_FOUND} of them here` : "";
    element("div", "count", found.length ? `${plural(found.length, "group")} of other steps${more}` : "No group of other steps", this.groups);
    for (const {step, place, group, i} of found.slice(0, MOST_FOUND)) {
      const show = () => { [view.step, view.group] = [place, i]; this.go(); };
      const button = presser("", null, element("div", "group", null, this.groups), show);
      element("div", "question", group.question, button);
      element("div", "sub", `step ${step.step} · reward ${tidy(group.reward)} · ${group.right} of ${group.count} right`, button);
    }
  }

  #group({group, place, samples}, open) {
    const box = element("div", open ? "group open" : "group", null, this.groups);
    const head = presser("", null, box, () => this.#pick(place, samples[0]?.sample ?? 0));
    head.setAttribute("aria-expanded", open);
    element("div", "question", group.question, head);
    element("div", "sub", `reward ${tidy(group.reward)} · ${group.right} of ${group.count} right` +
            (group.hops ? ` · ${plural(group.hops, "hop")}` : "") + (group.held ? "" : " · not in this page"), head);
    if (!open || !samples.length) return;
    const list = element("ul", "samples", null, box), searching = group.samples.some((s) => searchesOf(s).length);
    for (const sample of samples) {
      const button = presser("", null, element("li", "", null, list), () => this.#pick(place, sample.sample));
      const [tone, sign, word] = verdictOf(sample);
      element("span", tone, sign, button).title = word;
      const count = searching ? plural(searchesOf(sample).length, "search") + ", " : "";
      element("span", "", `${count}${tokensOf(sample)} tokens`, button);
      element("span", "", tidy(sample.reward), button).title = "reward";
      button.setAttribute("aria-current", sample.sample === view.sample);
    }
  }
}

let browser = null;

async function browse(root) {
  if (typeof DecompressionStream === "undefined") {
    element("p", "callout", "This browser is too old to unpack the episodes (it has no DecompressionStream); they are in episodes/.", root);
    return;
  }
  browser = new Browser(root, await unpacked("all-groups"));
  await browser.ready;
}

const browsed = document.getElementById("browser") ? browse(document.getElementById("browser")) : null;

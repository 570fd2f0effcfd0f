"use strict";
// Asks questions and shows the answers as they come. Each line of a reply is an event, see ragrl_jax/serving/ask_checkpoint.py.
const by = (id) => document.getElementById(id), {names} = DATA, asked = [];
let under = null;  // stops the question that is being answered

// One answer of one checkpoint.
class Answer {
  constructor() {
    this.root = element("div", "live");
    this.place = -1;
    this.said = null;
    this.done = null;
  }

  take(event) {
    if (event.event === "said") this.#said(event);
    else if (event.event === "prompt") this.#text(this.#segment("prompt", "Prompt", event), event.text, true);
    else if (event.event === "notice") this.#text(this.#segment("environment", "Environment", event), event.text);
    else if (event.event === "searching") this.#waits(`searches for “${event.query}”`);
    else if (event.event === "judging") this.#waits(`asks the judge about ${plural(event.pairs, "step")}`);
    else if (event.event === "found") this.#found(event);
    else if (event.event === "answer") this.#over(event);
  }

  #segment(tone, name, event) {
    this.waiting?.remove();
    this.said = null;
    const box = element("div", "segment " + tone, null, this.root), who = element("div", "who", null, box);
    element("b", "", name, who);
    if (event.conversation) who.append(visible(` · conversation ${event.conversation + 1}`));
    return box;
  }

  #text(box, text, folded = false) {
    const body = element("div", "text", text, box);
    if (folded && text.length > 300) fold(body, box);
    return body;
  }

  #said(event) {
    if (!this.said || this.place !== event.conversation) {
      this.place = event.conversation;
      this.said = this.#text(this.#segment("model", "Model", event), "");
    }
    this.said.append(visible(event.text));
  }

  #waits(text) {
    this.waiting?.remove();
    this.said = null;
    this.waiting = element("p", "small waiting", `The model ${text} …`, this.root);
  }

  #found(event) {
    const box = this.#segment("environment", "Environment", event);
    box.querySelector(".who").append(visible(` · answers “${event.query ?? ""}”`));
    if (!event.passages.length) element("div", "dim", "Nothing was found.", box);
    event.passages.forEach((passage, i) => {
      const item = element("div", "passage", null, box);
      element("b", "", `${i + 1}  ${passage.title || passage.id}`, element("div", "title", null, item));
      element("div", "", passage.text, item);
    });
  }

  #over(event) {
    this.done = event;
    this.root.replaceChildren();
    if (event.failure) element("p", "callout", event.failure, this.root);
    if (event.no_verdict) element("p", "callout", `No verdict on some steps: ${event.no_verdict}`, this.root);
    const chips = element("div", "chips", null, this.root);
    for (const text of [plural(event.searches, "search"), plural(event.tokens, "token"), `${event.seconds.toFixed(1)} s`,
      `ended by ${event.ended || "nothing"}`, `weights of version ${event.version}`]) element("span", "chip", text, chips);
    new Trace(element("div", "marked", null, this.root), event.trace);
  }

  // What its button and the list of answers say.
  get text() {
    if (!this.done) return "…";
    return this.done.ended === "failed" ? "failed" : this.done.answer ?? "no answer";
  }
}

// What one checkpoint says to one question: some answers, of which one is shown.
class Side {
  constructor(parent, name, count) {
    const box = element("div", "one-side", null, parent);
    if (names.length > 1) element("h4", "", name, box);
    this.head = element("p", "said", "…", box);
    this.choice = element("div", "switches answers-choice", null, box);
    this.choice.hidden = count < 2;
    this.shown = element("div", "", null, box);
    this.answers = Array.from({length: count}, () => new Answer());
    this.buttons = this.answers.map((_, at) => presser("plain", `${at + 1}`, this.choice, () => this.show(at)));
    this.show(0);
  }

  show(at) {
    this.shown.replaceChildren(this.answers[at].root);
    this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === at)));
  }

  take(event) {
    if (event.event === "agreement") { this.#agreement(event.answers); return; }
    if (event.event === "error") { this.fails(event.message); return; }
    this.answers[event.sample].take(event);
    if (event.event !== "answer") return;
    this.buttons[event.sample].textContent = visible(`${event.sample + 1}: ${this.answers[event.sample].text}`).slice(0, 60);
    if (this.answers.length === 1) this.head.replaceChildren(element("b", "", this.answers[0].text));
  }

  #agreement(answers) {
    const [best] = answers;
    this.head.replaceChildren(element("b", "", best.answer ?? "no answer"), visible(` in ${best.count} of ${this.answers.length} answers`));
    if (answers.length > 1) {
      const others = answers.slice(1).map((one) => `${one.answer ?? "no answer"} (${one.count})`).join(", ");
      element("span", "dim", `; else ${others}`, this.head);
    }
  }

  fails(message) {
    element("p", "callout", message, this.shown);
    if (!this.answers.some((answer) => answer.done)) this.head.textContent = "no answer";
  }
}

async function lines(response, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n");
    rest = whole.pop();
    for (const line of whole) take(JSON.parse(line));
  }
}

async function askOne(side, place, body, signal) {
  try {
    const response = await fetch("/ask", {
      method: "POST", signal, headers: {"content-type": "application/json"}, body: JSON.stringify({...body, checkpoint: place}),
    });
    if (!response.ok) side.fails((await response.json()).error.message);
    else await lines(response, (event) => side.take(event.error ? {event: "error", message: event.error.message} : event));
  } catch (error) {
    side.fails(error.name === "AbortError" ? "Stopped." : `The server does not answer: ${error.message}`);
  }
}

async function ask() {
  const question = by("question").value.trim();
  if (!question || under) return;
  under = new AbortController();
  const last = asked.at(-1), samples = Number(by("samples").value);
  const earlier = by("goes-on").checked && last ? [...last.body.earlier, [last.body.question, last.sides[0].answers[0].done?.answer || "none"]] : [];
  const body = {question, samples, seed: Number(by("seed").value) || 0, earlier};
  by("send").disabled = true;
  by("stop").disabled = false;
  by("status").textContent = "Answering …";
  const card = element("article", "card episode answered");
  element("h3", "", question, card);
  if (earlier.length) element("p", "small", `after ${plural(earlier.length, "earlier question")}`, card);
  by("answers").prepend(card);
  const row = element("div", names.length > 1 ? "sides" : "", null, card);
  const sides = names.map((name) => new Side(row, name, samples));
  asked.push({body, sides});
  await Promise.all(sides.map((side, place) => askOne(side, place, body, under.signal)));
  const given = sides.map((side) => side.head.textContent);
  by("status").textContent = visible(`Answered: ${given.join(" | ")}`);
  under = null;
  by("send").disabled = false;
  by("stop").disabled = true;
  by("export").disabled = false;
  by("question").focus();
  by("question").select();
}

function exported() {
  return JSON.stringify(asked.map(({body, sides}) => ({
    ...body, checkpoints: sides.map((side, place) => ({name: names[place], answers: side.answers.map((answer) => answer.done)})),
  })), null, 1);
}

by("form").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
by("question").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask(); }
});
document.querySelectorAll(".example").forEach((example) => example.addEventListener("click", () => {
  by("question").value = example.textContent;
  by("question").focus();
}));
document.addEventListener("keydown", (event) => { if (event.key === "Escape") under?.abort(); });
by("stop").addEventListener("click", () => under?.abort());
by("export").addEventListener("click", () => saves("answers.json", exported(), "application/json"));

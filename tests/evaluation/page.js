// Operates the page as a reader would, and records what the page shows.
const seen = {}, all = (selector) => [...document.querySelectorAll(selector)];
const field = (title, kind = "select") =>
  all(".tools label").find((label) => label.textContent.startsWith(title)).querySelector(kind);
const set = (title, value, kind) => {
  field(title, kind).value = value;
  field(title, kind).dispatchEvent(new Event(kind ? "input" : "change"));
};
const press = (key) => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
const chosen = () => [view.step, view.group, view.sample];
const marked = (fit) => charts.find((chart) => chart.panel?.series.some((line) => fit(line.column))).card;
const parts = (card) => card.querySelector(".curve").getAttribute("d").split("M").length - 1;
(async () => {
  const browses = document.getElementById("browser") !== null;
  if (browses) { await browsed; await browser.ready; }
  seen.charts = all("#curves svg, #featured svg").length;
  seen.words = document.body.innerText;
  seen.height = document.documentElement.scrollHeight;
  seen.wide = [document.documentElement.scrollWidth, innerWidth];
  seen.outside = all("body *").filter((e) => !e.closest(".scroll, svg, details, .groups, #tip") &&
    e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.tagName + "." + e.className);
  seen.below = all("th > .swatch").filter((swatch) => {
    const range = document.createRange();
    range.selectNode(swatch.nextSibling);
    return range.getClientRects()[0].top > swatch.getBoundingClientRect().bottom;
  }).length;
  const box = document.querySelector("#curves .chart svg").parentElement, at = box.getBoundingClientRect();
  const middle = at.left + LEFT + (at.width - LEFT - RIGHT) / 2;
  box.dispatchEvent(new PointerEvent("pointermove", {clientX: middle, clientY: at.top + 50}));
  seen.reads = all("#curves .read, #featured .read").map((e) => e.textContent);
  set("Smoothing", 0, "input");
  seen.rough = all("#curves .raw").length;
  document.getElementById("more").open = true;
  redraw();
  seen.parts = [parts(marked((name) => name === "grad_norm")), parts(marked((name) => name.startsWith("evaluation/"))),
                parts(marked((name) => name === "ended/length"))];
  set("Smoothing", 2, "input");
  seen.smooth = [all("#curves .raw").length, field("Smoothing", "output").textContent];
  seen.csv = csv().split("\n").slice(0, 3);
  if (document.getElementById("answers-table")) {
    await answered;
    const rows = () => all(".answers tbody tr").map((line) => line.querySelector(".kind").textContent);
    seen.answers = [rows().length, document.querySelector("#answers .lead").textContent];
    set("Exact match", "gained");
    seen.gained = [...new Set(rows())];
    set("Exact match", "");
    set("Search answers", "number 149,", "input[type=search]");
    seen.one = all(".answers tbody tr").map((line) => line.children[1].textContent);
    set("Search answers", "", "input[type=search]");
  }
  if (!browses) {
    const of = (selector) => all(selector).length, button = document.querySelector(".switches button");
    const lines = of("#curves .curve");
    button.click();
    seen.switched = [lines - of("#curves .curve"), of("#curves svg")];
    button.click();
    seen.narrow = all(".chart h3").filter((e) => e.clientHeight > 50).map((e) => e.textContent);
    return;
  }
  const words = element("h3", "", "\u05e9\u05dc\u05d5\u05dd?", document.body), place = (letter) => {
    const range = document.createRange();
    range.setStart(words.firstChild, letter);
    range.setEnd(words.firstChild, letter + 1);
    return range.getBoundingClientRect().left;
  };
  seen.reads_left = [place(4) < place(0), place(0) > innerWidth / 2];
  words.remove();
  seen.ticks = [ticks(-0.9, 0.9, 3), labels(ticks(0.9985, 1, 3)), labels([-5e6, -4e6])];
  seen.room = ["#answers", "#episodes"].map((name) => getComputedStyle(document.querySelector(name)).paddingTop);
  seen.top = marked((name) => name === "learning_rate").querySelector("h3").getBoundingClientRect().top -
    marked((name) => name === "learning_rate").getBoundingClientRect().top;
  seen.control = all(".segment.prompt .control").map((e) => e.textContent);
  seen.steps = all(".step option").map((e) => e.textContent);
  seen.shaded = all(".token.positive, .token.negative").length;
  const tone = (token) => (token.classList.contains("negative") ? -1 : 1) * token.style.getPropertyValue("--a");
  const groups = (await Promise.all(browser.steps.map(async ({groups}, place) => {
    const inside = await unpacked(`step-${place}`);
    return groups.map((group, i) => ({...group, ...inside[i]}));
  }))).flat().filter((group) => group.samples);
  seen.shades = groups.map((group) => {
    const root = element("div");
    new Episode(root, group, group.samples[0], 1, "advantage");
    return [...root.querySelectorAll(".segment.model")].map((box) => [...box.querySelectorAll(".token")].map(tone));
  });
  set("Shade", "probability");
  seen.unlikely = all(".segment .token.unlikely").length;
  const token = document.querySelector(".segment .token[data-tip]");
  token.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
  seen.tip = document.getElementById("tip").textContent;
  set("Outcome", "wrong");
  seen.wrong = all(".samples button").map((e) => e.textContent);
  set("Ended", "eos");
  seen.ended = all(".chip").map((e) => e.textContent).filter((text) => text.startsWith("ended"));
  set("Outcome", ""); set("Ended", "");
  set("Search questions", "kelmut", "input[type=search]");
  seen.found = all(".group .question").map((e) => e.textContent);
  set("Search questions", "no such words", "input[type=search]");
  seen.none = document.querySelector(".groups").textContent + document.querySelector(".episode").textContent;
  set("Search questions", "", "input[type=search]");
  all(".group > button")[0].click();
  document.querySelector(".samples button").focus();
  seen.keys = ["", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"].map((key) => {
    if (key) press(key);
    return chosen();
  });
  all(".group > button").at(-1).click();
  seen.address = location.hash;
  document.querySelector('[aria-label="Step before"]').click();
  await new Promise((done) => setTimeout(done, 300));
  seen.before = [view.step, document.querySelector(".episode h3").textContent];
  set("Step", 1);
  await new Promise((done) => setTimeout(done, 300));
  for (let times = 0; times < 3; times++) document.querySelector('[aria-label="Step before"]').click();
  await new Promise((done) => setTimeout(done, 300));
  seen.first = [view.step, document.querySelector(".episode h3").textContent];
  const link = document.querySelector(".callout a");
  link.click();
  await new Promise((done) => setTimeout(done, 300));
  seen.linked = [link.getAttribute("href"), `#episode-${browser.steps[view.step].step}-${view.group}-${view.sample}`];
  document.getElementById("scheme").click();
  seen.scheme = document.documentElement.dataset.scheme;
})().catch((error) => { seen.error = String(error.stack); }).then(() => parent.postMessage(JSON.stringify(seen), "*"));

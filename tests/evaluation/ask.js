// Operates the page as a reader would, and records what the page shows.
const seen = {}, all = (selector) => [...document.querySelectorAll(selector)];
const texts = (selector) => all(selector).map((e) => e.textContent);
const answered = async () => { for (;;) { await new Promise((done) => setTimeout(done, 20)); if (!under) return; } };
const type = (text) => { by("question").value = text; };
const press = (key) =>
  by("question").dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
(async () => {
  type("Where was Kormin born?");
  press("Enter");
  seen.busy = [by("send").disabled, by("stop").disabled, by("status").textContent];
  await answered();
  seen.focus = document.activeElement.id;
  seen.said = texts(".said");
  seen.status = by("status").textContent;
  const marked = [".segment.model .mark.found", ".passage .mark.found", ".segment.model .mark.cite"];
  marked.push(".passage.is-cited .title b");
  seen.marks = marked.map(texts);
  seen.judged = texts(".judged summary");
  seen.chips = texts(".chip");
  seen.markup = all("#answers b").filter((e) => e.textContent === "x").length;
  by("samples").value = "3";
  by("goes-on").checked = true;
  type("And <img src=x onerror=alert(1)>?");
  press("Enter");
  await answered();
  seen.questions = texts("#answers h3");
  seen.earlier = texts("#answers .episode > .small");
  seen.agreement = texts("#answers article:first-child .said");
  const buttons = all("#answers article:first-child .answers-choice button");
  seen.choice = buttons.map((button) => [button.textContent, button.getAttribute("aria-pressed")]);
  buttons[1].click();
  seen.chosen = buttons.map((button) => button.getAttribute("aria-pressed"));
  seen.exported = JSON.parse(exported());
  seen.images = all("img").length;
  seen.height = document.documentElement.scrollHeight;
  seen.wide = [document.documentElement.scrollWidth, innerWidth];
  seen.outside = all("body *").filter((e) => !e.closest(".scroll, details, pre") &&
    e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.tagName + "." + e.className);
  seen.named = /NaN|undefined|\[object|null/.exec(document.body.innerText);
  seen.labels = all("input, select, textarea").filter((e) => !e.labels.length).map((e) => e.id);
  type("slow?");
  by("samples").value = "1";
  press("Enter");
  do await new Promise((done) => setTimeout(done, 20)); while (!texts(".waiting").length);
  seen.waiting = true;
  press("Escape");
  await answered();
  seen.stopped = texts("#answers article:first-child .callout");
  type("And then?");
  press("Enter");
  seen.after = asked.at(-1).body.earlier.at(-1);
  press("Escape");
  await answered();
  for (const stopped of all("#answers article").slice(0, 2)) stopped.remove();
  scrollTo(0, 0);
})().catch((error) => { seen.error = String(error.stack); })
  .then(() => parent.postMessage(JSON.stringify(seen), "*"));

"use strict";
// What the page's parts share. Text from models and corpora only ever becomes text nodes.
const DATA = JSON.parse(document.getElementById("data").textContent);

// What cannot be seen, or turns the order of what stands beside it, as an escape: a query of zero-width letters shows.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udc7f]/g;
const visible = (text) => String(text).replace(UNSEEN, (sign) => `\\u{${sign.codePointAt(0).toString(16)}}`);

function element(tag, className, text, parent) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined && text !== null) made.textContent = visible(text);
  if (parent) parent.append(made);
  return made;
}

// A button that does this when it is pressed.
function presser(className, text, parent, press) {
  const made = element("button", className, text, parent);
  made.type = "button";
  made.addEventListener("click", press);
  return made;
}

// A field for words to search, with its label; `change` gets them.
function searcher(parent, title, placeholder, change) {
  const field = element("input", "", null, element("label", "", title, parent));
  Object.assign(field, {type: "search", placeholder});
  field.addEventListener("input", () => change(field.value.trim()));
}

function drawn(tag, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = visible(text);
  if (parent) parent.append(made);
  return made;
}

// Keeps what the reader has chosen in the page's address. A frame in a notebook has none that a script may change.
function address(place) {
  if (origin !== "null" || location.protocol === "file:") history.replaceState(null, "", place);
}

// What a block of the page holds: JSON, compressed, in base64.
async function unpacked(name) {
  const letters = atob(document.getElementById(name).textContent), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);  // many times as fast as Uint8Array.from
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// 0.1234 → "0.123", 1234.5 → "1,235", 2.1e-7 → "2.1e−7": three digits, whatever the size.
function tidy(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e7) return value.toExponential(1).replace("-", "−").replace("e-", "e−").replace("e+", "e");
  const text = size >= 100 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(3)));
  return text.replace("-", "−");
}

function signed(value) {
  return value > 0 ? "+" + tidy(value) : tidy(value);
}

const plural = (count, word) => `${count.toLocaleString("en-US")} ${word}${count === 1 ? "" : word.endsWith("ch") ? "es" : "s"}`;

const VERDICTS = {"gold": "brought a new gold passage", "no gold": "brought no new gold passage", "repeat": "repeated a query"};
const TAG = /<\/?[A-Za-z_][\w.|:-]*>/g;

function fold(body, parent) {
  body.classList.add("clipped");
  const button = presser("unfold", "Show all", parent, () => {
    const clipped = body.classList.toggle("clipped");
    button.textContent = clipped ? "Show all" : "Show less";
  });
}

// A cell as spreadsheets read it: quoted where it must be, and never a formula.
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? "'" + value : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

// A button that saves text() as a file.
function downloads(parent, name, text, title) {
  presser("plain", "Download CSV", parent, () => saves(name, text(), "text/csv")).title = title;
}

function saves(name, text, type) {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

document.getElementById("scheme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.scheme ? root.dataset.scheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.scheme = dark ? "light" : "dark";
});

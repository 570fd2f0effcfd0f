"use strict";
// What the page's parts share. Text from models and corpora only ever becomes text nodes.
const DATA = JSON.parse(document.getElementById("data").textContent);

function element(tag, className, text, parent) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined && text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}

function drawn(tag, attributes, parent, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
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

document.getElementById("scheme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.scheme ? root.dataset.scheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.scheme = dark ? "light" : "dark";
});

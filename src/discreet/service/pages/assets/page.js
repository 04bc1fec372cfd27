// Enhancements: copy, sort, highlight, complete names, show the duration of a query. The pages work without scripts.
"use strict";

const KEYWORDS = /^(select|from|where|group|by|order|limit|and|or|not|in|is|null|like|between|desc|asc|count|sum|avg|distinct|as|date|timestamp|true|false|having|with|join|on|case|when|then|else|end|over|partition|qualify|offset|union|all|except|intersect|explain)$/i;
const TOKENS = /('(?:[^']|'')*'?|"(?:[^"]|"")*"?|--[^\n]*|\d[\w.]*|[A-Za-z_]\w*|\s+|.)/g;

function highlight(area) {
  const shown = area.previousElementSibling;
  const wrong = area.dataset.position === undefined ? -1 : Number(area.dataset.position);
  let at = 0;
  shown.replaceChildren(...(area.value.match(TOKENS) || []).map((token) => {
    const span = document.createElement("span");
    span.textContent = token;
    if (token[0] === "'") span.className = "string";
    else if (/^\d/.test(token)) span.className = "digits";
    else if (KEYWORDS.test(token)) span.className = "keyword";
    if (wrong >= at && wrong < at + token.length) span.classList.add("here");
    at += token.length;
    return span;
  }), "\n");
  shown.scrollTop = area.scrollTop;
}

function complete(area) {
  const names = document.getElementById("names");
  const typed = area.value.slice(0, area.selectionStart).match(/[A-Za-z_]\w*$/);
  const begin = typed ? typed[0].toLowerCase() : null;
  const fitting = begin === null ? [] : area.dataset.names.split(" ").filter((name) => name.toLowerCase().startsWith(begin) && name.toLowerCase() !== begin);
  names.replaceChildren(...fitting.slice(0, 8).map((name) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    button.textContent = name;
    button.addEventListener("click", () => {
      area.focus();
      area.setRangeText(name, area.selectionStart - typed[0].length, area.selectionStart, "end");
      area.dispatchEvent(new Event("input", { bubbles: true }));
    });
    return button;
  }));
}

function tableText(table) {
  return [...table.rows].map((row) => [...row.cells].filter((cell) => !cell.classList.contains("chart"))
    .map((cell) => cell.dataset.value ?? cell.textContent.trim().replace(/\s+/g, " ")).join("\t")).join("\n");
}

async function copy(button) {
  const from = button.dataset.copy && document.querySelector(button.dataset.copy);
  const text = from ? (from.tagName === "TABLE" ? tableText(from) : from.textContent) : location.origin + button.dataset.copyText;
  await navigator.clipboard.writeText(text);
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1500);
}

function sortable(table) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (head.classList.contains("chart") || head.querySelector("button")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      [...head.parentNode.cells].forEach((cell) => cell.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const rows = [...table.tBodies[0].rows].sort((one, other) =>
        Number(value(one)) - Number(value(other)) || value(one).localeCompare(value(other)));
      table.tBodies[0].append(...(down ? rows.reverse() : rows));
    });
  });
}

function prepare() {
  const area = document.getElementById("sql");
  if (area && !area.dataset.prepared) {
    area.dataset.prepared = "yes";
    document.documentElement.classList.add("highlighted");
    area.addEventListener("input", () => { delete area.dataset.position; highlight(area); complete(area); });
    area.addEventListener("scroll", () => { area.previousElementSibling.scrollTop = area.scrollTop; });
    highlight(area);
  }
  document.querySelectorAll("table.sortable").forEach(sortable);
}

let clock = 0;
document.addEventListener("htmx:beforeRequest", (event) => {
  if (event.target.id !== "question") return;
  const began = Date.now();
  clock = setInterval(() => {
    document.querySelectorAll("#waiting .elapsed").forEach((each) => { each.textContent = `${Math.round((Date.now() - began) / 1000)} s`; });
  }, 1000);
});
document.addEventListener("htmx:afterRequest", (event) => { if (event.target.id === "question") clearInterval(clock); });
document.addEventListener("htmx:afterSettle", prepare);
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy || button.dataset.copyText) copy(button);
  if (button.id === "cancel") htmx.trigger("#question", "htmx:abort");
  if (button.dataset.set) {
    const field = document.querySelector(button.dataset.set);
    field.value = button.dataset.value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
});
document.addEventListener("DOMContentLoaded", prepare);
if (document.readyState !== "loading") prepare();

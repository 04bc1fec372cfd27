// Enhancements: copy, sort, highlight, complete names, show prices and the duration of a query. The pages work without scripts.
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

// Cells of numbers by their first number, missing ones first; all others, and equal numbers, by their texts.
function compare(one, other) {
  const texts = [one, other].map((cell) => cell.dataset.value ?? cell.textContent.trim());
  const numbers = [one, other].map((cell, n) => {
    const found = cell.classList.contains("number") && texts[n].replaceAll(",", "").match(/-?\d+(\.\d+)?(e-?\d+)?/i);
    return found ? Number(found[0]) : -Infinity;
  });
  return numbers[0] === numbers[1] ? texts[0].localeCompare(texts[1], undefined, { numeric: true }) : numbers[0] - numbers[1];
}

// Let every column be sorted but those of drawings and forms.
function sortable(table) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const cells = [...table.tBodies[0].rows].map((row) => row.cells[column]);
    if (cells.length < 2 || head.querySelector("button") || cells.some((cell) => cell.querySelector("svg, form"))) return;
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      [...head.parentNode.cells].forEach((cell) => cell.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].sort((one, other) => compare(one.cells[column], other.cells[column]));
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
  document.querySelectorAll("table:has(thead)").forEach(sortable);
}

// The form of a query. Its price follows what is typed: an answer replaces the parts of the page that it holds, by id, but
// neither the field for epsilon nor a field that was changed after the request.
const TYPING_MS = 600;
const byId = (id) => document.getElementById(id);
let changed = "";        // what the price does not follow yet: "sql", "builder", "dataset" or "epsilon"
const later = new Set(); // the fields that were changed after the last request
let request = new AbortController();
let pricing = false;
let asking = false;
let timer = 0;

function sourceOf(field) {
  return ["epsilon", "sql", "dataset"].includes(field.id) ? field.id : "builder";
}

async function load(address, options) {
  const response = await fetch(address, options);
  if (response.redirected) {
    location.assign(response.url);
    return new Promise(() => {});  // the page is left
  }
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (response.ok || page.getElementById("cost")) return page;
  throw new Error(page.getElementById("problem")?.textContent);
}

function show(page, ids) {
  const focused = document.activeElement;
  const selected = [focused.selectionStart ?? null, focused.selectionEnd];
  if (page.getElementById("dataset")?.value === byId("dataset").value) {
    for (const field of later) {
      const kept = field.id && page.getElementById(field.id);
      if (kept) Object.assign(kept, "checked" in field ? { value: field.value, checked: field.checked } : { value: field.value });
    }
  }
  for (const id of page.getElementById("cost") ? ids : ["main"]) byId(id).replaceWith(page.getElementById(id));
  const again = focused.id && byId(focused.id);
  if (again && again !== focused) {
    again.focus({ preventScroll: true });
    if (selected[0] !== null) again.setSelectionRange(...selected);
  }
  const wrong = byId("cost")?.dataset.wrong === "epsilon";
  byId("epsilon")?.setAttribute("aria-invalid", wrong);
  if (wrong) byId("epsilon").setAttribute("aria-describedby", "problem");
  prepare();
}

function fail(error) {
  byId("unreachable").textContent = error.name === "Error" && error.message
    || "The service did not answer. What you typed is still here: try again; the same question is charged once.";
  byId("unreachable").hidden = false;
}

// Ask for the price of what was changed, and show it; false if it did not come, or was asked for again.
async function price() {
  const builder = byId("builder"), typed = [...new FormData(byId("question"))];
  const sends = {
    dataset: (name) => ["dataset", "epsilon"].includes(name),
    builder: (name) => !["csrf", "key", "sql"].includes(name),
  }[changed] ?? ((name) => ["sql", "epsilon"].includes(name));
  const filters = [...builder.querySelectorAll("[name=preset]")].filter((preset) => preset.value).map((preset) => preset.closest("[id^=filter-]"));
  const shown = {
    dataset: ["builder", "statement"],
    builder: ["statement", ...[...builder.querySelectorAll("summary[id]"), ...filters].map((part) => part.id)],
    sql: ["builder", "wrong-sql"],
  }[changed] ?? ["wrong-sql"];
  const sent = new URLSearchParams(typed.filter(([name]) => sends(name)));
  if (changed === "builder") sent.set("from", "builder");
  clearTimeout(timer);
  request.abort();
  request = new AbortController();
  const { signal } = request;
  pricing = true;
  later.clear();
  byId("unreachable").hidden = true;
  byId("cost").setAttribute("aria-busy", "true");
  try {
    const page = await load(`/ask?${sent}`, { signal });
    signal.throwIfAborted();
    show(page, ["key", "cost", ...shown]);
    history.replaceState(null, "", `/ask?${sent}`);
  } catch (error) {
    if (!signal.aborted) fail(error);
    return false;
  } finally {
    if (!signal.aborted) pricing = false;
  }
  changed = later.size ? sourceOf([...later].at(-1)) : "";
  if (changed && !asking) timer = setTimeout(price, TYPING_MS);
  return true;
}

function edit(field) {
  const source = sourceOf(field);
  if (source === "builder" && changed === "dataset") return;  // a field of the dataset before
  if (source === "builder" && changed === "sql" && !asking) {
    if (!pricing) price();  // the SQL was typed first
    later.add(field);
    return;
  }
  later.add(field);
  if (!changed || source !== "epsilon") changed = source;
  if (asking) return;
  request.abort();
  pricing = false;
  clearTimeout(timer);
  timer = setTimeout(price, field.matches("select, [type=checkbox]") ? 0 : TYPING_MS);
}

async function ask(form) {
  if (asking) return;
  asking = true;
  const waiting = byId("waiting"), began = Date.now();
  const clock = setInterval(() => { waiting.querySelector(".elapsed").textContent = `${Math.round((Date.now() - began) / 1000)} s`; }, 1000);
  try {
    while (changed && changed !== "epsilon") {  // what is asked is what the fields hold
      if (!await price() || byId("problem")) return;
    }
    request.abort();
    request = new AbortController();
    pricing = false;
    changed = "";
    later.clear();
    byId("unreachable").hidden = true;
    byId("go").disabled = true;
    waiting.hidden = false;
    show(await load("/ask", { method: "POST", body: new URLSearchParams(new FormData(form)), signal: request.signal }), ["key", "cost", "wrong-sql"]);
  } catch (error) {
    if (!request.signal.aborted) fail(error);
  } finally {
    asking = false;
    clearInterval(clock);
    waiting.hidden = true;
    waiting.querySelector(".elapsed").textContent = "";
    if (byId("go")) byId("go").disabled = false;
    if (changed && byId("question")) price();
  }
}

document.addEventListener("input", ({ target }) => { if (target.form?.id === "question") edit(target); });
document.addEventListener("submit", (event) => {
  if (event.target.id !== "question") return;
  event.preventDefault();
  ask(event.target);
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.copy || button.dataset.copyText) copy(button);
  if (button.hasAttribute("data-print")) print();
  if (button.id === "cancel") request.abort();
  if (button.dataset.set) {
    const field = document.querySelector(button.dataset.set);
    field.value = button.dataset.value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
});
document.addEventListener("toggle", ({ target }) => {
  if (target.open && target.matches(".naming")) target.querySelector("input:not([type=hidden])").focus();
}, true);  // it does not bubble
document.addEventListener("DOMContentLoaded", prepare);
if (document.readyState !== "loading") prepare();

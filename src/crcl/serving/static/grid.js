// Many pairs at once: filters, bulk verdicts that are undone as one step, and where reviewers differ.

import { digits, fill, get, id, judge, node, saidInWords, say, thumbnail, told, undo } from "/static/tools.js";

const SHOWN = 60;
let rows = []; // of all pairs that the filter leaves
let total = 0;
let shown = 0;
let selected = new Set();
let busy = false;
let asked = 0;

export function prepare(about) {
  for (const [reason, count] of Object.entries(about.reasons)) {
    id("filter-reason").append(node("option", { value: reason, text: `${reason} (${count.toLocaleString("en")})` }));
  }
  id("filters").addEventListener("submit", (event) => event.preventDefault());
  id("filters").addEventListener("change", show);
  let timer = 0;
  id("filter-text").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(show, 250);
  });
  id("filter-below").addEventListener("input", () => show());
  id("more").addEventListener("click", () => load(shown));
  for (const button of document.querySelectorAll("#grid .bulk button")) {
    button.addEventListener("click", () => press(button.dataset.key));
  }
}

export async function show() {
  selected = new Set();
  await load(0);
}

async function load(start) {
  const turn = ++asked;
  const values = { queue: id("filter-queue").value, reason: id("filter-reason").value, text: id("filter-text").value, verdict: id("filter-verdict").value, start, count: SHOWN };
  if (id("filter-below").value && id("filter-below").validity.valid) values.below = id("filter-below").value;
  let found;
  try {
    found = await get("/api/pairs", values);
  } catch (error) {
    say(error.message, "bad");
    return;
  }
  if (turn !== asked) return; // an answer to an older filter
  ({ total, rows } = found);
  const cells = found.pairs.map(cell);
  if (start === 0) id("cells").replaceChildren(...cells);
  else id("cells").append(...cells);
  shown = start + cells.length;
  id("more").hidden = shown >= total;
  count();
}

function cell(pair) {
  const box = node("input", { type: "checkbox", "aria-label": `select row ${pair.row}`, checked: selected.has(pair.row) });
  box.addEventListener("change", () => {
    if (box.checked) selected.add(pair.row);
    else selected.delete(pair.row);
    count();
  });
  const said = pair.verdict ? [node("span", { class: `said ${pair.verdict.verdict}`, text: told(pair.verdict) })] : [];
  const belief = pair.correspondence === null ? "" : `belief ${digits(pair.correspondence)}`;
  const look = node("a", { class: "look", href: `#review/pair/${pair.number}`, text: "look" });
  return node("li", { class: "cell" }, [
    node("label", {}, [
      thumbnail(pair.image, pair.name),
      box,
      node("span", { class: "text", text: pair.caption, dir: "auto" }),
      node("span", { class: "line quiet" }, [node("span", { class: "number", text: belief }), ...said]),
    ]),
    node("span", { class: "line quiet" }, [node("span", { class: "origin", text: `row ${pair.row} · ${pair.name}` }), look]),
  ]);
}

function count() {
  id("chosen").textContent = `${selected.size.toLocaleString("en")} of ${total.toLocaleString("en")} selected:`;
  for (const button of document.querySelectorAll("#grid .bulk button")) {
    const key = button.dataset.key;
    button.disabled = key === "a" ? !rows.length : key !== "z" && !selected.size;
  }
}

function select(chosen) {
  selected = new Set(chosen);
  for (const box of document.querySelectorAll("#cells input")) box.checked = selected.size > 0;
  count();
  if (selected.size && selected.size < total) say(`at most ${rows.length.toLocaleString("en")} pairs are judged at once`);
}

export async function press(key) {
  const verdict = { r: "right", w: "wrong", u: "unsure" }[key];
  if (busy) return;
  if (key === "a" || key === "x") return select(key === "a" ? rows : []);
  if (key !== "z" && !verdict) return;
  busy = true;
  try {
    if (key === "z") await undo();
    else {
      if (!selected.size) return say("select pairs first: A selects all that the filter leaves");
      if (!(await judge("grid", [...selected].map((row) => ({ row, verdict }))))) return;
    }
    await show();
  } finally {
    busy = false;
  }
}

export async function showDiffering() {
  try {
    const found = await get("/api/disagreements");
    id("differ-count").textContent = found.total || "";
    fill(id("differing"), found.pairs.length ? found.pairs.map(differing) : [node("li", { class: "quiet", text: "Nowhere so far." })]);
  } catch (error) {
    say(error.message, "bad");
  }
}

function differing(pair) {
  const said = pair.said.map((one) => node("li", {}, [node("b", { text: `${one.reviewer}: ` }), node("span", { text: saidInWords(one) })]));
  return node("li", { class: "differs" }, [
    thumbnail(pair.image, pair.name),
    node("div", {}, [node("p", { class: "text", text: pair.caption, dir: "auto" }), node("ul", { class: "plain-list" }, said), node("a", { href: `#review/pair/${pair.number}`, text: `look at row ${pair.row}` })]),
  ]);
}

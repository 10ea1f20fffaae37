// Small helpers: nodes made of text, requests, and the line that says whether something is saved.

export const id = (name) => document.getElementById(name);

// A node; `text` is text and nothing else.
export function node(tag, { text, ...attributes } = {}, children = []) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  if (text !== undefined) made.textContent = text;
  made.append(...children);
  return made;
}

export function fill(list, nodes, block = null) {
  list.replaceChildren(...nodes);
  if (block) block.hidden = nodes.length === 0;
}

export function say(text, kind = "") {
  const line = id("status");
  line.textContent = text;
  line.className = `status ${kind}`;
}

async function answer(request) {
  let got;
  try {
    got = await request;
  } catch {
    throw new Error("the server does not answer");
  }
  if (got.ok) return got.json();
  let detail = "";
  try {
    detail = (await got.json()).detail;
  } catch {
    detail = `the server answered ${got.status}`;
  }
  throw new Error(detail);
}

export const get = (path, values = {}) => {
  const query = new URLSearchParams(values).toString();
  return answer(fetch(query ? `${path}?${query}` : path));
};

export const post = (path, body) =>
  answer(fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) }));

const KEY = "crcl-reviewer";
export const reviewer = () => localStorage.getItem(KEY) || "";
export const setReviewer = (name) => localStorage.setItem(KEY, name);

// Stores verdicts. "saved" is shown only after the server has answered, and it answers after the commit.
export async function judge(queue, verdicts) {
  say("saving …");
  try {
    await post("/api/verdicts", { reviewer: reviewer(), queue, verdicts });
  } catch (error) {
    say(`not saved: ${error.message}`, "bad");
    return false;
  }
  const what = verdicts.length === 1 ? told(verdicts[0]) : `${verdicts.length.toLocaleString("en")} pairs ${verdicts[0].verdict}`;
  say(`saved: ${what}`, "good");
  return true;
}

export async function undo() {
  say("undoing …");
  try {
    const { undone, count } = await post("/api/undo", { reviewer: reviewer() });
    say(count === 0 ? "nothing to undo" : count === 1 ? `undone: row ${undone[0].row} ${told(undone[0])}` : `undone: ${count.toLocaleString("en")} verdicts`, "good");
    return undone;
  } catch (error) {
    say(`not undone: ${error.message}`, "bad");
    return [];
  }
}

// A verdict in full.
export const saidInWords = (said) =>
  said.image !== null ? `wrong: belongs to ${said.image}` : said.caption !== null ? `wrong: should be “${said.caption}”` : said.verdict;

const given = (value) => value !== null && value !== undefined;

export function told(said) {
  if (given(said.image)) return "wrong, relinked";
  if (given(said.caption) || given(said.take)) return "wrong, new caption";
  return said.verdict;
}

export function digits(value) {
  if (value === null || value === undefined) return "–";
  if (value !== 0 && Math.abs(value) < 0.001) return value < 0 ? ">-0.001" : "<0.001";
  return value.toFixed(3);
}

export const percent = (share) => `${Math.round(100 * share)} %`;
export const chance = (share) => (share > 0.99 ? "over 99 %" : share < 0.01 ? "under 1 %" : percent(share));
export const image = (number, size = "small") => `/images/${number}?size=${size}`;

export function thumbnail(number, name) {
  const made = node("img", { src: image(number), alt: name, loading: "lazy", decoding: "async" });
  made.addEventListener("error", () => made.replaceWith(node("span", { class: "none", text: "no picture" })));
  return made;
}

// Whether a key is meant for the page and not for a field or a shortcut of the browser.
export function forPage(event) {
  const inField = event.target.closest?.("input:not([type=checkbox]), textarea, select");
  return !inField && !event.ctrlKey && !event.altKey && !event.metaKey;
}

// Where one is on the page (kept in the address, so that a reload comes back), and who reviews.

import { forPage, get, id, node, reviewer, say, setReviewer } from "/static/tools.js";
import * as grid from "/static/grid.js";
import * as review from "/static/review.js";
import * as search from "/static/search.js";

const SECTIONS = ["review", "grid", "differ", "search"];
let about = null;
let here = "";

async function begin() {
  try {
    about = await get("/api/about");
  } catch (error) {
    say(error.message, "bad");
    return;
  }
  id("title").textContent = about.title;
  document.title = `${about.title}: review`;
  id("to-search").hidden = !about.search;
  id("why-not").textContent = about.why_not ? `No search: ${about.why_not}` : "";
  id("summary").replaceChildren(...about.summary.map((text) => node("p", { text })));
  review.prepare();
  grid.prepare(about);
  search.prepare();
  window.addEventListener("hashchange", show);
  show();
}

function ask() {
  delete document.body.dataset.here;
  for (const name of SECTIONS) id(name).hidden = true;
  id("ask").hidden = false;
  id("name").value = reviewer();
  id("name").focus();
}

function show() {
  if (!reviewer()) {
    ask();
    return;
  }
  id("who").textContent = reviewer();
  id("ask").hidden = true;
  const [name, ...rest] = location.hash.slice(1).split("/");
  here = SECTIONS.includes(name) ? name : "review";
  document.body.dataset.here = here;
  for (const section of SECTIONS) {
    id(section).hidden = section !== here;
    const link = id(`to-${section}`);
    if (section === here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  id("why-not").hidden = here !== "review" || !about.why_not;
  if (here === "review") review.show(rest);
  if (here === "grid") grid.show();
  if (here === "differ") grid.showDiffering();
  if (here === "search") search.show(rest);
}

id("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = id("name").value.trim();
  if (!name) return;
  setReviewer(name);
  id("name").blur();
  show();
});
id("who").addEventListener("click", ask);
for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => say("")); // it told of another section

document.addEventListener("keydown", (event) => {
  if (!id("ask").hidden || !forPage(event)) return;
  const key = event.key.toLowerCase();
  if (key === "/" && about?.search) {
    event.preventDefault();
    location.hash = "#search";
    id("query").focus();
  } else if (here === "review") review.press(key, event);
  else if (here === "grid") grid.press(key, event);
});

begin();

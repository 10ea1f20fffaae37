// One pair at a time: its picture, what speaks against it, and keys for every verdict.

import { chance, digits, fill, get, id, image, judge, node, percent, saidInWords, say, thumbnail, undo } from "/static/tools.js";

const QUEUES = ["worst", "sample"];
let queue = "worst";
let place = null; // in the queue; null for a pair that was opened from elsewhere
let pair = null; // what is shown; null while another one is on its way, so that no key is taken for the one before
let busy = false;
let asked = 0;

export function prepare() {
  for (const name of QUEUES) {
    id(`queue-${name}`).addEventListener("click", () => go(name));
  }
  for (const button of id("acts").querySelectorAll("button")) {
    button.addEventListener("click", () => press(button.dataset.key));
  }
  id("done-undo").addEventListener("click", () => press("z"));
  id("edit").addEventListener("submit", (event) => {
    event.preventDefault();
    saveEdit();
  });
  id("new-caption").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      id("edit").requestSubmit();
    } else if (event.key === "Escape") closeEdit();
  });
  id("cancel").addEventListener("click", closeEdit);
  id("picture").addEventListener("error", () => {
    id("picture").hidden = true;
    id("no-picture").hidden = false;
  });
}

// Called with what follows #review in the address: a queue and a place, or "pair" and a number.
export async function show([name, number]) {
  closeEdit();
  pair = null;
  id("pair").setAttribute("aria-busy", "true");
  const turn = ++asked;
  try {
    if (name === "pair") {
      [queue, place] = ["worst", null];
      draw(await get(`/api/pairs/${Number(number)}`), turn);
    } else if (QUEUES.includes(name) && number !== undefined) {
      [queue, place] = [name, Number(number)];
      draw(await get(`/api/queues/${queue}/${place}`), turn);
    } else {
      if (QUEUES.includes(name)) queue = name;
      return await next(-1);
    }
    await progress();
  } catch (error) {
    say(error.message, "bad");
  }
}

function go(name, at) {
  const target = at === undefined ? `#review/${name}` : `#review/${name}/${at}`;
  pair = null;
  [queue, place] = [name, at ?? place];
  if (location.hash === target) show([name, at]);
  else location.hash = target;
}

async function next(after) {
  const found = await get(`/api/queues/${queue}/next`, { after });
  if (found.place !== null) return go(queue, found.place);
  pair = null;
  place = -1;
  id("pair").hidden = true;
  id("done").hidden = false;
  id("done-text").textContent = found.total ? "Every pair of this queue has a verdict." : "There is nothing to review here.";
  id("done-undo").hidden = !found.total;
  await progress();
}

function draw(found, turn) {
  if (turn !== asked) return; // an answer to an older question
  pair = found;
  id("pair").setAttribute("aria-busy", "false");
  id("done").hidden = true;
  id("pair").hidden = false;
  id("facts").scrollTop = 0;
  drawPicture();
  id("caption").textContent = pair.caption;
  const said = id("verdict");
  said.hidden = pair.verdict === null;
  said.className = `said ${pair.verdict?.verdict ?? ""}`;
  said.textContent = pair.verdict ? saidInWords(pair.verdict) : "";
  id("blind").hidden = !pair.blind;
  const scores = [["belief", digits(pair.correspondence)], ["probability that it is wrong", pair.p_wrong === null ? null : chance(pair.p_wrong)], ["similarity", digits(pair.similarity)]];
  fill(id("scores"), pair.blind ? [] : scores.filter(([, value]) => value !== null).map(([name, value]) => node("div", {}, [node("dt", { text: name }), node("dd", { text: value })])));
  fill(id("reasons"), pair.reasons.map((text) => node("li", { text })));
  id("words").textContent = pair.words;
  id("fix").textContent = pair.fix ? `Suggested: ${pair.fix}` : "";
  fill(id("captions").querySelector("ol"), pair.captions.map(takeButton), id("captions"));
  fill(id("images").querySelector("ol"), pair.images.map(relinkButton), id("images"));
  fill(id("siblings").querySelector("ul"), pair.siblings.map((other) => node("li", { text: other.caption, dir: "auto" })), id("siblings"));
  fill(id("said").querySelector("ul"), pair.said.map((one) => node("li", { text: `${one.reviewer}: ${saidInWords(one)}` })), id("said"));
  id("origin").textContent = `row ${pair.row} · ${pair.name}${place === null ? "" : ` · ${place + 1} of ${pair.total}`}`;
  id("look-at").href = `#search//${pair.image}`;
  id("look-at").hidden = pair.blind || id("to-search").hidden;
}

function drawPicture() {
  const picture = id("picture");
  picture.hidden = false;
  id("no-picture").hidden = true;
  picture.src = image(pair.image, "large");
  picture.alt = pair.name;
  if (Number.isInteger(pair.next_image)) new Image().src = image(pair.next_image, "large");
}

function takeButton(other, at) {
  const parts = [node("kbd", { text: String(at + 1) }), node("span", { class: "text", text: other.caption, dir: "auto" }), node("span", { class: "fit", text: digits(other.fit) })];
  return node("li", {}, [node("button", { type: "button", class: "take", onclick: () => press(String(at + 1)) }, parts)]);
}

function relinkButton(other, at) {
  const label = node("span", { class: "line" }, [node("kbd", { text: String(at + 4) }), node("span", { class: "fit", text: digits(other.fit) })]);
  const button = node("button", { type: "button", class: "relink", title: other.name, onclick: () => press(String(at + 4)) }, [thumbnail(other.image, other.name), label]);
  return node("li", {}, [button]);
}

const VERDICTS = { r: "right", w: "wrong", u: "unsure" };

export function press(key, event) {
  if (busy) return;
  const number = Number(key);
  if (key === "z") takeBack();
  else if (key === "j" || key === "arrowright") step(1);
  else if (key === "k" || key === "arrowleft") step(-1);
  else if (pair === null) return;
  else if (VERDICTS[key]) give({ verdict: VERDICTS[key] });
  else if (key === "e") {
    event?.preventDefault();
    openEdit();
  } else if (number >= 1 && number <= 3 && pair.captions[number - 1]) give({ verdict: "wrong", take: pair.captions[number - 1].number });
  else if (number >= 4 && number <= 6 && pair.images[number - 4]) give({ verdict: "wrong", image: pair.images[number - 4].image });
}

async function give(said) {
  if (busy || pair === null) return;
  busy = true;
  try {
    const where = place === null ? "grid" : queue;
    if (!(await judge(where, [{ row: pair.row, ...said }]))) return;
    closeEdit();
    if (place === null) history.back();
    else await next(place);
  } catch (error) {
    say(`saved, but: ${error.message}`, "bad");
  } finally {
    busy = false;
  }
}

async function takeBack() {
  busy = true;
  try {
    const undone = await undo();
    if (!undone.length) return;
    const first = undone[0];
    if (undone.length === 1 && first.place !== null) go(first.queue, first.place);
    else if (undone.length === 1 && first.number !== null) {
      if (location.hash === `#review/pair/${first.number}`) await show(["pair", first.number]);
      else location.hash = `#review/pair/${first.number}`;
    } else await show(location.hash.slice(1).split("/").slice(1));
  } finally {
    busy = false;
  }
}

function step(by) {
  if (place === null || pair === null) return;
  const to = place + by;
  if (to >= 0 && to < pair.total) go(queue, to);
  else say(by > 0 ? "that was the last one" : "this is the first one");
}

function openEdit() {
  id("edit").hidden = false;
  id("new-caption").value = pair.caption;
  id("new-caption").focus();
  id("new-caption").select();
}

function saveEdit() {
  const caption = id("new-caption").value.trim();
  if (pair === null) return;
  if (!caption) say("write a caption, or cancel", "bad");
  else if (caption === pair.caption.trim()) say("the caption is as before: press Esc, and R if it is right", "bad");
  else give({ verdict: "wrong", caption });
}

function closeEdit() {
  id("edit").hidden = true;
  id("new-caption").blur();
}

export async function progress() {
  const found = await get("/api/progress");
  for (const [name, { total, done }] of Object.entries(found.queues)) {
    const button = id(`queue-${name}`);
    button.querySelector(".count").textContent = `${done.toLocaleString("en")} of ${total.toLocaleString("en")}`;
    button.querySelector("progress").max = Math.max(total, 1);
    button.querySelector("progress").value = done;
    button.setAttribute("aria-pressed", String(place !== null && name === queue));
  }
  id("differ-count").textContent = found.disagreements || "";
  drawMeasures(found);
}

function drawMeasures({ measured, estimated }) {
  const box = id("measures");
  box.hidden = queue !== "sample" || place === null;
  const told = (one, none) => (one ? `${percent(one.value)} (${percent(one.low)} to ${percent(one.high)})` : none);
  const rows = [["Precision", "precision"], ["Recall", "recall"]].map(([name, key]) =>
    node("tr", { id: key }, [node("th", { scope: "row", text: name }), node("td", { text: told(measured[key], "no verdicts yet") }), node("td", { text: told(estimated[key], "none") })]),
  );
  box.tBodies[0].replaceChildren(...rows);
  box.caption.textContent = `from ${measured.flagged} flagged and ${measured.unflagged} unflagged pairs; 95 % intervals`;
}

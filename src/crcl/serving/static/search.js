// Images for a sentence; and for an image its captions, captions that match it, and images near it.

import { digits, fill, get, id, image, node, say, thumbnail } from "/static/tools.js";

let asked = 0;

export function prepare() {
  id("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = id("query").value.trim();
    if (text) location.hash = `#search/${encodeURIComponent(text)}`;
  });
}

// Called with what follows #search in the address: a sentence, and the number of an image that is looked at.
export async function show([sentence = "", number]) {
  const text = decode(sentence);
  id("query").value = text;
  if (!text && number === undefined) {
    id("looked-at").hidden = true;
    fill(id("found"), []);
    id("query").focus();
    return;
  }
  const turn = ++asked;
  try {
    if (number === undefined) id("looked-at").hidden = true;
    else look(await get(`/api/images/${Number(number)}`), sentence);
    const found = text ? (await get("/api/search", { q: text })).images : [];
    if (turn !== asked) return;
    fill(id("found"), found.map((one) => result(one, sentence)));
    if (number === undefined) say(`${found.length} images`);
  } catch (error) {
    say(error.message, "bad");
  }
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

function result(one, sentence) {
  const parts = [thumbnail(one.image, one.name), node("span", { class: "text", text: one.caption, dir: "auto" }), node("span", { class: "line quiet" }, [node("span", { class: "origin", text: one.name }), node("span", { class: "fit", text: digits(one.fit) })])];
  return node("li", { class: "cell" }, [node("a", { class: "result", href: `#search/${sentence}/${one.image}` }, parts)]);
}

function look(found, sentence) {
  id("looked-at").hidden = false;
  id("found-picture").src = image(found.image, "large");
  id("found-picture").alt = found.name;
  id("found-name").textContent = found.name;
  id("close").href = `#search/${sentence}`;
  fill(id("own-captions"), found.captions.map((one) => node("li", {}, [node("a", { href: `#review/pair/${one.number}`, text: one.caption, dir: "auto" })])));
  fill(id("matching"), found.matching.map((one) => node("li", { class: "line" }, [node("a", { class: "text", href: `#search/${sentence}/${one.image}`, text: one.caption, dir: "auto" }), node("span", { class: "fit", text: digits(one.fit) })])));
  fill(id("near"), found.near.map((one) => node("li", {}, [node("a", { href: `#search/${sentence}/${one.image}`, title: one.name }, [thumbnail(one.image, one.name)])])));
  window.scrollTo({ top: 0 });
}

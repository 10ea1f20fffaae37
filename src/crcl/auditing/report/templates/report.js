"use strict";
// Fills, filters and sorts the cards. Text from the data is set as text or as a property, never as HTML.
(() => {
  const STEP = 48; // cards added at a time
  const at = (id) => document.getElementById(id);
  const data = JSON.parse(at("data").textContent);
  const pairs = data.pairs.map(
    ([row, image, caption, correspondence, similarity, flagged, truth, captions, images, reasons, fix, said], place) => ({
      place, row, image, correspondence, similarity, flagged, truth, captions, images, reasons, said,
      fix: fix === null ? "" : data.fixes[fix],
      name: data.images[image][0],
      caption: data.captions[caption],
      words: `${data.captions[caption]}\n${data.images[image][0]}`.toLowerCase(),
    }),
  );
  const names = new Intl.Collator(undefined, { numeric: true });
  const orders = {
    least: (a, b) => a.place - b.place,
    most: (a, b) => b.place - a.place,
    dissimilar: (a, b) => a.similarity - b.similarity || a.place - b.place,
    similar: (a, b) => b.similarity - a.similarity || a.place - b.place,
    name: (a, b) => names.compare(a.name, b.name) || a.row - b.row,
    row: (a, b) => a.row - b.row,
  };
  const blank = at("blank").content.firstElementChild;
  const list = at("cards"), button = at("more"), find = at("find"), order = at("order"), most = at("most");
  const levels = data.hasCorrespondence ? [...new Set(pairs.map((pair) => pair.correspondence))].sort((a, b) => a - b) : [];
  const printed = Number(list.dataset.printed);
  const buttons = [...document.querySelectorAll("[data-reason]")];
  let chosen = [], shown = 0, waiting = 0, reason = null; // a number of data.reasons, or -1: flagged without any

  const number = (value) => (value === null ? "–" : value.toFixed(3));
  const digits = (value) => (value === 0 ? "0" : value < 1e-6 ? "<0.000001" : value.toPrecision(3)); // as in gallery.py

  function picture(image, node, missing) {
    const [, thumb, width, height] = data.images[image];
    if (node === null) return;
    node.hidden = !thumb;
    missing.hidden = Boolean(thumb);
    if (!thumb) return;
    node.width = width;
    node.height = height;
    node.src = `thumbs/${thumb}`;
  }

  function others(box, found, fill) {
    const items = box.querySelector("ol"), item = items.firstElementChild;
    box.hidden = !found.length;
    items.replaceChildren(
      ...found.map(([what, fit, row]) => {
        const made = item.cloneNode(true);
        made.querySelector(".fit").textContent = number(fit);
        if (row) made.querySelector(".shown-in").textContent = row;
        fill(made, what);
        return made;
      }),
    );
  }

  function why([code, row]) {
    const item = document.createElement("li"), [plain, pointing] = data.reasons[code];
    item.textContent = row === null ? plain : pointing.replace("{}", row);
    return item;
  }

  const hasReason = (pair) =>
    reason === null || (reason < 0 ? pair.flagged && !pair.reasons.length : pair.reasons.some(([code]) => code === reason));

  function cardOf(pair, place) {
    const card = blank.cloneNode(true);
    if (place < printed) for (const image of card.querySelectorAll("img")) image.loading = "eager"; // printing does not wait for lazy images
    const part = (name) => card.querySelector(`.${name}`);
    card.classList.toggle("unflagged", !pair.flagged);
    picture(pair.image, part("large"), part("missing"));
    part("caption").textContent = pair.caption;
    if (data.hasCorrespondence) {
      part("filled").style.width = `${100 * pair.correspondence}%`;
      part("correspondence").textContent = digits(pair.correspondence);
    }
    part("similarity").textContent = number(pair.similarity);
    part("name").textContent = part("name").title = pair.name;
    part("row").textContent = `row ${pair.row}`;
    part("above").hidden = pair.flagged;
    part("truth").hidden = pair.truth === null;
    part("truth").textContent = data.truths[Number(pair.truth)];
    part("tags").hidden = pair.flagged && pair.truth === null;
    others(part("other-captions"), pair.captions, (item, caption) => {
      item.querySelector(".text").textContent = data.captions[caption];
    });
    others(part("other-images"), pair.images, (item, image) => {
      const name = data.images[image][0];
      item.title = item.querySelector(".small").alt = item.querySelector(".text").textContent = name;
      picture(image, item.querySelector(".small"), item.querySelector(".text"));
    });
    part("reasons").replaceChildren(...pair.reasons.map(why));
    part("reasons").hidden = !pair.reasons.length;
    part("fix-text").textContent = pair.fix;
    part("fix").hidden = !pair.fix;
    part("of-words").textContent = pair.said;
    part("of-words").hidden = !pair.said;
    part("why").hidden = !pair.reasons.length && !pair.fix && !pair.said;
    part("instead").hidden = !pair.captions.length && !pair.images.length;
    return card;
  }

  function showMore() {
    const next = chosen.slice(shown, shown + STEP);
    list.append(...next.map((pair, number) => cardOf(pair, shown + number)));
    shown += next.length;
    button.hidden = shown >= chosen.length;
    seen.unobserve(button);
    if (!button.hidden) seen.observe(button); // reports at once if the button is still visible
  }

  function choose() {
    const wanted = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const limit = most === null || !levels.length ? Infinity : levels[most.value];
    if (most !== null) {
      at("limit").textContent = levels.length ? digits(limit) : "–";
      most.setAttribute("aria-valuetext", at("limit").textContent);
    }
    chosen = pairs.filter(
      (pair) => pair.correspondence <= limit && hasReason(pair) && wanted.every((word) => pair.words.includes(word)),
    );
    chosen.sort(orders[order.value]);
    list.replaceChildren();
    shown = 0;
    showMore();
    const all = pairs.length.toLocaleString("en"), some = chosen.length.toLocaleString("en");
    at("status").textContent = chosen.length === pairs.length ? `${all} pairs` : `${some} of ${all} pairs`;
    at("on-paper").hidden = chosen.length <= printed && chosen.length === pairs.length;
    const first = chosen.length > printed ? `the first ${printed} of ${some}` : some;
    at("on-paper").textContent = `Printed: ${first}${chosen.length === pairs.length ? "" : " that match the filter"}.`;
    at("none").hidden = chosen.length > 0 || pairs.length === 0;
  }

  const soon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(choose, 120);
  };
  const seen = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && showMore(), {
    rootMargin: "800px",
  });
  find.addEventListener("input", soon);
  order.addEventListener("change", choose);
  if (most !== null) most.addEventListener("input", soon);
  button.addEventListener("click", showMore);
  for (const one of buttons) {
    one.addEventListener("click", () => {
      const wanted = Number(one.dataset.reason);
      reason = reason === wanted ? null : wanted; // pressed again: all pairs
      for (const other of buttons) other.setAttribute("aria-pressed", String(Number(other.dataset.reason) === reason));
      choose();
    });
  }
  if (most !== null) most.value = most.max = Math.max(levels.length - 1, 0); // one step per value, however small
  document.documentElement.classList.add("scripted");
  choose();
})();

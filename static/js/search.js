// The search box (`/`): searches while the user types. Arrow keys select, Enter opens the selection or the results page.
import { element } from "./draw.js";

const PAUSE_MILLISECONDS = 120;
const dialog = document.getElementById("search");
const form = dialog.querySelector("form");
const box = document.getElementById("search-for");
const list = document.getElementById("search-found");
const status = document.getElementById("search-said");
let active = -1;
let timer = null;
let asking = null;

const options = () => [...list.querySelectorAll("[role=option]")];

async function ask() {
  asking?.abort();
  asking = new AbortController();
  const query = new URLSearchParams(new FormData(form));
  query.set("format", "json");
  try {
    const answer = await fetch(`${form.action}?${query}`, { headers: { Accept: "application/json" }, signal: asking.signal });
    if (!answer.ok) throw new Error(answer.statusText);
    show((await answer.json()).groups);
  } catch (error) {
    if (error.name === "AbortError") return;
    show([]);
    status.textContent = status.dataset.failed;
  }
}

function show(groups) {
  active = -1;
  box.removeAttribute("aria-activedescendant");
  let number = 0;
  list.replaceChildren(...groups.map((group, index) => element("div", { role: "group", "aria-labelledby": `search-group-${index}` },
    element("p", { class: "small muted", id: `search-group-${index}` }, group.label),
    ...group.hits.map((hit) => {
      const option = element("div", { role: "option", id: `search-option-${number++}`, "aria-selected": "false" },
        element("span", {}, hit.title), hit.note ? element("span", { class: "muted small" }, hit.note) : null);
      option.dataset.url = hit.url;
      return option;
    }))));
  box.setAttribute("aria-expanded", String(number > 0));
  status.textContent = number || !box.value.trim() ? "" : status.dataset.none;
}

function move(step) {
  const all = options();
  if (!all.length) return;
  active = active < 0 ? (step > 0 ? 0 : all.length - 1) : (active + step + all.length) % all.length;
  for (const [index, option] of all.entries()) option.setAttribute("aria-selected", String(index === active));
  box.setAttribute("aria-activedescendant", all[active].id);
  all[active].scrollIntoView({ block: "nearest" });
}

box.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE_MILLISECONDS);
});
box.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    move(event.key === "ArrowDown" ? 1 : -1);
  } else if (event.key === "Enter" && active >= 0) {
    event.preventDefault();
    location.assign(options()[active].dataset.url);
  }
});
list.addEventListener("click", (event) => {
  const option = event.target.closest("[role=option]");
  if (option) location.assign(option.dataset.url);
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) dialog.close();
});
new MutationObserver(() => {
  if (!dialog.open) return;
  box.select();
  ask();
}).observe(dialog, { attributeFilter: ["open"] });

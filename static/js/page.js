// What every page has: the menu, the theme, the keys, bar widths, and times told relative to now.
import { drawBars, tellTimes } from "./draw.js";

function showTheme(chosen) {
  for (const button of document.querySelectorAll("#theme button")) {
    button.setAttribute("aria-pressed", button.value === chosen);
  }
}

document.getElementById("theme").addEventListener("click", (event) => {
  const chosen = event.target.value;
  if (!chosen) return;
  if (chosen === "system") {
    localStorage.removeItem("theme");
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem("theme", chosen);
    document.documentElement.dataset.theme = chosen;
  }
  showTheme(chosen);
});
showTheme(document.documentElement.dataset.theme ?? "system");

const menu = document.querySelector("details.menu");
document.addEventListener("click", (event) => {
  if (!menu.contains(event.target)) menu.open = false;
});
for (const opener of document.querySelectorAll("[data-opens]")) {
  opener.addEventListener("click", () => openDialog(opener.dataset.opens));
}
for (const select of document.querySelectorAll("select[data-submits]")) {
  select.form.querySelector("button")?.setAttribute("hidden", "");
  select.addEventListener("change", () => select.form.requestSubmit());
}

function openDialog(id) {
  menu.open = false;
  document.getElementById(id)?.showModal();
}

function search() {
  const field = document.querySelector("input[type=search]");
  field?.focus();
  field?.select();
}

function nextTab(step) {
  const tabs = [...document.querySelectorAll(".tabs a")];
  const here = tabs.findIndex((tab) => tab.hasAttribute("aria-current"));
  tabs[here + step]?.click();
}

const KEYS = { "/": search, "?": () => openDialog("keys"), "[": () => nextTab(-1), "]": () => nextTab(1) };
let afterG = false;
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") menu.open = false;
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  if (afterG) document.querySelector(`nav [data-key="${CSS.escape(event.key)}"]`)?.click();
  else if (KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
  afterG = event.key === "g" && !afterG;
});

drawBars(document);
tellTimes(document);
setInterval(() => tellTimes(document), 10_000);

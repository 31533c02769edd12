// Shared by all pages: menus, theme, colours and density, bar widths, and relative times.
import { drawBars, updateTimes } from "./draw.js";
import { showWaitingNote } from "./notes.js";
import "./scroll-boxes.js";

const DEFAULTS = { theme: "system", palette: "default", density: "dense" };

function show(name, chosen) {
  for (const button of document.querySelectorAll(`#${name} button`)) {
    button.setAttribute("aria-pressed", button.value === chosen);
  }
}

for (const [name, standard] of Object.entries(DEFAULTS)) {
  document.getElementById(name).addEventListener("click", (event) => {
    const chosen = event.target.value;
    if (!chosen) return;
    if (chosen === standard) {
      localStorage.removeItem(name);
      delete document.documentElement.dataset[name];
    } else {
      localStorage.setItem(name, chosen);
      document.documentElement.dataset[name] = chosen;
    }
    show(name, chosen);
    document.dispatchEvent(new CustomEvent("look", { detail: name }));
  });
  show(name, document.documentElement.dataset[name] ?? standard);
}

export function closeMenus(but = null) {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (menu !== but) menu.open = false;
}

export function openDialog(id) {
  closeMenus();
  document.getElementById(id)?.showModal();
}

document.addEventListener("click", (event) => {
  closeMenus(event.target.closest("details.menu"));
  const opener = event.target.closest("[data-opens]");
  if (!opener || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  openDialog(opener.dataset.opens);
});
document.addEventListener("focusin", (event) => closeMenus(event.target.closest("details.menu")));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const open = event.target.closest("details.menu[open]");
  closeMenus();
  open?.querySelector("summary").focus();
});
for (const select of document.querySelectorAll("select[data-submits]")) {
  select.form.querySelector("button")?.setAttribute("hidden", "");
  select.addEventListener("change", () => select.form.requestSubmit());
}
// A change of language keeps the current URL, including the query and the fragment that scripts wrote.
const returns = document.querySelector("#own input[name=next]");
returns?.form.addEventListener("submit", () => (returns.value = location.pathname + location.search + location.hash));
// A slider and its number field (`.pair`) have the same value; only the number field has a name.
document.addEventListener("input", (event) => {
  for (const twin of event.target.closest(".pair")?.querySelectorAll("input") ?? []) {
    if (twin !== event.target) twin.value = event.target.value;
  }
});

drawBars(document);
updateTimes(document);
setInterval(() => updateTimes(document), 10_000);
showWaitingNote();

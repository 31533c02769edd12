// What every page has: the theme switch, bar widths, keys, and times told relative to now.
import { drawBars, tellTimes } from "./draw.js";

const NEXT_THEME = { system: "light", light: "dark", dark: "system" };

document.getElementById("theme")?.addEventListener("click", () => {
  const next = NEXT_THEME[localStorage.getItem("theme") ?? "system"];
  if (next === "system") {
    localStorage.removeItem("theme");
    delete document.documentElement.dataset.theme;
  } else {
    localStorage.setItem("theme", next);
    document.documentElement.dataset.theme = next;
  }
});

const PLACES = { f: "/", n: "/nodes/", j: "/workloads/", d: "/decisions/", w: "/what-if/", p: "/policies/" };
let afterG = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) return;
  if (event.key === "/") {
    const search = document.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  } else if (afterG && PLACES[event.key]) {
    location.assign(PLACES[event.key]);
  }
  afterG = event.key === "g";
});

drawBars(document);
tellTimes(document);
setInterval(() => tellTimes(document), 10_000);

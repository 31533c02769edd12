// Keyboard shortcuts: `g` and a letter opens a page, `/` searches, `j` and `k` move through the rows of the first table.
//
// Keys with Ctrl, Alt or Meta are left to the browser, except Ctrl+K. In a field or a dialog, keys are text input.
import { openDialog } from "./page.js";

const ROW_LINK = "a[href]:not([data-value])";
let afterG = false;

const search = () => (document.getElementById("search") ? openDialog("search") : filter());

function filter() {
  const field = document.querySelector("main input[type=search], main [role=combobox]");
  field?.focus();
  field?.select();
}

function nextTab(step) {
  const tabs = [...document.querySelectorAll(".tabs a")];
  const here = tabs.findIndex((tab) => tab.hasAttribute("aria-current"));
  tabs[here + step]?.click();
}

// Focus the first link of the row, so that Enter opens it.
function nextRow(step) {
  const rows = [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector(ROW_LINK) && row.checkVisibility());
  const here = rows.indexOf(document.activeElement?.closest("tr"));
  const next = here < 0 ? rows.at(step > 0 ? 0 : -1) : rows[here + step];
  const link = next?.querySelector(`th ${ROW_LINK}`) ?? next?.querySelector(ROW_LINK);
  link?.focus();
  link?.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  "/": search,
  "?": () => openDialog("keys"),
  "[": () => nextTab(-1),
  "]": () => nextTab(1),
  f: filter,
  j: () => nextRow(1),
  k: () => nextRow(-1),
};

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key === "k") {
    event.preventDefault();
    search();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  if (afterG) document.querySelector(`nav [data-key="${CSS.escape(event.key)}"]`)?.click();
  else if (KEYS[event.key]) {
    event.preventDefault();
    KEYS[event.key]();
  }
  afterG = event.key === "g" && !afterG;
});

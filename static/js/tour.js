// A short tour of the console, from page to page; once closed, it stays closed until the menu reopens it.
//
// Local storage keeps the step number or "closed". The tour starts automatically only on a demo cluster.

import { closeMenus } from "./page.js";

const CLOSED = "closed";
const tour = document.getElementById("tour");
const steps = [...tour.querySelectorAll("article")];
const place = document.getElementById("tour-place");
const back = document.getElementById("tour-back");
const next = document.getElementById("tour-next");

function address(step) {
  const query = new URLSearchParams(step.dataset.query ?? "");
  const keep = new URLSearchParams(document.getElementById("content").dataset.keep ?? "");
  for (const [name, value] of keep) query.set(name, value);
  return query.size ? `${step.dataset.page}?${query}` : step.dataset.page;
}

function close() {
  localStorage.setItem("tour", CLOSED);
  tour.hidden = true;
  mark(null);
}

function mark(selector) {
  document.querySelector(".toured")?.classList.remove("toured");
  if (!selector) return;
  const marked = document.querySelector(selector);
  marked?.classList.add("toured");
  marked?.scrollIntoView({ block: "nearest" });
}

function go(number) {
  if (number >= steps.length) return close();
  localStorage.setItem("tour", number);
  if (steps[number].dataset.page === location.pathname) show(number);
  else location.assign(address(steps[number]));
}

function show(number) {
  const step = steps[number];
  for (const other of steps) other.hidden = other !== step;
  place.textContent = place.dataset.text.replace("{step}", number + 1).replace("{steps}", steps.length);
  back.disabled = number === 0;
  next.dataset.first ??= next.textContent;
  next.textContent = number === steps.length - 1 ? next.dataset.last : next.dataset.first;
  next.href = number === steps.length - 1 ? "#" : address(steps[number + 1]);
  back.onclick = () => go(number - 1);
  next.onclick = (event) => {
    event.preventDefault();
    go(number + 1);
  };
  tour.hidden = false;
  mark(step.dataset.mark);
}

document.getElementById("tour-close").addEventListener("click", close);
tour.addEventListener("keydown", (event) => {
  if (event.key === "Escape") close();
});
for (const starter of document.querySelectorAll("[data-starts-tour]")) {
  starter.addEventListener("click", () => {
    closeMenus(); // the tour was started from a menu
    go(0);
    if (!tour.hidden) next.focus();
  });
}

const stored = localStorage.getItem("tour");
const number = stored === null && tour.dataset.starts === "yes" ? 0 : Number.parseInt(stored, 10);
// If the user opens another page, the tour is hidden until its page is opened again.
if (steps[number]?.dataset.page === location.pathname) show(number);

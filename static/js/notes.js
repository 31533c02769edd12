// Notifications at the bottom of the page; they disappear after some seconds and are announced by screen readers.
import { element } from "./draw.js";

const SHOWN_MILLISECONDS = 6000;
const WAITING = "note-after-load";

// Shows a note; `tone` is "", "wait" or "bad". Bad notes stay until a click or Esc.
export function showNote(text, tone = "") {
  const note = element("p", { class: `note ${tone}` }, text);
  note.addEventListener("click", () => note.remove());
  document.getElementById("notes").append(note);
  if (tone !== "bad") setTimeout(() => note.remove(), SHOWN_MILLISECONDS);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) document.querySelector("#notes > .note:last-child")?.remove();
});

// Reloads the page and shows the note afterwards.
export function reloadWithNote(text) {
  sessionStorage.setItem(WAITING, text);
  location.reload();
}

export function showWaitingNote() {
  const text = sessionStorage.getItem(WAITING);
  if (!text) return;
  sessionStorage.removeItem(WAITING);
  showNote(text);
}

// Server-rendered pages reload their parts when their topic reports a change.
//
// Elements with `data-part` are exchanged one by one, and only if they differ; the focus stays where it was. Lists, whose
// rows would move away under the hand (`data-hold`), wait while the pointer or the focus is on them, behind a button that
// counts what came and shows it at once. At most one request every two seconds, none while the page is hidden.
import { counted, drawBars, element, fill, updateTimes } from "./draw.js";
import { liveOfPage, showStatus } from "./live.js";
import { showNote } from "./notes.js";

const PAUSE_SECONDS = 2;
const AGAIN_SECONDS = 10;
const ANSWER_SECONDS = 60;
const page = document.getElementById("content");
let shown = Number(page.dataset.revision);
let seen = shown;
let askedAt = 0;
let timer = null;
let request = null;

async function refresh() {
  // One request at a time: of two, the earlier page could arrive last and stay in view.
  await request?.catch(() => {});
  timer = null;
  if (over) return;
  if (document.hidden) {
    document.addEventListener("visibilitychange", changed, { once: true });
    return;
  }
  askedAt = Date.now();
  request = reload().finally(() => {
    request = null;
  });
}

async function reload() {
  const options = { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(ANSWER_SECONDS * 1000) };
  const answer = await fetch(location.href, options).catch(() => null);
  // Another page than was asked for is that of the login: what is in view stays, and is not asked for any more.
  if (answer?.redirected && new URL(answer.url).pathname !== location.pathname) signedOut();
  else if (answer?.ok) exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
  // Out of reach, or failing: what changed is not seen yet. An answer that it is gone or not allowed stays as it is.
  else if (!answer || answer.status >= 500) timer ??= setTimeout(refresh, AGAIN_SECONDS * 1000);
}

let over = false;

function signedOut() {
  if (over) return;
  over = true;
  showNote(document.getElementById("live").dataset.signedOut, "bad");
}

// Describes the focused element so that it can be found in the replacement.
function placeOf(focused) {
  if (focused?.id) return `#${CSS.escape(focused.id)}`;
  for (const name of ["href", "data-body", "data-step"]) {
    const value = focused?.getAttribute(name);
    if (value) return `${focused.localName}[${name}="${CSS.escape(value)}"]`;
  }
  return null;
}

// A new part is inserted after the part that it follows, or first in its parent; a part that is gone is removed.
function comeAndGo(fresh) {
  for (const part of document.querySelectorAll("[data-part]")) if (!fresh.getElementById(part.id)) part.remove();
  for (const part of fresh.querySelectorAll("[data-part]")) {
    if (document.getElementById(part.id)) continue;
    let before = part.previousElementSibling;
    while (before && !(before.id && document.getElementById(before.id))) before = before.previousElementSibling;
    const parent = part.parentElement.id ? document.getElementById(part.parentElement.id) : null;
    const after = part.nextElementSibling?.id ? document.getElementById(part.nextElementSibling.id) : null;
    const adopted = document.importNode(part, true);
    if (before) document.getElementById(before.id).after(adopted);
    else if (after) after.before(adopted);
    else if (parent) parent.prepend(adopted);
    else continue;
    sent.set(part.id, part.outerHTML);
    drawBars(adopted);
    updateTimes(adopted);
  }
}

function exchange(fresh, wanted = false) {
  comeAndGo(fresh);
  const before = seen; // of the parts in view: one that is exchanged first must not hide what the next one missed
  const focused = placeOf(document.activeElement);
  for (const part of document.querySelectorAll("[data-part]")) {
    const next = fresh.getElementById(part.id);
    if (!next || sent.get(part.id) === next.outerHTML) continue;
    if (!wanted && part.matches("[data-hold]:is(:hover, :focus-within)")) {
      hold(part, fresh, before);
      continue;
    }
    seen = shown;
    sent.set(part.id, next.outerHTML);
    const adopted = document.importNode(next, true);
    for (const [index, details] of part.querySelectorAll("details").entries()) {
      const twin = adopted.querySelectorAll("details")[index];
      if (twin) twin.open = details.open;
    }
    part.replaceWith(adopted);
    drawBars(adopted);
    updateTimes(adopted);
    if (focused && document.activeElement === document.body) {
      adopted.querySelector(focused)?.focus({ preventScroll: true });
    }
  }
}

// The button for held updates, the latest page of the server, and the shown revision.
let held = null;
const LEAVES = ["pointerleave", "focusout"];

function hold(part, fresh, before) {
  if (held === null) {
    const button = element("button", { type: "button", class: "held", id: "held" });
    button.addEventListener("click", () => letGo(true));
    document.body.append(button);
    held = { button, seen: before };
    // The button may cover the list: on the way to it the pointer and the focus leave the list.
    const both = [part, button];
    const later = () =>
      setTimeout(() => {
        if (held?.button !== button || both.some((one) => one.matches(":hover, :focus-within"))) return;
        for (const kind of LEAVES) part.removeEventListener(kind, later);
        letGo(false);
      });
    for (const one of both) for (const kind of LEAVES) one.addEventListener(kind, later);
  }
  held.fresh = fresh;
  // A part may change without a revision, such as the state of a worker: then there is no number to show.
  const updates = shown - held.seen;
  held.button.textContent = updates ? fill(page.dataset.held, { n: counted(updates) }) : page.dataset.heldUncounted;
}

// Shows what waits; leaving the list asks once more, the button shows what it counted.
function letGo(wanted) {
  const { button, fresh } = held;
  held = null;
  button.remove();
  if (wanted) exchange(fresh, true);
  else changed();
}

// What the server sent last, part by part, before times and bars were drawn into it.
const sent = new Map();

function changed() {
  timer ??= setTimeout(refresh, Math.max(200, askedAt + PAUSE_SECONDS * 1000 - Date.now()));
}

// Changes without a topic, such as a stopped worker, are polled.
if (page.dataset.every) setInterval(changed, Number(page.dataset.every) * 1000);

const live = liveOfPage();
showStatus(live, document.getElementById("live"));
// Of the topic only the number counts here: what changed is asked of the server as a page.
const known = { revision: shown, document: {} };
live.subscribe(
  page.dataset.topic,
  () => {
    const { revision } = live.topics.get(page.dataset.topic);
    if (revision !== shown) {
      shown = revision;
      changed();
    }
  },
  known,
);

// Server-rendered pages reload their parts when their topic reports a change.
//
// Elements with `data-part` are replaced one by one if they differ; the focus and scroll positions are preserved. Lists
// (`data-hold`) are not replaced while the pointer or the focus is on them, so that rows do not move; a button shows the
// number of changes and applies them. At most one request every two seconds, none while the page is hidden.
import { counted, drawBars, element, fill, updateTimes } from "./draw.js";
import { liveOfPage, showStatus } from "./live.js";
import { showNote } from "./notes.js";
import { positionsOf, restorePositions } from "./scroll-boxes.js";

const PAUSE_SECONDS = 2;
const AGAIN_SECONDS = 10;
// A scroll box keeps its focus over an update, and a click on the text of a row gives it the focus.
const IN_USE = ":hover, :focus:not(.table-wrap), :has(:focus:not(.table-wrap))";
const ANSWER_SECONDS = 60;
const page = document.getElementById("content");
let shown = Number(page.dataset.revision);
let seen = shown;
let askedAt = 0;
let timer = null;
let request = null;

async function refresh() {
  // Only one request at a time; otherwise the response of an earlier request could arrive last.
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
  // A redirect leads to the sign-in page: keep the current content and stop refreshing.
  if (answer?.redirected && new URL(answer.url).pathname !== location.pathname) signedOut();
  else if (answer?.ok) exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
  // After a network or server error, retry. After 4xx, the content stays as it is.
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

// A new part is inserted after its predecessor, or first in its parent; a removed part is deleted.
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

function exchange(fresh, forced = false) {
  comeAndGo(fresh);
  const before = seen; // read before any replacement, because a replacement changes `seen`
  const focused = placeOf(document.activeElement);
  for (const part of document.querySelectorAll("[data-part]")) {
    const next = fresh.getElementById(part.id);
    if (!next || sent.get(part.id) === next.outerHTML) continue;
    if (!forced && part.matches("[data-hold]") && part.matches(IN_USE)) {
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
    const positions = positionsOf(part);
    part.replaceWith(adopted);
    drawBars(adopted);
    updateTimes(adopted);
    restorePositions(adopted, positions);
    if (focused && document.activeElement === document.body) {
      adopted.querySelector(focused)?.focus({ preventScroll: true });
    }
  }
}

// { button, fresh, seen }: the button that applies held updates, the latest page of the server, and the displayed revision.
let held = null;
const LEAVES = ["pointerleave", "focusout"];

function hold(part, fresh, before) {
  if (held === null) {
    const button = element("button", { type: "button", class: "held", id: "held" });
    button.addEventListener("click", () => letGo(true));
    document.body.append(button);
    held = { button, seen: before };
    // Moving the pointer or the focus from the list to the button must not end the hold.
    const both = [part, button];
    const later = () =>
      setTimeout(() => {
        if (held?.button !== button || both.some((one) => one.matches(IN_USE))) return;
        for (const kind of LEAVES) part.removeEventListener(kind, later);
        letGo(false);
      });
    for (const one of both) for (const kind of LEAVES) one.addEventListener(kind, later);
  }
  held.fresh = fresh;
  // Parts may change without a new revision, such as the state of a worker; the button then shows no number.
  const updates = shown - held.seen;
  held.button.textContent = updates ? fill(page.dataset.held, { n: counted(updates) }) : page.dataset.heldUncounted;
}

// Ends the hold: the button applies the held updates, and leaving the list requests the latest page.
function letGo(forced) {
  const { button, fresh } = held;
  held = null;
  button.remove();
  if (forced) exchange(fresh, true);
  else changed();
}

// The last HTML of each part as sent by the server, before scripts changed times and bars.
const sent = new Map();

function changed() {
  timer ??= setTimeout(refresh, Math.max(200, askedAt + PAUSE_SECONDS * 1000 - Date.now()));
}

// Changes without a topic, such as a stopped worker, are polled.
if (page.dataset.every) setInterval(changed, Number(page.dataset.every) * 1000);

const live = liveOfPage();
showStatus(live, document.getElementById("live"));
// Uses only the revision of the topic; after a change, the page is requested again.
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

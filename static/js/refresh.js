// Pages that the server draws stay current by asking for themselves again when their topic tells of a change.
//
// Elements with `data-part` are exchanged one by one, and only if they differ; the focus stays where it was. Lists, whose
// rows would move away under the hand (`data-hold`), wait while the pointer or the focus is on them. At most one request
// every two seconds, none while nobody looks at the page.
import { drawBars, element, tellTimes } from "./draw.js";
import { liveOfPage, showStatus } from "./live.js";

const PAUSE_SECONDS = 2;
const page = document.getElementById("content");
let shown = Number(page.dataset.revision);
let askedAt = 0;
let timer = null;

async function refresh() {
  timer = null;
  if (document.hidden) {
    document.addEventListener("visibilitychange", changed, { once: true });
    return;
  }
  askedAt = Date.now();
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  exchange(new DOMParser().parseFromString(await answer.text(), "text/html"));
}

function exchange(fresh) {
  const focused = document.activeElement?.getAttribute("href");
  for (const part of document.querySelectorAll("[data-part]")) {
    const next = fresh.getElementById(part.id);
    if (!next || sent.get(part.id) === next.outerHTML) continue;
    if (part.matches("[data-hold]:is(:hover, :focus-within)")) {
      hold(part);
      continue;
    }
    sent.set(part.id, next.outerHTML);
    const adopted = document.importNode(next, true);
    for (const [index, details] of part.querySelectorAll("details").entries()) {
      const twin = adopted.querySelectorAll("details")[index];
      if (twin) twin.open = details.open;
    }
    part.replaceWith(adopted);
    drawBars(adopted);
    tellTimes(adopted);
    if (focused && document.activeElement === document.body) {
      adopted.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    }
  }
}

function hold(part) {
  if (document.getElementById("held")) return;
  document.body.append(element("p", { class: "held", id: "held", role: "status" }, page.dataset.held));
  const release = () => {
    if (part.matches(":hover, :focus-within")) return;
    for (const kind of ["pointerleave", "focusout"]) part.removeEventListener(kind, later);
    document.getElementById("held").remove();
    changed();
  };
  const later = () => setTimeout(release);
  for (const kind of ["pointerleave", "focusout"]) part.addEventListener(kind, later);
}

// What the server sent last, part by part, before times and bars were drawn into it.
const sent = new Map();

function changed() {
  timer ??= setTimeout(refresh, Math.max(200, askedAt + PAUSE_SECONDS * 1000 - Date.now()));
}

const live = liveOfPage();
showStatus(live, document.getElementById("live"));
live.subscribe(page.dataset.topic, () => {
  const { revision } = live.topics.get(page.dataset.topic);
  if (revision !== shown) {
    shown = revision;
    changed();
  }
});

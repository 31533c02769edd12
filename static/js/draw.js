// Elements that several pages draw. External text only becomes text nodes, never markup.

// Makes invisible and text-direction characters visible, as the server does (web/pages/visible_characters.py).
const UNSEEN = new RegExp(
  "[\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}]",
  "gu",
);
const named = (mark) => {
  const code = mark.codePointAt(0);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? "␡" : `⟦U+${code.toString(16).toUpperCase().padStart(4, "0")}⟧`;
};
export const visible = (text) => (typeof text === "string" ? text.replace(UNSEEN, named) : text);

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "title" || name === "aria-label") node.setAttribute(name, visible(value));
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined).map(visible));
  return node;
}

export const words = (id = "words") => JSON.parse(document.getElementById(id).textContent);

// Replaces "{name}" in a translated sentence by the value of that name.
export const fill = (sentence, values) => sentence.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");

export const percent = (ratio) => (ratio === null || ratio === undefined ? "–" : `${Math.round(ratio * 100)} %`);

const clamped = (ratio) => Math.min(1, Math.max(0, Number(ratio) || 0));

export const setRatio = (element, ratio) => {
  element.style.width = `${clamped(ratio) * 100}%`;
};

export function bar(kind, ratio) {
  const filled = element("i");
  setRatio(filled, ratio);
  return element("span", { class: `bar ${kind}`, "aria-hidden": "true" }, filled);
}

// Server-rendered bars have their ratio in a data attribute, because the content security policy allows no inline styles.
export function drawBars(root) {
  for (const fill of root.querySelectorAll("[data-ratio]")) setRatio(fill, fill.dataset.ratio);
}

const UNITS = [
  [86_400, "day"],
  [3_600, "hour"],
  [60, "minute"],
  [1, "second"],
];
// Numbers and times use the language of the page, not of the browser, and the 24-hour clock.
const LANGUAGE = document.documentElement.lang || "en";
const format = (options) => new Intl.DateTimeFormat(LANGUAGE, { hourCycle: "h23", ...options });
const whole = new Intl.NumberFormat(LANGUAGE);
const moments = format({ dateStyle: "medium", timeStyle: "medium" });
const clocks = format({ timeStyle: "medium" });
const minutes = format({ timeStyle: "short" });

export const counted = (number) => whole.format(number);
export const moment = (iso) => moments.format(new Date(iso));
export const clock = (iso) => clocks.format(new Date(iso));
export const clockOfMinutes = (iso) => minutes.format(new Date(iso));

const relative = new Intl.RelativeTimeFormat(LANGUAGE, { numeric: "auto", style: "narrow" });

const MOST_ROUNDING = 1.25;

// Future times are rounded up, in the largest unit with a small rounding error: 3:59:59 is "in 4h", 25 hours are "in 25h".
// Ages are rounded down.
export function ago(iso, now = Date.now()) {
  const seconds = Math.ceil((new Date(iso) - now) / 1000);
  if (seconds > 0) {
    const fits = ([size]) => Math.ceil(seconds / size) * size <= seconds * MOST_ROUNDING;
    const [size, unit] = UNITS.find(fits);
    return relative.format(Math.ceil(seconds / size), unit);
  }
  const [size, unit] = UNITS.find(([size]) => -seconds >= size) ?? UNITS.at(-1);
  return relative.format(Math.trunc(seconds / size), unit);
}

export function updateTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    if (Number.isNaN(Date.parse(time.dateTime))) continue;
    time.textContent = ago(time.dateTime);
    time.title = moment(time.dateTime);
  }
}

const STATE_CLASS = {
  pending: "info", binding: "info", "not-now": "wait", "never-fits": "bad", misconfigured: "bad", failed: "bad",
  cancelled: "", succeeded: "",
};
export const stateChip = (state, word) => element("span", { class: `chip ${STATE_CLASS[state] ?? "good"}` }, word ?? state);

// Adds the query string that keeps the cluster of the page selected; the server provides it.
export const keeping = (path) => path + (document.getElementById("content").dataset.keep ?? "");

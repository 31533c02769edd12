// Small pieces that several pages draw. Text from outside only ever becomes text nodes.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const percent = (ratio) => (ratio === null || ratio === undefined ? "–" : `${Math.round(ratio * 100)} %`);

export function bar(kind, ratio) {
  const fill = element("i");
  fill.style.width = `${Math.min(100, Math.max(0, (ratio ?? 0) * 100))}%`;
  return element("span", { class: `bar ${kind}`, "aria-hidden": "true" }, fill);
}

// Server-drawn bars carry their ratio as data, since the page's policy allows no inline style.
export function drawBars(root) {
  for (const fill of root.querySelectorAll("[data-ratio]")) {
    fill.style.width = `${Math.min(100, Math.max(0, Number(fill.dataset.ratio) * 100))}%`;
  }
}

const UNITS = [
  [86_400, "day"],
  [3_600, "hour"],
  [60, "minute"],
  [1, "second"],
];

export function ago(iso) {
  const seconds = Math.round((new Date(iso) - Date.now()) / 1000);
  const words = new Intl.RelativeTimeFormat(document.documentElement.lang || "en", { numeric: "auto" });
  const [size, unit] = UNITS.find(([size]) => Math.abs(seconds) >= size) ?? [1, "second"];
  return words.format(Math.trunc(seconds / size), unit);
}

export function tellTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    time.textContent = ago(time.dateTime);
    time.title = new Date(time.dateTime).toLocaleString();
  }
}

const VERDICT_CLASS = { "not-now": "wait", "never-fits": "bad", misconfigured: "bad", failed: "bad", pending: "info" };
export const stateChip = (state, word) =>
  element("span", { class: `chip ${VERDICT_CLASS[state] ?? "good"}` }, word ?? state);

// The filter box of a list: suggests fields, operators and values while a condition is typed (an editable combobox with a
// list box, after the ARIA Authoring Practices), and the column selection.
//
// The page contains the suggestions; values from the data are requested once per field (`?values=`).
import { element } from "./draw.js";

const MOST = 12;
const box = document.getElementById("filter");
const list = document.getElementById("filter-list");
const { fields } = JSON.parse(document.getElementById("filter-suggestions").textContent);
const fieldsByName = new Map(fields.map((field) => [field.name, field]));
const requests = new Map();
let active = -1;
let round = 0;

// The condition at the caret: from the last space outside quotes.
function piece() {
  const before = box.value.slice(0, box.selectionStart);
  const start = before.length - before.match(/(?:[^\s"]|"[^"]*"?)*$/)[0].length + (/(?:^|\s)-[^\s]*$/.test(before) ? 1 : 0);
  return { start, text: before.slice(start) };
}

async function valuesOf(field, key) {
  const name = key === undefined ? field.name : `${field.name}:${key}`;
  if (!field.found) return field.values;
  if (!requests.has(name)) {
    const where = new URLSearchParams(location.search);
    for (const one of ["q", "page", "sort"]) where.delete(one);
    where.set("values", name);
    const request = fetch(`${location.pathname}?${where}`, { headers: { Accept: "application/json" } })
      .then(async (answer) => (answer.ok ? (await answer.json()).values : []))
      .catch(() => []);
    requests.set(name, request);
  }
  return [...new Set([...field.values, ...(await requests.get(name))])];
}

const quoted = (value) => (/[\s,"]/.test(value) ? `"${value.replaceAll('"', "")}"` : value);
const matching = (all, text, name = (one) => one) => {
  const needle = text.toLowerCase();
  const rank = (one) => (name(one).toLowerCase().startsWith(needle) ? 0 : 1);
  return all.filter((one) => name(one).toLowerCase().includes(needle)).sort((a, b) => rank(a) - rank(b));
};

// Suggestions for the condition: { text, shown, help, more }; `more` is true if the condition continues after the text.
async function offers(text) {
  const [, name, key, operation, value] = text.match(/^([A-Za-z][\w.-]*)(:[^<>=!~"\s]*)?(!=|!~|>=|<=|=|~|>|<)?(.*)$/s) ?? [null, text];
  const field = fieldsByName.get(name?.toLowerCase());
  if (field && operation) {
    const parts = value.split(",");
    const typed = parts.at(-1).replaceAll('"', "");
    const front = text.slice(0, text.length - parts.at(-1).length);
    const found = matching(await valuesOf(field, key?.slice(1)), typed);
    return found.filter((one) => one !== typed).map((one) => ({ text: front + quoted(one), shown: one }));
  }
  if (field?.keyed && key !== undefined) {
    const found = matching(await valuesOf(field), key.slice(1));
    return found.map((one) => ({ text: `${field.name}:${one}=`, shown: `${field.name}:${one}`, more: true }));
  }
  if (field && !field.keyed) {
    return field.operators.map((one) => ({ text: `${field.name}${one}`, shown: `${field.name} ${one}`, help: field.help, more: true }));
  }
  return matching(fields, text, (one) => one.name).map((one) => ({
    text: one.keyed ? `${one.name}:` : one.name + one.operators[0],
    shown: one.name,
    help: one.help,
    more: true,
  }));
}

async function suggest() {
  const current = ++round;
  const { text } = piece();
  const suggestions = (await offers(text)).slice(0, text ? MOST : fields.length);
  if (current !== round || document.activeElement !== box) return;
  show(suggestions);
}

function show(suggestions) {
  active = -1;
  box.removeAttribute("aria-activedescendant");
  list.replaceChildren(...suggestions.map((one, index) => {
    const option = element("li", { role: "option", id: `filter-option-${index}`, "aria-selected": "false" },
      element("span", { class: "mono" }, one.shown), one.help ? element("span", { class: "muted small" }, one.help) : null);
    option.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      choose(one);
    });
    option.offer = one;
    return option;
  }));
  list.hidden = !suggestions.length;
  box.setAttribute("aria-expanded", String(!list.hidden));
}

function close() {
  round += 1;
  show([]);
}

function choose(offer) {
  const { start, text } = piece();
  const after = box.value.slice(start + text.length);
  const put = offer.text + (offer.more || after.startsWith(" ") || !after ? "" : " ");
  box.setRangeText(put, start, start + text.length, "end");
  if (offer.more) suggest();
  else close();
}

function move(step) {
  const options = [...list.children];
  if (!options.length) return suggest();
  active = (active + step + options.length + (active < 0 && step < 0 ? 1 : 0)) % options.length;
  for (const [index, option] of options.entries()) option.setAttribute("aria-selected", String(index === active));
  box.setAttribute("aria-activedescendant", options[active].id);
  options[active].scrollIntoView({ block: "nearest" });
}

box.addEventListener("input", suggest);
box.addEventListener("click", () => list.hidden && suggest());
box.addEventListener("blur", close);
box.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    move(event.key === "ArrowDown" ? 1 : -1);
  } else if (event.key === "Escape" && !list.hidden) {
    event.stopPropagation();
    close();
  } else if ((event.key === "Enter" || event.key === "Tab") && active >= 0) {
    event.preventDefault();
    choose(list.children[active].offer);
  }
});

// Joins the selected columns into one short parameter of the URL.
document.querySelector("form[data-columns]")?.addEventListener("formdata", ({ formData }) => {
  formData.set("columns", formData.getAll("column").join("~"));
  formData.delete("column");
});

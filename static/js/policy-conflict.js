// Edit conflict of a policy: shows both edits; the user selects one for each plugin of the draft.
import { element, fill } from "./draw.js";

const text = (use) => (use ? JSON.stringify(use) : null);

function described(use, words) {
  if (!use) return element("span", { class: "muted" }, words.off);
  const params = Object.keys(use.params).length ? JSON.stringify(use.params) : "";
  return element("span", {}, `${words.weight} ${use.weight}`, params ? element("span", { class: "mono small wrap" }, ` ${params}`) : "");
}

// Lists all differences: plugins by name, then other fields. If the user's value equals the common base (`untouched`), the
// other user's value is selected by default.
function differences(base, theirs, mine, words) {
  const [begun, left, right] = [base, theirs, mine].map((spec) => new Map(spec.plugins.map((use) => [use.name, use])));
  const names = [...new Set([...right.keys(), ...left.keys()])];
  const found = names
    .filter((name) => text(left.get(name)) !== text(right.get(name)))
    .map((name) => ({
      key: `plugin ${name}`,
      title: name,
      theirs: described(left.get(name), words),
      mine: described(right.get(name), words),
      untouched: text(right.get(name)) === text(begun.get(name)),
    }));
  const order = (spec) => spec.plugins.map((use) => use.name).filter((name) => left.has(name) && right.has(name)).join(" ");
  if (order(theirs) !== order(mine)) {
    const untouched = order(mine) === order(base);
    found.push({ key: "order", title: words.order, theirs: words["their-order"], mine: words["my-order"], untouched });
  }
  for (const key of ["ties", "description"]) {
    const [one, other, was] = [theirs, mine, base].map((spec) => (typeof spec[key] === "string" ? spec[key] : JSON.stringify(spec[key])));
    if (one !== other) found.push({ key, title: words[key], theirs: one || "–", mine: other || "–", untouched: other === was });
  }
  return found;
}

// Merges the selected values. Plugins have the order of one side; a plugin that only the other side has is inserted after the
// plugin that precedes it there.
export function merged(theirs, mine, takes) {
  const side = (key) => (takes.get(key) === "theirs" ? theirs : mine);
  const base = side("order");
  const other = base === mine ? theirs : mine;
  const chosen = (name) => {
    const key = `plugin ${name}`;
    return (takes.has(key) ? side(key) : mine).plugins.find((use) => use.name === name);
  };
  const order = base.plugins.map((use) => use.name);
  for (const [at, { name }] of other.plugins.entries()) {
    if (order.includes(name)) continue;
    const before = other.plugins.slice(0, at).findLast((use) => order.includes(use.name));
    order.splice(before ? order.indexOf(before.name) + 1 : 0, 0, name);
  }
  return {
    plugins: order.map(chosen).filter(Boolean),
    ties: side("ties").ties,
    description: side("description").description,
  };
}

// Shows the panel; calls `choose` with the merged content.
export function drawConflict(place, words, { base, theirs, version, author, reason, mine, choose, takeTheirs }) {
  const found = differences(base, theirs, mine, words);
  const row = ({ key, title, theirs: left, mine: right, untouched }) => {
    const option = (value, shown) =>
      element(
        "td",
        {},
        element("label", { class: "inline" }, element("input", { type: "radio", name: key, value, checked: (value === "theirs") === untouched }), element("span", { class: "wrap" }, shown)),
      );
    return element("tr", { "data-key": key }, element("th", { scope: "row" }, title), option("theirs", left), option("mine", right));
  };
  const button = (word, act, primary = false) => {
    const made = element("button", { type: "button", class: primary && "primary" }, word);
    made.addEventListener("click", act);
    return made;
  };
  const close = (spec) => {
    place.hidden = true;
    choose(spec);
  };
  const takes = () => new Map([...place.querySelectorAll("tr[data-key]")].map((one) => [one.dataset.key, one.querySelector("input:checked").value]));
  const heads = [words.plugin, fill(words["their-edit"], { version, author }), words["my-edit"]];
  const panel = element(
    "section",
    { class: "panel stack conflict", "aria-labelledby": "conflict-title" },
    element("h2", { id: "conflict-title", tabindex: "-1" }, words["two-edits"]),
    element("p", {}, fill(words["two-edits-text"], { version, author }), reason ? ` “${reason}”` : "", " ", words["chosen-already"]),
    found.length
      ? element(
          "div",
          { class: "table-wrap" },
          element("table", {}, element("thead", {}, element("tr", {}, ...heads.map((word) => element("th", { scope: "col" }, word)))), element("tbody", {}, ...found.map(row))),
        )
      : element("p", { class: "muted" }, words["edits-alike"]),
    element(
      "p",
      { class: "row" },
      button(words["merge-edits"], () => close(merged(theirs, mine, takes())), true),
      button(words["keep-mine"], () => close(mine)),
      button(words["take-theirs"], takeTheirs),
    ),
  );
  place.replaceChildren(panel);
  place.hidden = false;
  panel.querySelector("h2").focus();
}

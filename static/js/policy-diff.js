// Differences of two policy contents by plugin, in two columns: before on the left, after on the right.
import { element, fill } from "./draw.js";

const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function linesOf(change, words) {
  const { plugin } = change;
  const lines = [];
  if (change.change === "added") lines.push(["", fill(words["on-at"], { plugin, place: change.placeAfter, weight: change.weightAfter })]);
  else if (change.change === "removed") lines.push([fill(words["was-on-at"], { plugin, place: change.placeBefore, weight: change.weightBefore }), ""]);
  else {
    if (change.weightBefore !== change.weightAfter) {
      lines.push([fill(words["weight-of"], { plugin, weight: change.weightBefore }), fill(words["weight-of"], { plugin, weight: change.weightAfter })]);
    }
    if (change.moved) {
      lines.push([fill(words["place-of"], { plugin, place: change.placeBefore }), fill(words["place-of"], { plugin, place: change.placeAfter })]);
    }
  }
  if (change.change !== "removed") {
    for (const { name, before, after } of change.params) {
      lines.push([`${plugin} · ${name} = ${textOf(before)}`, `${plugin} · ${name} = ${textOf(after)}`]);
    }
  }
  return lines;
}

// Number of differences: plugins, tie-breaking and description count as one each.
export const countOf = (diff) => (diff ? diff.plugins.length + (diff.ties ? 1 : 0) + (diff.description ? 1 : 0) : 0);

export function drawDiff(diff, words, left, right) {
  if (!diff || diff.same) return element("p", { class: "muted" }, words["no-change"]);
  const lines = diff.plugins.flatMap((change) => linesOf(change, words));
  for (const [field, word] of [[diff.ties, words.ties], [diff.description, words.description]]) {
    if (field) lines.push([`${word}: ${textOf(field.before)}`, `${word}: ${textOf(field.after)}`]);
  }
  const cell = (tag, text) => element("td", {}, text ? element(tag, {}, text) : null);
  return element(
    "table",
    { class: "diff" },
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, left), element("th", { scope: "col" }, right))),
    element("tbody", {}, ...lines.map(([before, after]) => element("tr", {}, cell("del", before), cell("ins", after)))),
  );
}

// Table of all nodes for one pod: the rejecting plugin, or the rank and the score of each plugin. Rows are grouped by
// reason, sorted and paginated for large fleets. CSV and JSON contain all rows.
import { element, fill, keeping } from "./draw.js";

const PAGE = 50;
const nodeLink = (name) => element("a", { class: "nowrap", href: keeping(`/nodes/${encodeURIComponent(name)}/`) }, name);
const FEASIBLE = "feasible";

const keyOf = (node) => (node.feasible ? FEASIBLE : `${node.refused?.plugin}\n${node.refused?.code}\n${node.refused?.message}`);

export class NodeMatrix {
  // `only`: name of a plugin; the table then shows only nodes that this plugin rejected.
  constructor(container, words, nodes, { only = null, name = "nodes" } = {}) {
    this.container = container;
    this.words = words;
    this.nodes = nodes;
    this.name = name;
    this.only = only;
    this.group = null;
    this.page = 0;
    this.sort = { by: "rank", up: true };
    this.plugins = nodes.find((node) => node.scores?.length)?.scores.map(({ plugin, weight }) => ({ plugin, weight })) ?? [];
    this.groups = new Map();
    for (const node of nodes) {
      if (only && node.refused?.plugin !== only) continue;
      const key = keyOf(node);
      if (!this.groups.has(key)) this.groups.set(key, []);
      this.groups.get(key).push(node);
    }
    container.addEventListener("click", (event) => this.clicked(event));
    this.draw();
  }

  rows() {
    const rows = this.group === null ? [...this.groups.values()].flat() : [...this.groups.get(this.group)];
    const value = (node) => {
      if (this.sort.by === "name") return node.name;
      if (this.sort.by === "reason") return node.refused?.message ?? "";
      if (this.sort.by === "rank") return node.rank ?? Infinity;
      if (this.sort.by === "total") return node.total ?? -Infinity;
      return node.scores?.find(({ plugin }) => plugin === this.sort.by)?.weighted ?? -Infinity;
    };
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    rows.sort((a, b) => (this.sort.up ? 1 : -1) * compare(value(a), value(b)) || compare(a.name, b.name));
    return rows;
  }

  clicked(event) {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.group !== undefined) {
      this.group = button.dataset.group === this.group ? null : button.dataset.group || null;
      this.page = 0;
    } else if (button.dataset.sort) {
      const by = button.dataset.sort;
      this.sort = { by, up: this.sort.by === by ? !this.sort.up : by === "name" || by === "rank" || by === "reason" };
      this.page = 0;
    } else if (button.dataset.step) this.page += Number(button.dataset.step);
    else if (button.dataset.saves) return this.save(button.dataset.saves);
    this.draw();
    const again = [...this.container.querySelectorAll("button")].find((one) => JSON.stringify(one.dataset) === JSON.stringify(button.dataset));
    (again && !again.disabled ? again : this.container.querySelector("button"))?.focus();
  }

  draw() {
    const rows = this.rows();
    const pages = Math.max(1, Math.ceil(rows.length / PAGE));
    this.page = Math.min(Math.max(0, this.page), pages - 1);
    const shown = rows.slice(this.page * PAGE, (this.page + 1) * PAGE);
    const scored = shown.some((node) => node.feasible);
    const refused = shown.some((node) => !node.feasible);
    const heads = [
      ["rank", this.words.rank, true], ["name", this.words.node],
      ...(scored ? [["total", this.words.total, true]] : []),
      ...(scored ? this.plugins.map(({ plugin, weight }) => [plugin, `${plugin} ×${weight}`, true]) : []),
      ...(refused ? [["reason", this.words.reason]] : []),
    ];
    this.container.replaceChildren(
      this.chips(),
      element(
        "div", { class: "table-wrap" },
        element(
          "table", { class: "matrix" },
          element("caption", { class: "visually-hidden" }, this.words["every-node"]),
          element("thead", {}, element("tr", {}, ...heads.map((head) => this.head(...head)))),
          element("tbody", {}, ...shown.map((node) => this.row(node, scored, refused))),
        ),
      ),
      this.foot(rows.length, pages),
    );
  }

  chips() {
    const sizes = [...this.groups].sort(([a, x], [b, y]) => (b === FEASIBLE) - (a === FEASIBLE) || y.length - x.length);
    const chip = (key, words, count) =>
      element(
        "button", { type: "button", class: "pick wide", "data-group": key, "aria-pressed": String(this.group === (key || null)) },
        element("b", {}, count), ` ${words}`,
      );
    const all = sizes.reduce((sum, [, members]) => sum + members.length, 0);
    return element(
      "div", { class: "picks", role: "group", "aria-label": this.words["by-reason"] },
      chip("", this.words["all-nodes"], all),
      ...sizes.map(([key, members]) => {
        const [first] = members;
        return chip(key, first.feasible ? this.words.feasible : `${first.refused?.plugin}: ${first.refused?.message}`, members.length);
      }),
    );
  }

  head(by, title, number = false) {
    const sorted = this.sort.by === by;
    return element(
      "th", { class: number ? "number" : null, scope: "col", "aria-sort": sorted ? (this.sort.up ? "ascending" : "descending") : null },
      element("button", { type: "button", class: "link", "data-sort": by }, title, sorted ? (this.sort.up ? " ↑" : " ↓") : ""),
    );
  }

  row(node, scored, refused) {
    const number = (value) => (value === null || value === undefined ? "–" : value.toFixed(1));
    const scores = new Map((node.scores ?? []).map((score) => [score.plugin, score.weighted]));
    const missing = (node.refused?.missing ?? []).filter((name) => !node.refused.message.includes(name));
    return element(
      "tr", {},
      element("td", { class: "number" }, node.rank ?? "–"),
      element("th", { scope: "row" }, nodeLink(node.name)),
      ...(scored ? [element("td", { class: "number strong" }, number(node.total))] : []),
      ...(scored ? this.plugins.map(({ plugin }) => element("td", { class: "number" }, number(scores.get(plugin)))) : []),
      ...(refused
        ? [element("td", {}, node.refused ? `${node.refused.plugin}: ${node.refused.message}` : "–", missing.length ? ` (${missing.join(", ")})` : "")]
        : []),
    );
  }

  foot(count, pages) {
    const step = (by, label, disabled) => element("button", { type: "button", "data-step": by, disabled }, label);
    return element(
      "div", { class: "row no-print" },
      ...(pages > 1
        ? [
            step(-1, this.words.previous, this.page === 0),
            element("span", { class: "muted" }, fill(this.words["page-of"], { page: this.page + 1, pages })),
            step(1, this.words.next, this.page === pages - 1),
          ]
        : []),
      element("span", { class: "muted" }, fill(this.words["rows"], { count })),
      element("span", { class: "grow" }),
      element("button", { type: "button", "data-saves": "csv" }, "CSV"),
      element("button", { type: "button", "data-saves": "json" }, "JSON"),
    );
  }

  // All rows of the current filter, on all pages.
  save(kind) {
    const rows = this.rows();
    if (kind === "json") return download(`${this.name}.json`, "application/json", JSON.stringify(rows, null, 1));
    const heads = ["rank", "node", "feasible", ...this.plugins.map(({ plugin }) => plugin), "total", "plugin", "code", "reason"];
    const lines = rows.map((node) => {
      const scores = new Map((node.scores ?? []).map((score) => [score.plugin, score.weighted]));
      return [
        node.rank, node.name, node.feasible, ...this.plugins.map(({ plugin }) => scores.get(plugin)), node.total,
        node.refused?.plugin, node.refused?.code, node.refused?.message,
      ];
    });
    download(`${this.name}.csv`, "text/csv", [heads, ...lines].map((line) => line.map(cell).join(",")).join("\r\n"));
  }
}

// RFC 4180; cells that a spreadsheet would interpret as a formula are marked as text.
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function download(name, type, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Policy preview: a worker replays recorded decisions with the draft. Shows progress, metrics and changed pods.
import { token } from "./dialog.js";
import { element, fill, moment } from "./draw.js";
import { download } from "./matrix.js";
import { showNote } from "./notes.js";

const WAIT_SECONDS = 10;
const PAUSE_MILLISECONDS = 500;
const PAGE = 50;
const KINDS = ["moved", "infeasible", "feasible"];
// The fleet metrics to show, in this order; the output of `hetsched simulate` has all of them.
const MEASURES = ["placed", "pending", "balance", "gpuFragmentation", "unallocatedGpus", "gpuAllocation", "cpuUtilization", "memoryUtilization"];
const number = new Intl.NumberFormat(document.documentElement.lang || "en", { maximumFractionDigits: 4 });

export class Preview {
  constructor(section, words, { api, version, onDesk }) {
    Object.assign(this, { section, words, api, version, onDesk });
    this.form = section.querySelector("form");
    this.start = section.querySelector("#replay");
    this.stop = section.querySelector("#replay-stop");
    this.shown = section.querySelector("#replayed");
    this.progress = section.querySelector("progress");
    this.said = section.querySelector("#replay-said");
    this.running = null;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    this.stop?.addEventListener("click", () => this.cancel());
    this.last();
  }

  // `unsaved`: saves the draft as a version after a confirmation, because a worker can replay only versions.
  allow(valid, unsaved) {
    if (!this.start) return;
    this.start.disabled = !valid || this.running !== null;
    this.start.textContent = this.words[unsaved ? "replay-asks" : "replay"];
    this.section.querySelector("#replay-saves").hidden = !unsaved;
  }

  // Shows the last replay of the selected version, and its progress while it runs.
  async last() {
    const answer = await fetch(`${this.api}preview/?limit=20`);
    if (!answer.ok) return;
    const found = (await answer.json()).items.find((one) => one.version === this.onDesk && one.state !== "cancelled");
    if (!found) return;
    if (found.state === "done" || found.state === "failed") this.show(found);
    else this.follow(found);
  }

  async ask() {
    this.start.disabled = true;
    const version = await this.version();
    if (version === null) {
      this.start.disabled = false;
      return;
    }
    const fields = new FormData(this.form);
    const body = { version, last: Number(fields.get("last")), scope: fields.get("scope"), baseline: fields.get("baseline") };
    if (fields.get("cluster")) body.cluster = fields.get("cluster");
    const headers = { "Content-Type": "application/json", "X-CSRFToken": token() };
    const answer = await fetch(`${this.api}preview/`, { method: "POST", headers, body: JSON.stringify(body) }).catch(() => null);
    const started = await answer?.json();
    this.start.disabled = false;
    if (answer?.ok) this.follow(started);
    else if (!answer) showNote(this.words.unreachable, "bad");
    else showNote([started.detail, started.hint].filter(Boolean).join(" "), "bad");
  }

  async follow(preview) {
    this.running = preview.id;
    this.shown.replaceChildren();
    let now = preview;
    while (now.state === "waiting" || now.state === "running") {
      this.draw(now);
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MILLISECONDS));
      const answer = await fetch(`${this.api}preview/${preview.id}/?wait=${now.progress > 0 ? 1 : WAIT_SECONDS}`).catch(() => null);
      if (answer?.status === 404) break;
      if (answer?.ok) now = await answer.json();
    }
    this.running = null;
    this.show(now);
  }

  async cancel() {
    if (this.running === null) return;
    await fetch(`${this.api}preview/${this.running}/`, { method: "DELETE", headers: { "X-CSRFToken": token() } });
  }

  draw({ state, progress }) {
    this.progress.hidden = false;
    if (state === "waiting") this.progress.removeAttribute("value");
    else this.progress.value = progress;
    const percent = Math.floor(progress * 100);
    this.said.textContent = state === "waiting" ? this.words["state-waiting"] : fill(this.words.progress, { percent });
    if (this.stop) this.stop.hidden = false;
    if (this.start) this.start.disabled = true;
  }

  show(preview) {
    this.progress.hidden = true;
    if (this.stop) this.stop.hidden = true;
    if (this.start) this.start.disabled = false;
    if (preview.state !== "done") {
      const message = preview.problem?.message ?? this.words[`state-${preview.state}`] ?? "";
      this.said.textContent = preview.state === "failed" ? fill(this.words["replay-failed"], { message }) : message;
      return;
    }
    const { result } = preview;
    this.preview = preview;
    this.said.textContent = fill(this.words.replayed, {
      decisions: number.format(result.decisions),
      version: preview.version,
      from: result.from ? moment(result.from) : "–",
      to: result.to ? moment(result.to) : "–",
      seconds: number.format(Math.ceil(result.seconds * 10) / 10),
    });
    this.shown.replaceChildren(
      this.figures(result),
      element("div", { class: "replay-columns" }, this.changes(result), this.measures(result)),
      ...this.notes(result),
    );
    if (result.moved + result.infeasible + result.feasible) this.list("");
  }

  // The summary bar: each replayed decision is counted in exactly one segment.
  figures(result) {
    const tones = { moved: "wait", same: "good", infeasible: result.infeasible ? "bad" : "", feasible: result.feasible ? "good" : "" };
    return element(
      "div",
      { class: "figures" },
      ...["moved", "same", "infeasible", "feasible", "pendingBoth"].map((kind) =>
        element("div", { class: `figure ${tones[kind] ?? ""}`, "data-figure": kind }, element("b", {}, number.format(result[kind])), element("span", {}, this.words[kind])),
      ),
    );
  }

  measures({ baseline, draft }) {
    const value = (side, name) => side[name] ?? side.metrics?.[name];
    const rows = MEASURES.map((name) => [name, value(baseline, name), value(draft, name)]).filter(([, before, after]) => before !== undefined && before !== null && after !== null);
    const cells = ([name, before, after]) => {
      const change = after - before;
      const sign = change > 0 ? "+" : change < 0 ? "−" : "±";
      return element(
        "tr",
        {},
        element("th", { scope: "row" }, this.words[name]),
        element("td", { class: "number" }, number.format(before)),
        element("td", { class: "number" }, number.format(after)),
        element("td", { class: "number" }, `${sign}${number.format(Math.abs(change))}`),
      );
    };
    const heads = [this.words.measure, fill(this.words.before, baseline), fill(this.words.after, draft), this.words.change];
    return element(
      "div",
      { class: "table-wrap" },
      element("table", {}, element("thead", {}, element("tr", {}, ...heads.map((word, at) => element("th", { scope: "col", class: at && "number" }, word)))), element("tbody", {}, ...rows.map(cells))),
    );
  }

  notes(result) {
    const sentences = [];
    if (result.fidelity?.compared) sentences.push(fill(this.words.fidelity, result.fidelity));
    for (const note of result.notes ?? []) sentences.push(note.message);
    return sentences.map((text) => element("p", { class: "small muted" }, text));
  }

  // -- pods with other placements -------------------------------------------------------------------------------------

  changes(result) {
    if (!(result.moved + result.infeasible + result.feasible)) return element("p", { class: "strong" }, this.words["nothing-moves"]);
    const segments = element("div", { class: "segments", role: "group" });
    for (const kind of ["", ...KINDS]) {
      const button = element("button", { type: "button", value: kind, "aria-pressed": String(kind === "") }, kind ? `${this.words[kind]} ${number.format(result[kind])}` : this.words.all);
      button.addEventListener("click", () => this.list(kind));
      segments.append(button);
    }
    const csv = element("button", { type: "button", class: "link" }, "CSV");
    csv.addEventListener("click", () => this.download());
    this.rows = element("div", { class: "table-wrap", id: "replay-rows", "aria-live": "polite" });
    const json = element("a", { href: `${this.api}preview/${this.preview.id}/` }, "JSON");
    return element("div", { class: "stack" }, element("div", { class: "row" }, segments, csv, json), this.rows);
  }

  async fetched(kind, cursor = "", limit = PAGE) {
    const query = new URLSearchParams({ limit, ...(kind ? { change: kind } : {}), ...(cursor ? { cursor } : {}) });
    const answer = await fetch(`${this.api}preview/${this.preview.id}/changes/?${query}`);
    return answer.json();
  }

  async list(kind) {
    for (const button of this.shown.querySelectorAll(".segments button")) button.setAttribute("aria-pressed", String(button.value === kind));
    const { items } = await this.fetched(kind);
    if (!items.length) {
      this.rows.replaceChildren(element("p", { class: "muted" }, this.words["none-of-kind"]));
      return;
    }
    const { result } = this.preview;
    const all = kind ? result[kind] : result.moved + result.infeasible + result.feasible;
    const heads = ["pod", "change", "from", "to", "why", "decision"].map((name) => element("th", { scope: "col" }, this.words[name]));
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...items.map((one) => this.row(one))));
    const more = items.length < all ? [element("p", { class: "small muted" }, fill(this.words["shown-of"], { shown: items.length, all: number.format(all) }))] : [];
    this.rows.replaceChildren(table, ...more);
  }

  row(one) {
    const tone = { moved: "wait", infeasible: "bad", feasible: "good" }[one.change];
    const why = one.reason ?? (one.margin === null ? "" : fill(this.words.points, { margin: number.format(one.margin) }));
    const node = (name) => (name ? element("a", { class: "mono", href: `/nodes/${encodeURIComponent(name)}/?cluster=${encodeURIComponent(this.preview.cluster)}` }, name) : element("span", { class: "muted" }, this.words.nowhere));
    return element(
      "tr",
      {},
      element("th", { scope: "row", class: "wrap" }, one.pod),
      element("td", {}, element("span", { class: `chip ${tone}` }, this.words[one.change])),
      element("td", {}, node(one.from)),
      element("td", {}, node(one.to)),
      element("td", { class: "wrap small" }, why),
      element("td", {}, one.decision ? element("a", { href: `/decisions/${one.decision}/` }, String(one.decision)) : ""),
    );
  }

  async download() {
    const lines = [["pod", "change", "from", "to", "margin", "reason", "decision"]];
    let next = "";
    do {
      const page = await this.fetched("", next, 500);
      for (const one of page.items) lines.push([one.pod, one.change, one.from, one.to, one.margin, one.reason, one.decision]);
      next = page.next ? new URL(page.next, location.href).searchParams.get("cursor") : "";
    } while (next);
    // Cells that a spreadsheet would interpret as a formula begin with an apostrophe.
    const cell = (value) => {
      const text = String(value ?? "");
      return `"${(/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text).replaceAll('"', '""')}"`;
    };
    const text = lines.map((line) => line.map(cell).join(",")).join("\r\n");
    download(`replay-${this.preview.policy}-v${this.preview.version}.csv`, "text/csv", text);
  }
}

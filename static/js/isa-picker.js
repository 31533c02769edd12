// The picker of instruction sets: a base and chips for extensions; implied extensions are greyed out.
//
// The server provides the names, their extensions and node counts (`isa/`) and parses texts (`isa/parse/`), so that the
// rules of the ISA lattice are in one place.
import { element, fill } from "./draw.js";

const MOST_CHIPS = 48;
const PAUSE_MILLISECONDS = 200;

export class IsaPicker {
  // `input`: the field with the text; `said`: the element for its meaning or error.
  constructor(part, input, said, words, cluster) {
    this.part = part;
    this.input = input;
    this.said = said;
    this.words = words;
    this.cluster = cluster;
    this.family = "riscv";
    this.families = null;
    this.means = { extensions: [] };
    this.timer = null;
    this.base = part.querySelector("#isa-base");
    this.chips = part.querySelector("#isa-chips");
    this.find = part.querySelector("#isa-find");
    part.querySelector("details").addEventListener("toggle", () => this.load());
    input.addEventListener("input", () => this.changed());
    this.find.addEventListener("input", () => this.draw());
    this.base.addEventListener("change", () => this.write(this.base.value, []));
    part.querySelector("#family").addEventListener("click", (event) => {
      if (!event.target.value) return;
      this.family = event.target.value;
      this.draw();
    });
    this.chips.addEventListener("click", (event) => {
      const chip = event.target.closest("button");
      if (chip && chip.getAttribute("aria-disabled") !== "true") this.toggle(chip.value);
    });
    this.changed(0);
  }

  async load() {
    if (this.families || !this.part.querySelector("details").open) return;
    const query = new URLSearchParams({ cluster: this.cluster });
    const answer = await fetch(`/api/v1/isa/?${query}`).catch(() => null);
    if (!answer?.ok) {
      this.said.textContent = this.words.unreachable;
      return;
    }
    this.families = await answer.json();
    this.draw();
  }

  changed(pause = PAUSE_MILLISECONDS) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), pause);
  }

  // Requests the meaning of the text; only the latest response is used.
  async ask() {
    const text = this.input.value.trim();
    this.means = { extensions: [] };
    this.said.textContent = "";
    if (text) {
      const answer = await fetch(`/api/v1/isa/parse/?${new URLSearchParams({ text })}`).catch(() => null);
      if (text !== this.input.value.trim()) return;
      const found = answer ? await answer.json() : null;
      if (answer?.ok) {
        this.means = found;
        this.family = found.arch;
        this.said.textContent = fill(this.words["isa-means"], { name: found.canonical, count: found.extensions.length });
      } else if (found) this.said.textContent = [found.detail, found.hint].filter(Boolean).join(". ");
    }
    this.draw();
  }

  // Splits the text into a known base and the rest.
  parts() {
    const text = this.input.value.trim().toLowerCase();
    const bases = this.families?.[this.family].bases.map(({ name }) => name) ?? [];
    const base = bases.filter((name) => text.startsWith(name)).sort((a, b) => b.length - a.length)[0];
    if (!base) return { base: "", picks: [] };
    const rest = text.slice(base.length);
    const [letters, ...names] = this.family === "riscv" ? rest.split("_") : ["", ...rest.split("+").slice(1)];
    return { base, picks: [...letters, ...names].filter(Boolean) };
  }

  toggle(name) {
    const { base, picks } = this.parts();
    const left = picks.includes(name) ? picks.filter((pick) => pick !== name) : [...picks, name];
    this.write(base || this.families[this.family].bases[0].name, left);
  }

  write(base, picks) {
    const riscv = this.family === "riscv";
    const profile = base.startsWith("rva");
    const letters = riscv && !profile ? picks.filter((pick) => pick.length === 1).join("") : "";
    const names = picks.filter((pick) => !riscv || profile || pick.length > 1);
    this.input.value = base + letters + names.map((pick) => (riscv ? "_" : "+") + pick).join("");
    this.input.dispatchEvent(new Event("input", { bubbles: true }));
    this.changed(0);
  }

  draw() {
    for (const button of this.part.querySelectorAll("#family button")) {
      button.setAttribute("aria-pressed", button.value === this.family);
    }
    if (!this.families) return;
    const { bases, features, nodes } = this.families[this.family];
    const { base, picks } = this.parts();
    const none = element("option", { value: "" }, "–");
    this.base.replaceChildren(none, ...bases.map(({ name }) => element("option", { value: name, selected: name === base }, name)));
    const has = new Set(this.family === this.means.arch ? this.means.extensions : []);
    const needle = this.find.value.trim().toLowerCase();
    const matches = ({ name, text }) => !needle || name.includes(needle) || text.toLowerCase().includes(needle);
    // Selected extensions first, then by number of nodes.
    const order = (name) => (picks.includes(name) ? 2e9 : 0) + (nodes[name] ?? 0);
    const shown = features.filter(matches).sort((a, b) => order(b.name) - order(a.name) || a.name.localeCompare(b.name));
    const focused = document.activeElement?.closest("#isa-chips button")?.value;
    this.chips.replaceChildren(...shown.slice(0, MOST_CHIPS).map((feature) => this.chip(feature, nodes, picks, has)));
    if (shown.length > MOST_CHIPS) {
      this.chips.append(element("span", { class: "small muted" }, fill(this.words.more, { count: shown.length - MOST_CHIPS })));
    }
    if (focused) this.chips.querySelector(`button[value="${CSS.escape(focused)}"]`)?.focus();
  }

  chip({ name, text, implies }, nodes, picks, has) {
    const picked = picks.includes(name);
    const implied = has.has(name) && !picked;
    const count = nodes[name] ?? 0;
    const title = [text, implies.length ? fill(this.words.implies, { names: implies.join(", ") }) : ""].filter(Boolean);
    const label = fill(this.words[implied ? "chip-implied" : "chip-nodes"], { name, count });
    return element(
      "button",
      {
        type: "button", value: name, class: "pick", title: title.join(". "), "aria-label": label,
        "aria-pressed": String(picked || implied), "aria-disabled": implied ? "true" : null,
      },
      name, element("span", { class: "count" }, count),
    );
  }
}

// The policy form: reads and writes the draft, and keeps rows, sliders and positions in sync.
import { element, fill } from "./draw.js";

// Weights of the slider positions. The steps grow, because only ratios of weights matter. The number field accepts
// any value.
const STOPS = [
  0, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750, 1000,
];

const nearest = (weight) => STOPS.reduce((best, stop, at) => (Math.abs(stop - weight) < Math.abs(STOPS[best] - weight) ? at : best), 0);
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

export class PolicyForm {
  // `deciding`: the plugins of the active version, from which a plugin that is enabled again gets its values.
  constructor(root, words, deciding, changed) {
    this.root = root;
    this.deciding = deciding;
    this.words = words;
    this.uses = root.querySelector("#uses");
    this.unused = root.querySelector("#unused");
    this.moved = root.querySelector("#moved");
    this.changed = changed;
    for (const row of root.querySelectorAll(".use")) this.begin(row);
    this.number();
    root.addEventListener("submit", (event) => event.preventDefault());
    root.addEventListener("input", (event) => this.input(event));
    root.addEventListener("click", (event) => {
      const mover = event.target.closest("[data-move]");
      if (mover) this.move(mover.closest(".use"), Number(mover.dataset.move), mover);
    });
    root.addEventListener("keydown", (event) => {
      const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      const row = event.target.closest("#uses .use");
      if (!event.altKey || !step || !row) return;
      event.preventDefault();
      this.move(row, step, event.target);
    });
    this.dragging();
  }

  begin(row) {
    const slider = row.querySelector("[data-slider]");
    if (slider) {
      slider.max = STOPS.length - 1;
      this.showWeight(row, Number(row.dataset.weight));
    }
    this.markSet(row);
  }

  get rows() {
    return [...this.uses.children];
  }

  rowOf(name) {
    return this.root.querySelector(`.use[data-plugin="${CSS.escape(name)}"]`);
  }

  isOn(row) {
    return row.querySelector("[data-on]").checked;
  }

  // -- reading --------------------------------------------------------------------------------------------------------

  read() {
    const plugins = this.rows.filter((row) => this.isOn(row)).map((row) => this.use(row));
    const seed = this.root.querySelector("#seed");
    return {
      plugins,
      ties: { by: this.root.querySelector("#ties").value, seed: seed.value === "" ? 0 : Number(seed.value) },
      description: this.root.querySelector("#description").value,
    };
  }

  use(row) {
    return { name: row.dataset.plugin, weight: this.weight(row), params: this.params(row) };
  }

  weight(row) {
    const field = row.querySelector("[data-number]");
    if (!field) return Number(row.dataset.weight);
    return field.value === "" ? null : Number(field.value);
  }

  // Parameters with their default value are omitted, so that they follow changes of the default.
  params(row) {
    const labels = row.querySelectorAll("[data-param]");
    if (!labels.length) return JSON.parse(row.dataset.params);
    const found = {};
    for (const label of labels) {
      const value = valueOf(label);
      if (!same(value, JSON.parse(label.dataset.default))) found[label.dataset.param] = value;
    }
    return found;
  }

  // -- writing --------------------------------------------------------------------------------------------------------

  write(spec) {
    const used = new Map(spec.plugins.map((use) => [use.name, use]));
    for (const use of spec.plugins) {
      const row = this.rowOf(use.name);
      if (!row) continue;
      this.uses.append(row);
      this.setRow(row, use);
    }
    for (const row of this.rows) if (!used.has(row.dataset.plugin)) this.setRow(row, null);
    const off = [...this.rows.filter((row) => !used.has(row.dataset.plugin)), ...this.unused.children];
    off.sort((one, other) => (one.dataset.plugin < other.dataset.plugin ? -1 : 1));
    this.unused.append(...off);
    this.root.querySelector("#ties").value = spec.ties?.by ?? "name";
    this.root.querySelector("#seed").value = spec.ties?.seed ?? 0;
    this.root.querySelector("#description").value = spec.description ?? "";
    this.number();
  }

  setRow(row, use) {
    row.querySelector("[data-on]").checked = use !== null;
    row.classList.toggle("off", use === null);
    const weight = use?.weight ?? 1;
    row.dataset.weight = weight;
    if (row.querySelector("[data-number]")) this.showWeight(row, weight);
    const params = use?.params ?? {};
    row.dataset.params = JSON.stringify(params);
    for (const label of row.querySelectorAll("[data-param]")) {
      const value = label.dataset.param in params ? params[label.dataset.param] : JSON.parse(label.dataset.default);
      setValue(label, value);
    }
    this.markSet(row);
  }

  showWeight(row, weight, from = null) {
    const slider = row.querySelector("[data-slider]");
    const number = row.querySelector("[data-number]");
    if (from !== slider) slider.value = nearest(weight);
    if (from !== number) number.value = weight;
    slider.setAttribute("aria-valuetext", String(weight));
    row.classList.toggle("silent", weight === 0);
  }

  markSet(row) {
    const place = row.querySelector("[data-set]");
    if (!place) return;
    const count = Object.keys(this.params(row)).length;
    place.textContent = count ? `, ${fill(this.words["set-count"], { count })}` : "";
    for (const label of row.querySelectorAll("[data-param]")) {
      label.classList.toggle("set", !same(valueOf(label), JSON.parse(label.dataset.default)));
    }
  }

  // -- editing --------------------------------------------------------------------------------------------------------

  input(event) {
    const row = event.target.closest(".use");
    if (row) {
      if (event.target.matches("[data-slider]")) this.showWeight(row, STOPS[Number(event.target.value)], event.target);
      if (event.target.matches("[data-number]") && event.target.value !== "") {
        this.showWeight(row, Number(event.target.value), event.target);
      }
      if (event.target.matches("[data-on]")) this.switch(row);
      this.markSet(row);
    }
    this.changed();
  }

  // A disabled plugin keeps its position until the page is rendered again, so that enabling it again is an undo.
  switch(row) {
    const on = this.isOn(row);
    row.classList.toggle("off", !on);
    const entered = on && row.parentElement === this.unused;
    if (entered) this.enter(row);
    this.number();
    if (!entered) return;
    row.querySelector("[data-on]").focus();
    this.announcePlace(row);
  }

  enter(row) {
    const at = this.deciding.findIndex((use) => use.name === row.dataset.plugin);
    if (at < 0) {
      this.uses.append(row);
      return;
    }
    const earlier = this.deciding.slice(0, at).findLast(({ name }) => this.rowOf(name)?.parentElement === this.uses);
    if (earlier) this.rowOf(earlier.name).after(row);
    else this.uses.prepend(row);
    this.setRow(row, this.deciding[at]);
  }

  announcePlace(row) {
    const place = row.querySelector(".place").textContent;
    this.moved.textContent = fill(this.words["now-at"], { plugin: row.dataset.plugin, place });
  }

  move(row, step, focused) {
    const other = step < 0 ? row.previousElementSibling : row.nextElementSibling;
    if (!other) return;
    if (step < 0) other.before(row);
    else other.after(row);
    this.number();
    focused.focus();
    if (focused.disabled) row.querySelector("[data-move]:not(:disabled)")?.focus();
    row.scrollIntoView({ block: "nearest" });
    this.announcePlace(row);
    this.changed();
  }

  number() {
    let place = 0;
    for (const row of this.rows) row.querySelector(".place").textContent = this.isOn(row) ? (place += 1) : "–";
    for (const row of this.unused.children) row.querySelector(".place").textContent = "";
  }

  dragging() {
    let held = null;
    this.uses.addEventListener("dragstart", (event) => {
      held = event.target.closest(".use");
      event.dataTransfer.effectAllowed = "move";
      event.dataTransfer.setDragImage(held, 12, 12);
      held.classList.add("held-row");
    });
    this.uses.addEventListener("dragover", (event) => {
      const over = event.target.closest(".use");
      if (!held || !over) return;
      event.preventDefault();
      if (over === held) return;
      const box = over.getBoundingClientRect();
      if (event.clientY > box.top + box.height / 2) over.after(held);
      else over.before(held);
    });
    this.uses.addEventListener("drop", (event) => event.preventDefault());
    this.uses.addEventListener("dragend", () => {
      held?.classList.remove("held-row");
      held = null;
      this.number();
      this.changed();
    });
  }

  // -- errors ---------------------------------------------------------------------------------------------------------

  // Shows a validation error of the server at its plugin; returns the row, or null for other errors.
  fault(problem) {
    for (const place of this.root.querySelectorAll(".use > .problem")) place.hidden = true;
    if (!problem) return null;
    const at = /plugins\[(\d+)\]/.exec(`${problem.place} ${problem.message}`);
    const row = problem.plugin ? this.rowOf(problem.plugin) : at && this.rows.filter((one) => this.isOn(one))[Number(at[1])];
    const place = row?.querySelector(":scope > .problem");
    if (!place) return null;
    place.replaceChildren(element("span", {}, problem.message), problem.hint ? ` ${problem.hint}` : "");
    place.hidden = false;
    return row;
  }
}

function control(label) {
  return label.querySelector("input, select, textarea");
}

// An invalid value is sent to the server unchanged, and the server reports the error.
function valueOf(label) {
  const field = control(label);
  if (label.dataset.kind === "switch") return field.checked;
  if (label.dataset.kind === "integer" || label.dataset.kind === "number") {
    return field.value === "" ? null : Number(field.value);
  }
  if (label.dataset.kind !== "json") return field.value;
  try {
    return JSON.parse(field.value);
  } catch {
    return field.value;
  }
}

function setValue(label, value) {
  const field = control(label);
  if (label.dataset.kind === "switch") field.checked = value;
  else if (label.dataset.kind === "json") field.value = JSON.stringify(value);
  else field.value = value;
}

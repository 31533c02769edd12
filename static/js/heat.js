// The heat map of a large fleet: one small square per node on a canvas, in rows by ISA family and pool, ordered by name.
//
// Positions use integer arithmetic, so the square under the pointer is found without a search, and a change repaints only one
// square. The scale has even lightness in both themes. The state is drawn on top (⊘ as a slash, ✕ as a cross), and the line
// below describes the node in words. The size of a square depends on the number of nodes. Arrow keys move the focus, Enter
// opens the node.
import { byName, FAMILIES, sentenceOf, stateOf } from "./grid.js";
import { counted, element, keeping, percent, visible } from "./draw.js";
import { HeatScale, STATE_LEVELS } from "./heat-scale.js";

const LABEL_PIXELS = 132;
const FAMILY_PIXELS = 22;
const LARGEST = 26;
const SMALLEST = 7;
const LOW_ROW = 13;
const MOST_UNEVEN = 0.25;
export const MEASURES = ["cpu", "memory", "gpu", "balance", "state"];

export class HeatMap {
  // `options.readout`: element that describes the square under the pointer; `options.legend`: element that shows the
  // scale; `options.measure`: one of MEASURES.
  constructor(container, words, options = {}) {
    this.container = container;
    this.words = words;
    this.options = options;
    this.measure = MEASURES.includes(options.measure) ? options.measure : "cpu";
    this.nodes = {};
    this.shown = [];
    this.place = new Map();
    this.balance = {};
    this.marks = new Map();
    this.terms = [];
    this.at = -1;
    this.canvas = element("canvas", { tabindex: "0", role: "img", "aria-describedby": options.readout?.id });
    this.cursor = element("span", { class: "heat-cursor", hidden: true });
    this.labels = element("div", { class: "heat-labels", "aria-hidden": "true" });
    this.board = element("div", { class: "heat" }, this.canvas, this.labels, this.cursor);
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.canvas.addEventListener("pointermove", (event) => this.point(this.hit(event.offsetX, event.offsetY)));
    this.canvas.addEventListener("click", (event) => this.open(this.hit(event.offsetX, event.offsetY), event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => this.point(this.at < 0 ? 0 : this.at));
    // Colours come from the style sheet, so a changed theme changes them.
    const repaint = () => this.repaint();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
    new MutationObserver(repaint).observe(document.documentElement, { attributes: true });
    this.resizing = new ResizeObserver(() => this.layOut());
  }

  attach() {
    this.container.classList.add("heat-shown");
    this.container.replaceChildren(this.board);
    this.resizing.observe(this.container);
  }

  detach() {
    this.container.classList.remove("heat-shown");
    this.resizing.disconnect();
    this.board.remove();
  }

  draw(nodes) {
    const selected = this.shown[this.at]?.name;
    this.nodes = nodes;
    this.shown = Object.values(nodes);
    const rank = (node) => (FAMILIES.indexOf(node.family) + FAMILIES.length + 1) % (FAMILIES.length + 1);
    this.shown.sort((a, b) => rank(a) - rank(b) || byName(a.pool, b.pool) || byName(a.name, b.name));
    this.place = new Map(this.shown.map((node, at) => [node.name, at]));
    this.pools = [];
    for (const [at, node] of this.shown.entries()) {
      const last = this.pools.at(-1);
      if (last && last.family === node.family && last.name === node.pool) last.size += 1;
      else this.pools.push({ family: node.family, name: node.pool, first: at, size: 1 });
    }
    this.at = this.place.get(selected) ?? -1;
    this.match();
    this.layOut(true);
  }

  // Returns whether all nodes keep their positions.
  holds(nodes, changed) {
    return changed.every((name) => {
      const old = this.shown[this.place.get(name)];
      return old && nodes[name] && nodes[name].pool === old.pool && nodes[name].family === old.family;
    });
  }

  // Applies a patch to nodes that keep their positions; the next `draw` updates the others.
  update(nodes, changed) {
    this.nodes = nodes;
    for (const name of changed) {
      const at = this.place.get(name);
      if (at === undefined || !nodes[name]) continue;
      this.shown[at] = nodes[name];
      this.paint(at);
      if (at === this.at) this.readOut();
    }
  }

  // -- layout -------------------------------------------------------------------------------------------------------

  layOut(anyway = false) {
    const width = this.board.clientWidth;
    const room = this.container.clientHeight - 8;
    if (!width || !this.pools || (!anyway && width === this.width && room === this.room)) return;
    [this.width, this.room] = [width, room];
    let pitch = LARGEST;
    while (pitch > SMALLEST && this.heightAt(pitch) > Math.max(room, 120)) pitch -= 1;
    this.pitch = pitch;
    this.columns = this.columnsAt(pitch);
    let top = 0;
    let family = null;
    this.labels.replaceChildren();
    for (const pool of this.pools) {
      if (pool.family !== family) {
        family = pool.family;
        const size = this.pools.reduce((sum, other) => sum + (other.family === family ? other.size : 0), 0);
        const title = this.words[family] ?? this.words.unknown;
        const count = element("span", { class: "muted" }, counted(size));
        this.label("heat-family", top, FAMILY_PIXELS, { "data-family": family }, title, " ", count);
        top += FAMILY_PIXELS;
      }
      pool.top = top;
      pool.rows = Math.ceil(pool.size / this.columns);
      const size = element("span", { class: "muted" }, counted(pool.size));
      this.label("heat-pool", top, LOW_ROW, { title: pool.name, "data-family": family }, element("span", {}, pool.name), size);
      top += this.poolHeight(pool, pitch);
    }
    this.height = top;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(Math.max(top, 1) * scale);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${top}px`;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.repaint();
    this.moveCursor();
  }

  label(kind, top, height, attributes, ...children) {
    const label = element("span", { class: kind, ...attributes }, ...children);
    label.style.top = `${top}px`;
    label.style.height = `${height}px`;
    this.labels.append(label);
  }

  columnsAt = (pitch) => Math.max(1, Math.floor((this.width - LABEL_PIXELS) / pitch));

  poolHeight = (pool, pitch) => Math.max(LOW_ROW, Math.ceil(pool.size / this.columnsAt(pitch)) * pitch) + 3;

  heightAt(pitch) {
    const families = new Set(this.pools.map((pool) => pool.family)).size;
    return this.pools.reduce((sum, pool) => sum + this.poolHeight(pool, pitch), families * FAMILY_PIXELS);
  }

  hit(x, y) {
    const column = Math.floor((x - LABEL_PIXELS) / this.pitch);
    if (column < 0 || column >= this.columns) return -1;
    let [low, high] = [0, this.pools.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.pools[middle].top <= y) low = middle;
      else high = middle - 1;
    }
    const pool = this.pools[low];
    const row = pool ? Math.floor((y - pool.top) / this.pitch) : -1;
    const within = row * this.columns + column;
    return row < 0 || row >= pool.rows || within >= pool.size ? -1 : pool.first + within;
  }

  poolOf(at) {
    return this.pools.findLast((pool) => pool.first <= at);
  }

  corner(at) {
    const pool = this.poolOf(at);
    const within = at - pool.first;
    return [LABEL_PIXELS + (within % this.columns) * this.pitch, pool.top + Math.floor(within / this.columns) * this.pitch];
  }

  // -- painting ---------------------------------------------------------------------------------------------------------

  setMeasure(measure) {
    this.measure = measure;
    this.repaint();
    this.readOut();
  }

  // `degrees`: node name -> balance of the node, 1 if balanced.
  setBalance(degrees) {
    this.balance = degrees;
    if (this.measure === "balance") this.repaint();
  }

  // Position on the scale from 0 to 1, or null without a measurement.
  level(node) {
    if (this.measure !== "balance") return node[this.measure] ?? null;
    const degree = this.balance[node.name];
    return degree === undefined ? null : Math.min(1, (1 - degree) / MOST_UNEVEN);
  }

  repaint() {
    if (!this.pitch || !this.board.isConnected) return;
    this.scale = new HeatScale(this.board);
    this.context.fillStyle = this.scale.surface;
    this.context.fillRect(0, 0, this.width, this.height);
    for (const pool of this.pools) {
      for (let within = 0; within < pool.size; within += 1) {
        const x = LABEL_PIXELS + (within % this.columns) * this.pitch;
        this.square(pool.first + within, x, pool.top + Math.floor(within / this.columns) * this.pitch);
      }
    }
    const number = counted(this.shown.length);
    this.canvas.setAttribute("aria-label", `${this.words.heat}: ${number} ${this.words["nodes-by"]} ${this.words[this.measure]}`);
    this.options.legend?.replaceChildren(...this.scale.legend(this.measure, this.words));
  }

  paint(at) {
    if (!this.pitch) return;
    const [x, y] = this.corner(at);
    this.context.fillStyle = this.scale.surface;
    this.context.fillRect(x, y, this.pitch, this.pitch);
    this.square(at, x, y);
  }

  square(at, x, y) {
    const { context, scale } = this;
    const node = this.shown[at];
    const side = this.pitch - (this.pitch > 9 ? 2 : 1);
    const state = stateOf(node);
    const level = this.measure === "state" ? STATE_LEVELS[state] : this.level(node);
    const faded = this.hidden?.[at] || this.marks.get(node.name)?.kind === "out";
    context.globalAlpha = faded ? 0.16 : 1;
    if (level === null) {
      context.strokeStyle = scale.line;
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    } else {
      context.fillStyle = scale.colourOf(level);
      context.fillRect(x, y, side, side);
    }
    if (state !== "ready") this.sign(state, x, y, side);
    if (this.marks.get(node.name)?.kind === "ghost") {
      context.strokeStyle = scale.accent;
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, side - 2, side - 2);
    }
    context.globalAlpha = 1;
  }

  // A slash for a cordoned node, a cross for a node that is not ready; both have a light edge on dark squares.
  sign(state, x, y, side) {
    const { context, scale } = this;
    context.beginPath();
    context.moveTo(x + 1, y + side - 1);
    context.lineTo(x + side - 1, y + 1);
    if (state === "not-ready") {
      context.moveTo(x + 1, y + 1);
      context.lineTo(x + side - 1, y + side - 1);
    }
    for (const [style, width] of [[scale.surface, 3.5], [state === "not-ready" ? scale.bad : scale.text, 1.5]]) {
      context.strokeStyle = style;
      context.lineWidth = width;
      context.stroke();
    }
  }

  // -- search, marks, read-out -----------------------------------------------------------------------------------------

  // Fades nodes that do not match instead of removing them, so that positions do not change; returns the number of matches.
  filter(query) {
    this.terms = query.toLowerCase().split(/\s+/).filter(Boolean);
    const left = this.match();
    this.repaint();
    return left;
  }

  match() {
    this.hidden = this.terms.length ? new Uint8Array(this.shown.length) : null;
    if (!this.hidden) return this.shown.length;
    let left = 0;
    for (const [at, node] of this.shown.entries()) {
      const text = `${node.name} ${node.pool} ${node.isa ?? ""} ${node.family} ${stateOf(node)}`.toLowerCase();
      this.hidden[at] = !this.terms.every((word) => text.includes(word));
      left += !this.hidden[at];
    }
    return left;
  }

  // `marks`: node name -> {kind: "ghost" | "out", words}.
  mark(marks) {
    this.marks = marks;
    this.repaint();
  }

  point(at) {
    if (at === this.at || at >= this.shown.length) return;
    if (at < 0 && document.activeElement === this.canvas) return;
    this.at = at;
    this.canvas.classList.toggle("on-node", at >= 0);
    this.moveCursor();
    this.readOut();
  }

  moveCursor() {
    this.cursor.hidden = this.at < 0 || this.at >= this.shown.length;
    if (this.cursor.hidden) return;
    const [x, y] = this.corner(this.at);
    const side = this.pitch + 1;
    this.cursor.style.transform = `translate(${x - 1}px, ${y - 1}px)`;
    this.cursor.style.width = this.cursor.style.height = `${side}px`;
  }

  readOut() {
    const node = this.shown[this.at];
    if (!node || !this.options.readout) return;
    const more = [];
    const degree = this.balance[node.name];
    if (this.measure === "balance" && degree !== undefined) more.push(`${this.words.balance} ${percent(degree)}`);
    const mark = this.marks.get(node.name);
    if (mark) more.push(mark.words);
    if (!this.nodes[node.name]) more.push(this.words.gone);
    this.options.readout.textContent = visible([sentenceOf(node, this.words), ...more].join(" · "));
  }

  open(at, event) {
    const node = this.shown[at];
    if (!node) return;
    const address = keeping(`/nodes/${encodeURIComponent(node.name)}/`);
    if (event?.ctrlKey || event?.metaKey) window.open(address, "_blank", "noopener");
    else location.assign(address);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || !this.shown.length) return;
    const last = this.shown.length - 1;
    const at = Math.max(this.at, 0);
    const to = {
      ArrowLeft: () => at - 1,
      ArrowRight: () => at + 1,
      ArrowUp: () => this.below(at, -1),
      ArrowDown: () => this.below(at, 1),
      Home: () => 0,
      End: () => last,
    }[event.key];
    if (event.key === "Enter") this.open(at);
    if (!to) return;
    event.preventDefault();
    this.point(Math.min(last, Math.max(0, to())));
    const [, y] = this.corner(this.at);
    if (y < this.container.scrollTop) this.container.scrollTop = y - FAMILY_PIXELS;
    const end = y + this.pitch - this.container.clientHeight;
    if (end > this.container.scrollTop) this.container.scrollTop = end;
  }

  // The square in the next row, up or down, across pools.
  below(at, step) {
    const pool = this.poolOf(at);
    const column = (at - pool.first) % this.columns;
    const row = Math.floor((at - pool.first) / this.columns) + step;
    if (row >= 0 && row < pool.rows) return Math.min(pool.first + row * this.columns + column, pool.first + pool.size - 1);
    const next = this.pools[this.pools.indexOf(pool) + step];
    if (!next) return at;
    const start = step > 0 ? 0 : (next.rows - 1) * this.columns;
    return next.first + Math.min(start + column, next.size - 1);
  }
}

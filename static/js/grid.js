// The node grid: one tile per node, ordered by ISA family, pool and name; live updates do not change the order.
//
// Large tiles have names and numbers. Large fleets get small tiles with bars only; the line above the grid describes the
// tile under the pointer or the focus. Only one tile is a tab stop; arrow keys move the focus.
import { ago, element, keeping, percent, setRatio, visible } from "./draw.js";

export const FAMILIES = ["riscv", "arm", "x86", "unknown"];
const MEASURES = ["cpu", "memory", "gpu"];
export const MOST_LARGE_TILES = 120;
const SIGNS = { ready: "", cordoned: "⊘", "not-ready": "✕" };
const MAINTAINED = "◐";
const TILE_PIXELS = { large: 120, dense: 25 };
// Columns of a family at least, so that the names of its pools are legible.
const LEAST_COLUMNS = { large: 2, dense: 6 };

export const stateOf = (node) => (!node.ready ? "not-ready" : node.cordoned ? "cordoned" : "ready");
export const byName = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

// Description of the GPUs and zones of a node in maintenance: number, end and reason.
export function maintenanceOf({ maintenance, cardsInstalled }, words) {
  const { cards, zones, until, reason } = maintenance;
  const fill = (text, count) =>
    text.replace("{count}", count).replace("{all}", cardsInstalled).replace("{time}", ago(until));
  const parts = [];
  if (cards) parts.push(fill(words["cards-in-maintenance"], cards));
  if (zones) parts.push(fill(words["zones-in-maintenance"], zones));
  return `${parts.join(", ")}: ${reason}`;
}

// Text that describes a node.
export function sentenceOf(node, words) {
  const parts = [node.name, node.isa ?? words["isa-unknown"], node.pool, words[stateOf(node)]];
  for (const kind of MEASURES) {
    if (kind !== "gpu" || node.cardsInstalled) parts.push(`${words[kind]} ${percent(node[kind])}`);
  }
  if (node.maintenance) parts.push(maintenanceOf(node, words));
  parts.push(`${node.pods} ${words.pods}`);
  return parts.join(" · ");
}

// Short form of an ISA string for a tile: the level, the profile, or the base letters.
export function shortIsa(isa) {
  if (!isa) return "?";
  const name = isa.toLowerCase();
  const level = name.match(/^x86-64-(v\d)/) ?? name.match(/^arm(v\d+(\.\d+)?)/);
  if (name.includes("+sve2")) return "SVE2";
  if (name.includes("+sve")) return "SVE";
  if (level) return level[1];
  const profile = name.match(/^(rv[abim]\d+)[us]64(_v\b)?/);
  if (profile) return profile[1].toUpperCase() + (profile[2] ? "+V" : "");
  return name.split("_")[0].replace("imafd", "g").slice(0, 8).toUpperCase();
}

// Number of tile columns of each family that minimises the height of the tallest family.
// `families`: the pool sizes of each family. Heights are in tiles; the heading of a pool counts as a fraction of a tile.
function columnsFor(families, columns, least) {
  if (columns < least * families.length) return null;
  const counts = families.map(() => least);
  const useful = families.map((sizes) => Math.max(...sizes));
  const height = (at) => families[at].reduce((sum, size) => sum + Math.ceil(size / counts[at]) + 0.3, 0);
  for (let left = columns - least * families.length; left > 0; left -= 1) {
    const growing = families.map((_, at) => at).filter((at) => counts[at] < useful[at]);
    if (!growing.length) break;
    counts[growing.reduce((tallest, at) => (height(at) > height(tallest) ? at : tallest))] += 1;
  }
  return counts;
}

export class NodeGrid {
  // `options.readout`: the element that describes the tile under the pointer; `options.size`: "tiles" or "dense".
  constructor(container, words, options = {}) {
    this.container = container;
    this.words = words;
    this.options = options;
    this.tiles = new Map();
    this.nodes = {};
    this.pools = [];
    this.marks = new Map();
    this.query = "";
    this.resizing = new ResizeObserver(() => this.arrange());
    this.resizing.observe(container);
    container.addEventListener("keydown", (event) => this.move(event));
    container.addEventListener("focusin", (event) => this.focused(event.target.closest(".node")));
    for (const kind of ["pointerover", "focusin"]) {
      container.addEventListener(kind, (event) => this.readOut(event.target.closest(".node")?.dataset.name));
    }
  }

  get dense() {
    const size = this.options.size ?? "auto";
    return size === "dense" || (size === "auto" && Object.keys(this.nodes).length > MOST_LARGE_TILES);
  }

  draw(nodes) {
    this.nodes = nodes;
    const focused = document.activeElement?.closest(".node")?.dataset.name;
    const groups = new Map(FAMILIES.map((family) => [family, new Map()]));
    for (const name of Object.keys(nodes).sort(byName)) {
      const node = nodes[name];
      const pools = groups.get(node.family) ?? groups.get("unknown");
      if (!pools.has(node.pool)) pools.set(node.pool, []);
      pools.get(node.pool).push(node);
    }
    this.tiles.clear();
    const dense = this.dense;
    const present = [...groups].filter(([, pools]) => pools.size);
    this.pools = present.map(([, pools]) => [...pools.values()].map((members) => members.length));
    this.container.classList.toggle("dense", dense);
    this.container.replaceChildren(...present.map(([family, pools]) => this.family(family, pools, dense)));
    this.arrange();
    this.filter(this.query);
    const stop = this.tiles.get(focused) ?? this.tiles.values().next().value;
    stop?.root.setAttribute("tabindex", "0");
    if (focused) stop?.root.focus({ preventScroll: true });
  }

  // Families are side by side, each as wide as needed, or stacked if the width is not sufficient.
  arrange() {
    const fits = Math.floor(this.container.clientWidth / TILE_PIXELS[this.dense ? "dense" : "large"]);
    const columns = columnsFor(this.pools, fits, LEAST_COLUMNS[this.dense ? "dense" : "large"]);
    this.container.classList.toggle("stacked", columns === null);
    for (const [at, section] of [...this.container.children].entries()) {
      section.style.setProperty("--columns", columns?.[at] ?? Math.max(1, fits));
    }
  }

  family(family, pools, dense) {
    const size = [...pools.values()].reduce((sum, members) => sum + members.length, 0);
    const section = element(
      "section",
      { class: "family", "data-family": family },
      element("h3", {}, this.words[family], " ", element("span", { class: "muted" }, size)),
    );
    for (const [pool, members] of [...pools].sort(([a], [b]) => byName(a, b))) {
      // Values that all nodes of a pool share are shown once.
      const badges = new Set(members.map((node) => shortIsa(node.isa)));
      const [common] = badges.size === 1 ? badges : [null];
      const tiles = members.map((node) => this.tile(node, dense, common ? null : shortIsa(node.isa).replace("RV64", "")));
      const heading = [element("span", {}, pool), element("span", {}, members.length)];
      if (common) heading.push(element("span", { class: "badge" }, common));
      section.append(
        element(
          "div",
          { class: "pool" },
          element("h4", { title: pool }, ...heading),
          element("div", { class: "nodes" }, ...tiles),
        ),
      );
    }
    return section;
  }

  tile(node, dense, badge) {
    const root = element("a", {
      class: "node", href: keeping(`/nodes/${encodeURIComponent(node.name)}/`), tabindex: "-1", "data-name": node.name,
    });
    const tile = { root, measures: {}, ghost: null };
    if (!dense) {
      tile.state = element("span", { class: "state" });
      const shown = badge ? element("span", { class: "badge" }, badge) : null;
      root.append(element("span", { class: "name" }, ...[element("b", {}, node.name), tile.state, shown].filter(Boolean)));
      for (const kind of MEASURES) {
        if (kind === "gpu" && !node.cardsInstalled) continue;
        const fill = element("i");
        const figure = element("span", { class: "figure" });
        const bar = element("span", { class: `bar ${kind}` }, fill);
        root.append(element("span", { class: "measure" }, element("span", {}, this.words[`short-${kind}`]), bar, figure));
        tile.measures[kind] = { fill, figure };
      }
    }
    this.tiles.set(node.name, tile);
    this.show(node);
    return root;
  }

  show(node) {
    const tile = this.tiles.get(node.name);
    const { root, state, measures } = tile;
    tile.node = node;
    root.dataset.state = stateOf(node);
    root.setAttribute("aria-label", this.sentence(node));
    if (state) state.textContent = SIGNS[root.dataset.state] + (node.maintenance ? MAINTAINED : "");
    for (const kind of MEASURES) {
      const ratio = node[kind];
      if (measures[kind]) {
        setRatio(measures[kind].fill, ratio);
        measures[kind].figure.textContent = percent(ratio);
      } else if (!state) {
        root.style.setProperty(`--${kind}-used`, `${Math.min(1, ratio ?? 0) * 100}%`);
      }
    }
  }

  // Returns whether all nodes keep their positions; an added or removed node moves others.
  holds(nodes, changed) {
    return changed.every((name) => {
      const old = this.tiles.get(name)?.node;
      const node = nodes[name];
      return old && node && ["pool", "family", "isa", "cardsInstalled"].every((key) => node[key] === old[key]);
    });
  }

  // Applies a patch to nodes that keep their positions; the next `draw` updates the others.
  update(nodes, changed) {
    this.nodes = nodes;
    for (const name of changed) if (this.tiles.has(name) && nodes[name]) this.show(nodes[name]);
    if (changed.includes(this.readName)) this.readOut(this.readName);
  }

  attach() {
    this.resizing.observe(this.container);
  }

  detach() {
    this.resizing.disconnect();
    this.container.replaceChildren();
  }

  sentence(node) {
    const mark = this.marks.get(node.name);
    return mark ? `${sentenceOf(node, this.words)} · ${mark.words}` : sentenceOf(node, this.words);
  }

  readOut(name) {
    const { readout } = this.options;
    if (!readout || !this.nodes[name]) return;
    this.readName = name;
    readout.textContent = visible(this.sentence(this.nodes[name]));
  }

  // Hides nodes that do not match; returns the number of visible nodes.
  filter(query) {
    this.query = query;
    const terms = query.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const { root, node } of this.tiles.values()) {
      const text = `${node.name} ${node.pool} ${node.isa ?? ""} ${node.family} ${stateOf(node)}`.toLowerCase();
      root.hidden = !terms.every((word) => text.includes(word));
      left += !root.hidden;
    }
    for (const group of this.container.querySelectorAll(".pool, .family")) {
      group.hidden = !group.querySelector(".node:not([hidden])");
    }
    return left;
  }

  // `marks`: node name -> {kind: "ghost" | "out", words}.
  mark(marks) {
    this.marks = marks;
    for (const [name, { root, node }] of this.tiles) {
      const kind = marks.get(name)?.kind;
      root.classList.toggle("ghost", kind === "ghost");
      root.classList.toggle("out", kind === "out");
      root.setAttribute("aria-label", this.sentence(node));
    }
    this.arrange();
    const first = this.container.querySelector(".ghost");
    if (first) this.container.scrollTop = Math.max(0, first.offsetTop - this.container.clientHeight / 2);
  }

  focused(tile) {
    if (!tile) return;
    this.container.querySelector('.node[tabindex="0"]')?.setAttribute("tabindex", "-1");
    tile.setAttribute("tabindex", "0");
  }

  move(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const from = event.target.closest(".node");
    if (!step || !from || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const tiles = [...this.tiles.values()].map(({ root }) => root).filter((root) => !root.hidden);
    const next = step[0] ? tiles[tiles.indexOf(from) + step[0]] : nearestRow(tiles, from, step[1]);
    next?.focus();
  }
}

// The tile of the next row, up or down, with the closest centre.
function nearestRow(tiles, from, direction) {
  const here = from.getBoundingClientRect();
  const middle = here.left + here.width / 2;
  let best = null;
  let rowTop = null;
  let distance = Infinity;
  const after = direction > 0 ? tiles.slice(tiles.indexOf(from) + 1) : tiles.slice(0, tiles.indexOf(from)).reverse();
  for (const tile of after) {
    const box = tile.getBoundingClientRect();
    if (Math.abs(box.top - here.top) < 2) continue;
    rowTop ??= box.top;
    if (Math.abs(box.top - rowTop) > 2) break;
    const away = Math.abs(box.left + box.width / 2 - middle);
    if (away < distance) [best, distance] = [tile, away];
  }
  return best;
}

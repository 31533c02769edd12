// The first screen: tiles, node grid and decisions, redrawn from live documents piece by piece.
import { bar, element, percent, stateChip, tellTimes } from "./draw.js";
import { Live, showStatus } from "./live.js";

const screen = document.getElementById("fleet");
const words = JSON.parse(document.getElementById("words").textContent);
const initial = JSON.parse(document.getElementById("initial").textContent);
const FAMILIES = ["riscv", "arm", "x86", "unknown"];
const FEED_LENGTH = 10;

const stateOf = (node) => (!node.ready ? "not-ready" : node.cordoned ? "cordoned" : "ready");

function measure(kind, word, ratio) {
  return element("span", { class: "measure" }, word, bar(kind, ratio), element("span", { class: "number" }, percent(ratio)));
}

function tile(node) {
  const state = stateOf(node);
  const cards = node.cards ? measure("gpu", words.gpu, node.gpu) : null;
  return element(
    "a",
    { class: "node", href: `/nodes/${encodeURIComponent(node.name)}/`, id: `node-${node.name}`, "data-state": state },
    element(
      "span",
      { class: "name" },
      element("span", { title: node.name }, node.name),
      state === "ready" ? null : element("span", { class: "state" }, words[state]),
    ),
    element("span", { class: "badge mono", title: node.isa ?? words.unknown }, node.isa ?? words.unknown),
    measure("cpu", words.cpu, node.cpu),
    measure("memory", words.memory, node.memory),
    cards,
  );
}

function drawGrid(nodes) {
  const grid = document.getElementById("grid");
  const groups = new Map(FAMILIES.map((family) => [family, new Map()]));
  for (const node of Object.values(nodes).sort((a, b) => (a.name < b.name ? -1 : 1))) {
    const pools = groups.get(node.family) ?? groups.get("unknown");
    if (!pools.has(node.pool)) pools.set(node.pool, []);
    pools.get(node.pool).push(node);
  }
  grid.replaceChildren();
  for (const [family, pools] of groups) {
    if (!pools.size) continue;
    const section = element("section", { class: "family", "data-family": family }, element("h3", {}, words[family]));
    for (const [pool, members] of [...pools].sort(([a], [b]) => (a < b ? -1 : 1))) {
      section.append(
        element(
          "div",
          { class: "pool" },
          element("h4", {}, `${pool} · ${members.length}`),
          element("div", { class: "nodes" }, ...members.map(tile)),
        ),
      );
    }
    grid.append(section);
  }
  document.getElementById("grid-empty").hidden = Object.keys(nodes).length > 0;
}

function updateGrid(document_, patch) {
  const changes = Object.entries(patch.nodes ?? {});
  const movesTiles = ([name, change]) => change === null || !document.getElementById(`node-${name}`);
  if (changes.some(movesTiles)) {
    drawGrid(document_.nodes);
    return;
  }
  for (const [name] of changes) {
    const fresh = tile(document_.nodes[name]);
    fresh.classList.add("fresh");
    document.getElementById(`node-${name}`).replaceWith(fresh);
  }
}

function drawFigures(document_) {
  for (const figure of screen.querySelectorAll("[data-count]")) {
    const states = figure.dataset.count.split(" ");
    figure.textContent = states.reduce((sum, state) => sum + (document_.counts?.[state] ?? 0), 0);
  }
  for (const figure of screen.querySelectorAll("[data-head]")) {
    const value = document_.cluster?.[figure.dataset.head];
    figure.textContent = figure.dataset.as === "percent" ? percent(value) : (value ?? "–");
  }
  const waiting = (document_.counts?.["not-now"] ?? 0) + (document_.counts?.pending ?? 0);
  document.title = `${waiting ? `(${waiting}) ` : ""}${words.title} · hetsched`;
}

function drawFeed(decisions) {
  const rows = Object.values(decisions ?? {})
    .sort((a, b) => b.id - a.id)
    .slice(0, FEED_LENGTH)
    .map((decision) =>
      element(
        "li",
        {},
        stateChip(decision.verdict, words[decision.verdict]),
        element("a", { href: `/decisions/${decision.id}/` }, decision.summary),
        element("time", { datetime: decision.at }),
      ),
    );
  const feed = document.getElementById("feed");
  feed.replaceChildren(...rows);
  document.getElementById("feed-empty").hidden = rows.length > 0;
  tellTimes(feed);
}

drawGrid(initial.cluster.nodes ?? {});
drawFigures(initial.cluster);
drawFeed(initial.decisions.decisions);

const live = new Live();
showStatus(live, document.getElementById("live"));
live.subscribe(screen.dataset.topic, (document_, patch) => {
  if (patch === null) drawGrid(document_.nodes ?? {});
  else updateGrid(document_, patch);
  drawFigures(document_);
});
live.subscribe("decisions", (document_) => drawFeed(document_.decisions));

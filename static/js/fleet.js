// Fleet page: verdicts, headroom, nodes and decisions, updated from live documents.
//
// While the pointer is on the panel of the nodes or the focus is on a tile, tiles do not move: a button shows the number of
// added, removed and moved nodes and applies them. Changed values are shown immediately.
import { ago, counted, element, keeping, percent, setRatio, stateChip, updateTimes, words as readWords } from "./draw.js";
import { MOST_LARGE_TILES, NodeGrid } from "./grid.js";
import { HeatMap } from "./heat.js";
import { showHeadroom } from "./headroom.js";
import { liveOfPage, showStatus } from "./live.js";

const FEED_LENGTH = 10;
const BALANCE_SECONDS = 15;
const screen = document.getElementById("fleet");
const words = readWords();
const initial = readWords("initial");
const cluster = screen.dataset.cluster;
const finder = document.getElementById("find");
const sizes = document.getElementById("sizes");
const measures = document.getElementById("measures");
const holder = document.getElementById("grid");
const updates = document.getElementById("updates");
const readout = document.getElementById("readout");
const legends = { tiles: document.getElementById("legend-tiles"), heat: document.getElementById("legend-heat") };

// -- nodes ------------------------------------------------------------------------------------------------------------

// The page contains the nodes as columns (`packed`); live documents contain them as a map by name.
function unpacked({ groups, isas, ...columns }) {
  const nodes = {};
  const ratio = (value) => (value < 0 ? undefined : value / 10_000);
  for (const [at, name] of columns.name.entries()) {
    const [family, pool] = groups[columns.group[at]];
    const state = columns.state[at];
    const node = { name, family, pool, ready: state < 2, cordoned: state % 2 === 1 };
    if (columns.isa[at] >= 0) node.isa = isas[columns.isa[at]];
    for (const kind of ["cpu", "memory", "gpu"]) {
      const value = ratio(columns[kind][at]);
      if (value !== undefined) node[kind] = value;
    }
    node.cards = columns.cards[at];
    node.cardsInstalled = columns.installed[at] ?? node.cards;
    if (columns.maintenance[at]) node.maintenance = columns.maintenance[at];
    node.pods = columns.pods[at];
    nodes[name] = node;
  }
  return nodes;
}

const views = {
  tiles: new NodeGrid(holder, words, { readout, size: "tiles" }),
  heat: new HeatMap(holder, words, { readout, legend: legends.heat, measure: localStorage.getItem("heat-measure") }),
};
let nodes = {};
let chosen = { tiles: "tiles", heat: "heat", dense: "heat" }[localStorage.getItem("grid-size")] ?? null;
let view = null;
const sizeNow = () => chosen ?? (Object.keys(nodes).length > MOST_LARGE_TILES ? "heat" : "tiles");

function drawNodes() {
  const size = sizeNow();
  if (view !== views[size]) {
    view?.detach();
    view = views[size];
    view.attach();
  }
  for (const button of sizes.querySelectorAll("button")) button.setAttribute("aria-pressed", button.value === size);
  for (const [kind, legend] of Object.entries(legends)) legend.hidden = kind !== size;
  measures.hidden = size !== "heat";
  view.draw(nodes);
  noteMaintenance(Object.keys(nodes));
  moved.clear();
  showUpdates();
  find();
  askBalance();
}

// The names of the nodes with GPUs or zones in maintenance; most patches change none of them.
const maintained = new Set();
function noteMaintenance(changed) {
  let affected = false;
  for (const name of changed) {
    const before = maintained.delete(name);
    if (nodes[name]?.maintenance) maintained.add(name);
    affected ||= before || maintained.has(name);
  }
  if (affected) drawMaintenance();
}

// The number of GPUs and zones in maintenance; the chip links to the list of their nodes, or to a single node directly.
function drawMaintenance() {
  const chip = document.getElementById("maintained");
  const found = [...maintained].map((name) => nodes[name]);
  chip.hidden = found.length === 0;
  if (chip.hidden) return;
  const total = (count) => found.reduce((sum, { maintenance }) => sum + maintenance[count], 0);
  const all = Object.values(nodes).reduce((sum, { cardsInstalled }) => sum + cardsInstalled, 0);
  const [until] = found.map(({ maintenance }) => maintenance.until).sort().slice(-1);
  const parts = [];
  for (const kind of ["cards", "zones"]) {
    if (!total(kind)) continue;
    const text = words[`${kind}-in-maintenance`].replace("{count}", counted(total(kind))).replace("{all}", counted(all));
    parts.push(text.replace("{time}", ago(until)));
  }
  write(chip, parts.join(", "));
  chip.title = found.map((node) => `${node.name}: ${node.maintenance.reason}`).join("\n");
  if (found.length === 1) chip.href = keeping(`/nodes/${encodeURIComponent(found[0].name)}/`);
  else chip.href = chip.dataset.list;
}

const moved = new Set();
// Updates wait while the pointer is anywhere on the panel, so that it can reach the button that applies them.
const panel = holder.closest(".panel");
const isRead = () => panel.matches(":hover") || holder.contains(document.activeElement);

function changeNodes(names) {
  const moving = names.filter((name) => !view.holds(nodes, [name]));
  view.update(nodes, names);
  noteMaintenance(names);
  for (const name of moving) moved.add(name);
  if (moved.size && !isRead()) drawNodes();
  else showUpdates();
}

function showUpdates() {
  updates.hidden = moved.size === 0;
  updates.textContent = words.updates.replace("{n}", counted(moved.size));
}

updates.addEventListener("click", drawNodes);
const drawUnlessRead = () => setTimeout(() => moved.size && !isRead() && drawNodes());
panel.addEventListener("pointerleave", drawUnlessRead);
holder.addEventListener("focusout", drawUnlessRead);

function find() {
  const left = view.filter(finder.value);
  const any = Object.keys(nodes).length > 0;
  document.getElementById("grid-empty").hidden = any;
  document.getElementById("grid-hidden").hidden = !any || left > 0;
  const address = new URL(location.href);
  if (finder.value) address.searchParams.set("q", finder.value);
  else address.searchParams.delete("q");
  if (address.href !== location.href) history.replaceState(null, "", address);
}

let balanceTimer = null;
async function askBalance() {
  clearTimeout(balanceTimer);
  if (view !== views.heat || view.measure !== "balance") return;
  balanceTimer = setTimeout(askBalance, BALANCE_SECONDS * 1000);
  if (document.hidden) return;
  const answer = await fetch(`/api/v1/metrics/balance/?${new URLSearchParams({ cluster })}`);
  if (answer.ok) views.heat.setBalance((await answer.json()).nodes);
}

finder.addEventListener("input", find);
document.getElementById("find-clear").addEventListener("click", () => {
  finder.value = "";
  find();
});
sizes.addEventListener("click", (event) => {
  if (!event.target.value) return;
  chosen = event.target.value;
  localStorage.setItem("grid-size", chosen);
  drawNodes();
});
measures.querySelector("select").value = views.heat.measure;
measures.addEventListener("change", (event) => {
  localStorage.setItem("heat-measure", event.target.value);
  views.heat.setMeasure(event.target.value);
  askBalance();
});

// -- metrics ----------------------------------------------------------------------------------------------------------

function drawFigures(head) {
  const total = (states) => states.split(" ").reduce((sum, state) => sum + (head.counts[state] ?? 0), 0);
  for (const figure of screen.querySelectorAll("[data-count]")) {
    const count = total(figure.dataset.count);
    write(figure, counted(count));
    figure.closest(".verdict").classList.toggle("none", count === 0);
  }
  for (const figure of screen.querySelectorAll("[data-head]")) {
    const known = head[figure.dataset.head];
    write(figure, known === undefined || known === null ? "–" : counted(known));
  }
  for (const measure of screen.querySelectorAll("[data-measure]")) {
    const ratio = head[measure.dataset.measure];
    setRatio(measure.querySelector("i"), ratio);
    write(measure.querySelector("b"), percent(ratio));
  }
  drawPolicy(head.policy);
  const waiting = total("pending not-now");
  document.title = `${waiting ? `(${waiting}) ` : ""}${words.title} · hetsched`;
}

function write(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

function countIsas() {
  const known = Object.values(nodes).filter((node) => node.isa).length;
  write(document.getElementById("isa-known"), counted(known));
}

let policies = null;
function drawPolicy(name) {
  write(document.getElementById("policy-name"), name);
  if (policies) write(document.getElementById("policy-version"), `v${policies[name]?.activeVersion ?? "?"}`);
}

// -- decisions --------------------------------------------------------------------------------------------------------

const feed = document.getElementById("feed");
let latest = [];
function drawFeed(decisions) {
  // The topic has the latest decisions of all clusters: keep those of this cluster when other clusters displace them.
  const own = Object.values(decisions).filter((decision) => decision.cluster === cluster);
  const known = new Map([...latest, ...own].map((decision) => [decision.id, decision]));
  latest = [...known.values()].sort((a, b) => b.id - a.id).slice(0, FEED_LENGTH);
  const shown = new Map([...feed.children].map((row) => [row.dataset.id, row]));
  const first = shown.size === 0;
  feed.replaceChildren(
    ...latest.map((decision) => {
      const id = String(decision.id);
      return shown.get(id) ?? feedRow(decision, id, !first);
    }),
  );
  document.getElementById("feed-empty").hidden = latest.length > 0;
  updateTimes(feed);
}

// The summary without the leading pod name, which the row shows separately.
const sentence = ({ pod, summary }) => (summary.startsWith(`${pod} `) ? summary.slice(pod.length + 1) : summary);

const feedRow = (decision, id, fresh) =>
  element(
    "li",
    { class: fresh ? "fresh" : null, "data-id": id },
    decision.verdict === "placed" ? null : stateChip(decision.verdict, words[decision.verdict]),
    element(
      "a",
      { href: keeping(`/decisions/${id}/`), title: decision.summary },
      element("b", {}, decision.pod), " ", sentence(decision),
    ),
    element("time", { datetime: decision.createdAt }),
  );

// -- live -------------------------------------------------------------------------------------------------------------

// Draws all patches that arrive between two frames in one step.
let pending = null;
function drawSoon(head, patch) {
  if (pending === null) requestAnimationFrame(drawPending);
  pending = { head, names: pending?.names ?? new Set(), whole: pending?.whole || patch === null };
  for (const name of Object.keys(patch?.nodes ?? {})) pending.names.add(name);
  if (!patch || patch.revision) changedAt = Date.now();
}

function drawPending() {
  const began = performance.now();
  const { head, names, whole } = pending;
  pending = null;
  // A snapshot, such as after a gap, is applied as a patch of all nodes, so that tiles under the pointer do not move.
  if (whole) for (const name of [...Object.keys(nodes), ...Object.keys(head.nodes ?? {})]) names.add(name);
  nodes = head.nodes ?? {};
  if (names.size) changeNodes([...names]);
  if (whole || moved.size) countIsas();
  drawFigures(head);
  headroom.changed(head.revision);
  // Used to measure the update latency.
  const { revision } = live.topics.get(`cluster:${cluster}`);
  screen.dispatchEvent(new CustomEvent("drawn", { detail: { names, revision, took: performance.now() - began } }));
}

const age = document.getElementById("changed");
let changedAt = age.dateTime ? Date.parse(age.dateTime) : null;
function updateAge() {
  if (changedAt === null) return;
  age.dateTime = new Date(changedAt).toISOString();
  write(age, ago(age.dateTime));
}
setInterval(updateAge, 1000);
setInterval(() => maintained.size && drawMaintenance(), 60_000); // its text contains the time that remains

nodes = unpacked(initial.columns);
initial.cluster.nodes = nodes;
drawNodes();
countIsas();
const headroom = showHeadroom(document.getElementById("headroom"), words, cluster);
drawFigures(initial.cluster);
drawFeed(initial.decisions);
updateAge();
performance.mark("fleet-drawn");

const live = liveOfPage();
showStatus(live, document.getElementById("live"));
live.subscribe(`cluster:${cluster}`, drawSoon, { revision: initial.revisions.cluster, document: initial.cluster });
live.subscribe("decisions", drawFeed, { revision: initial.revisions.decisions, document: initial.decisions });
live.subscribe("policies", (document_) => {
  policies = document_;
  drawPolicy(document.getElementById("policy-name").textContent);
});

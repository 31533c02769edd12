// The first screen: verdicts, node grid and decisions, redrawn from live documents piece by piece.
import { element, keeping, percent, setRatio, stateChip, tellTimes, words as readWords } from "./draw.js";
import { NodeGrid } from "./grid.js";
import { liveOfPage, showStatus } from "./live.js";

const FEED_LENGTH = 10;
const screen = document.getElementById("fleet");
const words = readWords();
const initial = readWords("initial");
const cluster = screen.dataset.cluster;
const finder = document.getElementById("find");
const sizes = document.getElementById("sizes");
const grid = new NodeGrid(document.getElementById("grid"), words, {
  readout: document.getElementById("readout"),
  size: localStorage.getItem("grid-size") ?? "auto",
});

function showSizes() {
  for (const button of sizes.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", (button.value === "dense") === grid.dense);
  }
}

function find() {
  const left = grid.filter(finder.value);
  const any = Object.keys(grid.nodes).length > 0;
  document.getElementById("grid-empty").hidden = any;
  document.getElementById("grid-hidden").hidden = !any || left > 0;
  const address = new URL(location.href);
  if (finder.value) address.searchParams.set("q", finder.value);
  else address.searchParams.delete("q");
  history.replaceState(null, "", address);
}

function drawFigures(head) {
  const total = (states) => states.split(" ").reduce((sum, state) => sum + (head.counts[state] ?? 0), 0);
  for (const figure of screen.querySelectorAll("[data-count]")) {
    const count = total(figure.dataset.count);
    figure.textContent = count.toLocaleString();
    figure.closest(".verdict").classList.toggle("none", count === 0);
  }
  for (const figure of screen.querySelectorAll("[data-head]")) {
    figure.textContent = head[figure.dataset.head]?.toLocaleString() ?? "–";
  }
  for (const measure of screen.querySelectorAll("[data-measure]")) {
    const ratio = head[measure.dataset.measure];
    setRatio(measure.querySelector("i"), ratio);
    measure.querySelector("b").textContent = percent(ratio);
  }
  drawPolicy(head.policy);
  const known = Object.values(head.nodes ?? {}).filter((node) => node.isa).length;
  document.getElementById("isa-known").textContent = known.toLocaleString();
  const waiting = total("pending not-now");
  document.title = `${waiting ? `(${waiting}) ` : ""}${words.title} · hetsched`;
}

let policies = null;
function drawPolicy(name) {
  document.getElementById("policy-name").textContent = name;
  if (policies) document.getElementById("policy-version").textContent = `v${policies[name]?.activeVersion ?? "?"}`;
}

const feed = document.getElementById("feed");
let latest = [];
function drawFeed(decisions) {
  // The topic holds the latest of all clusters: what a busy one displaces there stays here.
  const mine = Object.values(decisions).filter((decision) => decision.cluster === cluster);
  const known = new Map([...latest, ...mine].map((decision) => [decision.id, decision]));
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
  tellTimes(feed);
}

// The pod's name stands above the sentence already.
const sentence = ({ pod, summary }) => (summary.startsWith(`${pod} `) ? summary.slice(pod.length + 1) : summary);

const feedRow = (decision, id, fresh) =>
  element(
    "li",
    { class: fresh ? "fresh" : null, "data-id": id },
    stateChip(decision.verdict, words[decision.verdict]),
    element("b", { title: decision.pod }, decision.pod),
    element("time", { datetime: decision.createdAt }),
    element("a", { href: keeping(`/decisions/${id}/`), title: decision.summary }, sentence(decision)),
  );

// Several deltas between two frames are drawn once.
let pending = null;
function drawSoon(head, patch) {
  if (pending === null) requestAnimationFrame(drawPending);
  pending = { head, names: pending?.names ?? new Set(), whole: pending?.whole || patch === null };
  for (const name of Object.keys(patch?.nodes ?? {})) pending.names.add(name);
}

function drawPending() {
  const { head, names, whole } = pending;
  pending = null;
  const nodes = head.nodes ?? {};
  if (whole) grid.draw(nodes);
  else if (names.size) grid.update(nodes, [...names]);
  if (whole) find();
  drawFigures(head);
}

finder.addEventListener("input", find);
document.getElementById("find-clear").addEventListener("click", () => {
  finder.value = "";
  find();
});
sizes.addEventListener("click", (event) => {
  const size = event.target.value;
  if (!size) return;
  localStorage.setItem("grid-size", size);
  grid.setSize(size);
  showSizes();
});

grid.draw(initial.cluster.nodes ?? {});
find();
showSizes();
drawFigures(initial.cluster);
drawFeed(initial.decisions);

const live = liveOfPage();
showStatus(live, document.getElementById("live"));
live.subscribe(`cluster:${cluster}`, drawSoon);
live.subscribe("decisions", drawFeed);
live.subscribe("policies", (document_) => {
  policies = document_;
  drawPolicy(document.getElementById("policy-name").textContent);
});

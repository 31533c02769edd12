// The why page: changes that would place a pending pod, the rejecting plugin of each node, and the raw documents.
import { clock, element, fill, keeping, words as readWords } from "./draw.js";
import { whatIfAddress, yamlText } from "./manifest.js";
import { NodeMatrix } from "./matrix.js";
import { drawFurther } from "./result.js";

const words = readWords();
const page = document.getElementById("why");
const { pod, cluster } = page.dataset;
let found = null; // the latest response of pods/{id}/why/
let matrix = null; // the table of all nodes, null until requested
let requestNumber = 0;
let verdict = document.getElementById("verdict");

const nodeLink = (name) => element("a", { class: "nowrap", href: keeping(`/nodes/${encodeURIComponent(name)}/`) }, name);

// -- outlook ----------------------------------------------------------------------------------------------------------

async function load() {
  const number = ++requestNumber;
  const next = document.getElementById("next");
  const answer = await fetch(`/api/v1/pods/${pod}/why/${next ? "?outlook=true" : ""}`).catch(() => null);
  if (number !== requestNumber) return;
  const document_ = answer ? await answer.json().catch(() => null) : null;
  if (answer?.ok && document_) {
    found = document_;
    matrix = null;
    drawRaw();
  }
  if (!next) return;
  next.setAttribute("aria-busy", "false");
  const [head] = next.children;
  if (!answer?.ok || !document_) {
    const said = document_ ? `${document_.detail} (${document_.code}, ${document_.requestId ?? "–"})` : words.unreachable;
    next.replaceChildren(head, element("p", { class: "note bad" }, said));
    return;
  }
  next.replaceChildren(head, ...outlook(found));
}

function outlook({ outlook: now, pod: name, manifest }) {
  if (!now) return [element("p", { class: "muted" }, words["waits-no-more"])];
  const again = ask(manifest, words["ask-again"]);
  const time = clock(now.evaluatedAt);
  const banner = element("p", { class: "small muted" }, fill(words.banner, { time }), " ", fill(words["by-policy"], { name: now.policy }));
  if (now.verdict === "placed") return [element("p", {}, now.summary), banner, again];
  const steps = now.nextSteps.map(({ fit, manifest: changed }) => {
    const count = fit.count || fit.nodes.length;
    const nodes = fill(words[count === 1 ? "would-do-one" : "would-do"], { count, node: fit.nodes[0] ?? "–" });
    const address = whatIfAddress(changed, cluster);
    const tried = address ? ` · ${words["try-it"]} →` : "";
    const inside = [element("b", {}, fit.change), element("small", {}, nodes + tried)];
    return element("li", {}, address ? element("a", { class: "button", href: address }, ...inside) : element("div", { class: "button" }, ...inside));
  });
  return [
    now.verdict === found.verdict ? null : element("p", {}, now.summary),
    steps.length ? element("ul", { class: "next-steps" }, ...steps) : element("p", { class: "muted" }, fill(words["no-step"], { pod: name })),
    blockers(now.blockers),
    element("div", { class: "row" }, again),
    banner,
  ].filter(Boolean);
}

function ask(manifest, label) {
  const address = whatIfAddress(manifest, cluster);
  return address ? element("a", { class: "button primary", href: address }, label) : "";
}

function blockers(nodes) {
  if (!nodes.length) return null;
  const rows = nodes.map((pods) =>
    element(
      "tr", {},
      element("th", { scope: "row" }, nodeLink(pods[0].node)),
      element("td", { class: "wrap" }, pods.map((one) => `${one.pod} (${fill(words["with-priority"], { priority: one.priority })})`).join(", ")),
    ),
  );
  return element(
    "details", { open: true },
    element("summary", {}, words.blockers),
    element(
      "div", { class: "table-wrap" },
      element(
        "table", { class: "fit" },
        element("thead", {}, element("tr", {}, element("th", {}, words.node), element("th", {}, words["would-have-to-go"]))),
        element("tbody", {}, ...rows),
      ),
    ),
  );
}

// -- nodes ------------------------------------------------------------------------------------------------------------

// The node table of the decision. If its state was deleted, the current table of a pending pod is shown instead.
async function nodesOf() {
  const said = document.getElementById("matrix-said");
  said.textContent = words["working-out"];
  const decided = await fetch(`/api/v1/decisions/${verdict.dataset.decision}/?explain=true`);
  const document_ = await decided.json();
  if (decided.ok) {
    said.textContent = words["as-decided"];
    return document_.nodes;
  }
  if (!found?.outlook) {
    said.textContent = `${document_.detail} (${document_.code})`;
    return null;
  }
  const answer = await fetch("/api/v1/what-if/", {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      "X-CSRFToken": document.querySelector("[name=csrfmiddlewaretoken]").value,
    },
    body: JSON.stringify({ manifest: found.manifest, cluster, explain: true, noPreempt: true }),
  });
  const now = await answer.json();
  said.textContent = answer.ok ? words["as-now"] : `${now.detail} (${now.code})`;
  return answer.ok ? now.nodes : null;
}

async function showNodes(plugin) {
  try {
    matrix ??= await nodesOf();
  } catch {
    document.getElementById("matrix-said").textContent = words.unreachable;
  }
  if (!matrix) return;
  const place = element("div", { class: "stack", id: "matrix" });
  document.getElementById("matrix").replaceWith(place);
  new NodeMatrix(place, words, matrix, { only: plugin || null, name: `nodes-of-pod-${pod}` });
}

document.getElementById("nodes-part")?.addEventListener("click", (event) => {
  const step = event.target.closest("[data-step][aria-pressed]");
  const all = event.target.closest("[data-all-nodes]");
  if (!step && !all) return;
  for (const one of page.querySelectorAll(".steps button")) one.setAttribute("aria-pressed", String(one === step));
  showNodes(step ? step.dataset.step : null);
});

// -- documents --------------------------------------------------------------------------------------------------------

function drawRaw() {
  for (const part of page.querySelectorAll("[data-raw]")) {
    part.querySelector("pre").textContent = part.dataset.raw === "yaml" ? yamlText(found.manifest) : JSON.stringify(found, null, 2);
  }
}

// -- events -----------------------------------------------------------------------------------------------------------

const further = page.querySelector("[data-further]");
if (further) {
  fetch(further.dataset.further)
    .then((answer) => (answer.ok ? answer.json() : {}))
    .then((decision) => drawFurther(further, words, decision))
    .catch(() => {});
}
// After a live update has replaced the verdict, request everything else again.
new MutationObserver(() => {
  const now = document.getElementById("verdict");
  if (now === verdict) return;
  const [before, after] = [verdict, now].map((one) => one.dataset.decision);
  verdict = now;
  // The first decision adds parts to the page, so reload it. After a further decision, remove the outdated node table.
  if (!before && after) return location.reload();
  if (before !== after) {
    document.getElementById("matrix").replaceChildren();
    document.getElementById("matrix-said").textContent = "";
  }
  load();
}).observe(page, { childList: true });
load();

// The what-if page: the question as fields or YAML, stored in the URL and sent 300 ms after the last change.
import { readNeeds } from "./binary-need.js";
import { offerCommonWorkloads } from "./common-workloads.js";
import { drawComparison } from "./compare.js";
import { copyBy } from "./copying.js";
import { element, stateChip, words as readWords } from "./draw.js";
import { NodeGrid } from "./grid.js";
import { holdButton } from "./hold-button.js";
import { IsaPicker } from "./isa-picker.js";
import { changedText, commandOf, curlOf } from "./manifest.js";
import { NodeMatrix } from "./matrix.js";
import { NodeChanges } from "./node-changes.js";
import { Question, WISHES } from "./question.js";
import { drawAnswer, drawProblem, marksOf } from "./result.js";

const PAUSE_MILLISECONDS = 300;
const LONGEST_ADDRESS = 6000;
const LARGEST_MANIFEST = 32 << 20;
const words = readWords();
const nodes = readWords("nodes");
const scoring = readWords("scoring"); // scoring plugins of each policy with their weights
const form = document.getElementById("question");
const yaml = document.getElementById("yaml");
const nodesYaml = document.getElementById("nodes-yaml");
const answer = document.getElementById("answer");
const result = document.getElementById("result");
const comparison = document.getElementById("comparison");
const jump = document.getElementById("jump");
const copied = document.getElementById("copied");
const copyText = document.getElementById("copy-text");
const binarySaid = document.getElementById("binary-said");
const everyNode = document.getElementById("every-node");
const cluster = document.getElementById("what-if").dataset.cluster;
const grid = new NodeGrid(document.getElementById("grid"), words, {
  readout: document.getElementById("readout"),
  size: "dense",
});
const nodeChanges = new NodeChanges(words, nodes, () => ask());
let mode = "form";
let pinned = null; // URL query and fragment of the pinned question, or null
let timer = null;
let controller = null;
let matrixNodes = [];

const field = (name) => form.elements[name];

function question() {
  const wishes = Object.fromEntries(WISHES.map((name) => [name, field(name).value.trim()]).filter(([, value]) => value));
  return new Question({
    wishes, mode, yaml: yaml.value, nodes: nodesYaml.value, policy: field("policy").value,
    policy2: field("policy2").value, drain: [...nodeChanges.drain], copies: { ...nodeChanges.copies }, nopreempt: field("nopreempt").checked,
  });
}

function put(one) {
  for (const name of WISHES) field(name).value = one.wishes[name] ?? "";
  yaml.value = one.yaml;
  nodesYaml.value = one.nodes;
  field("policy").value = one.policy;
  field("policy2").value = one.policy2;
  field("nopreempt").checked = one.nopreempt;
  showMode(one.mode);
  nodeChanges.put(one.drain, one.copies);
  for (const part of form.querySelectorAll("#more, #fleet-part")) {
    const filled = [...part.querySelectorAll("input[name], select[name], textarea")].some((input) => input.value);
    if (filled || (part.id === "fleet-part" && !nodeChanges.isEmpty)) part.open = true;
  }
}

// -- URL --------------------------------------------------------------------------------------------------------------

function writeAddress(one) {
  const address = new URL(location.href);
  const { query, hash, complete } = one.write(LONGEST_ADDRESS);
  const where = address.searchParams.get("cluster");
  if (where) query.set("cluster", where);
  if (pinned) query.set("beside", pinned);
  address.search = query;
  address.hash = hash;
  copied.textContent = complete ? "" : words.long;
  history.replaceState(null, "", address);
}

function readAddress() {
  put(Question.read(location.search, location.hash));
  pinned = new URLSearchParams(location.search).get("beside");
  document.getElementById("unpin").hidden = !pinned;
}

function showMode(chosen) {
  mode = chosen;
  for (const button of document.querySelectorAll("#mode button")) {
    button.setAttribute("aria-pressed", button.value === mode);
  }
  for (const part of form.querySelectorAll("[data-mode]")) part.hidden = part.dataset.mode !== mode;
}

// -- requests ---------------------------------------------------------------------------------------------------------

function changed() {
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE_MILLISECONDS);
}

async function ask() {
  clearTimeout(timer);
  const mine = question();
  writeAddress(mine);
  controller?.abort();
  document.getElementById("examples").hidden = !mine.isEmpty;
  result.hidden = mine.isEmpty;
  if (mine.isEmpty) jump.hidden = true;
  if (mine.isEmpty) {
    for (const part of ["ghosts", "every-node", "comparison"]) document.getElementById(part).hidden = true;
    answer.setAttribute("aria-busy", "false");
    return;
  }
  const control = new AbortController();
  controller = control;
  answer.setAttribute("aria-busy", "true");
  const other = comparedWith(mine);
  try {
    // A table of all nodes for each of many identical pods would be too large, so request it only for the first pod.
    const [whole, first, second] = await Promise.all([
      post(mine.body(cluster, { explain: mine.hasPods && !mine.several }), control.signal),
      mine.several ? post(mine.body(cluster, { explain: true, first: true }), control.signal) : null,
      other ? post(other.body(cluster), control.signal) : null,
    ]);
    show(mine, whole, first);
    compare(mine, whole, other, second);
  } catch (error) {
    if (error.name === "AbortError") return;
    drawProblem(result, words, null);
  }
  if (controller === control) answer.setAttribute("aria-busy", "false");
}

// The question to compare with: the pinned one, else the current one with the second policy.
function comparedWith(mine) {
  if (pinned) {
    const [search, hash = ""] = pinned.split("#");
    return Question.read(search, hash);
  }
  return mine.policy2 ? new Question({ ...mine, policy: mine.policy2 }) : null;
}

async function post(body, signal) {
  const response = await fetch("/api/v1/what-if/", {
    method: "POST",
    signal,
    headers: {
      "Content-Type": "application/json",
      "X-CSRFToken": field("csrfmiddlewaretoken").value,
    },
    body: JSON.stringify(body),
  });
  return { ok: response.ok, document: await response.json() };
}

// If the form is above the result, the verdict stays visible and links to it.
function showVerdict(whole) {
  const parts = whole.ok
    ? [stateChip(whole.document.verdict, words[whole.document.verdict]), words["to-answer"]]
    : [stateChip("misconfigured", whole.document.code), words["to-answer"]];
  jump.replaceChildren(...parts);
  jump.hidden = false;
}

function show(mine, whole, first) {
  const ghosts = document.getElementById("ghosts");
  showVerdict(whole);
  if (!whole.ok) {
    ghosts.hidden = everyNode.hidden = true;
    drawProblem(result, words, whole.document);
    return;
  }
  const answered = whole.document;
  matrixNodes = (first?.ok ? first.document.nodes : answered.nodes) ?? [];
  const margin = (first?.ok ? first.document : answered).tipping?.[0] ?? null;
  const known = new Set(Object.keys(nodes));
  const offer = holdButton(words, mine, answered, cluster);
  drawAnswer(result, words, answered, matrixNodes, { margin, attempt, known, offer, scoring });
  const marks = marksOf(words, answered, matrixNodes);
  for (const name of nodeChanges.drain) marks.set(name, { kind: "out", words: words.drained });
  ghosts.hidden = marks.size === 0;
  grid.mark(marks);
  everyNode.hidden = matrixNodes.length === 0;
  drawEveryNode();
}

function drawEveryNode() {
  if (everyNode.hidden || !document.getElementById("matrix-part").open) return;
  const place = element("div", { class: "stack", id: "matrix" });
  document.getElementById("matrix").replaceWith(place);
  const [pod] = matrixNodes;
  new NodeMatrix(place, words, matrixNodes.filter((node) => node.pod === pod.pod), { name: "what-if" });
}

function compare(mine, whole, other, second) {
  comparison.hidden = !second;
  if (!second) return;
  const sides = [
    { question: mine, answer: whole },
    { question: other, answer: second },
  ];
  drawComparison(comparison, words, sides, pinned ? () => exchange(mine, other) : null);
}

// Swaps the pinned question and the question in the form.
function exchange(mine, other) {
  pin(mine);
  put(other);
  ask();
}

// Form fields by request field. Suggested changes of fields that the form does not have cannot be applied to it.
const INPUTS = {
  "resources.requests.cpu": "cpu",
  "resources.requests.memory": "memory",
  "resources.requests.hetsched.io/network-mbps": "network",
  "resources.requests.hetsched.io/disk-mbps": "disk",
  "resources.limits.nvidia.com/gpu": "cards",
  "oks/gpu-number": "cards",
  "hetsched.io/gpu-milli": "milli",
  "oks/gpu-memory": "gpumem",
  "hetsched.io/gpu-model": "model",
  "hetsched.io/isa": "isa",
  "hetsched.io/emulated-isa": "emulated",
  "topology.crane.io/topology-awareness": "aware",
  "topology.crane.io/cpu-policy": "cpupolicy",
};

function attempt(fit) {
  const changes = [fit, fit.also].filter(Boolean);
  if (mode === "yaml") {
    const text = changes.reduce((before, change) => before && changedText(before, change), yaml.value);
    return text && (() => {
      yaml.value = text;
      ask();
    });
  }
  const apply = changes.map((change) => inForm(change));
  if (apply.includes(null)) return null;
  return () => {
    for (const change of apply) change();
    field("isa").dispatchEvent(new Event("input"));
    ask();
  };
}

function inForm({ field: name, from, to }) {
  if (name in INPUTS) return () => (field(INPUTS[name]).value = to);
  if (name === "spec.tolerations") return () => (field("tolerations").value = [field("tolerations").value, to].filter(Boolean).join(", "));
  if (name === "spec.nodeSelector") {
    const dropped = new Set(from.split(", "));
    const left = field("selector").value.split(",").map((one) => one.trim()).filter((one) => !dropped.has(one));
    return () => (field("selector").value = left.join(", "));
  }
  return null;
}

// -- comparison -------------------------------------------------------------------------------------------------------

function pin(one) {
  const { query, hash } = one.write(LONGEST_ADDRESS);
  query.delete("policy2");
  pinned = `?${query}${hash ? `#${hash}` : ""}`;
  document.getElementById("unpin").hidden = false;
}

document.getElementById("pin").addEventListener("click", () => {
  const mine = question();
  if (mine.isEmpty) return;
  pin(mine);
  ask();
});
document.getElementById("unpin").addEventListener("click", (event) => {
  pinned = null;
  event.target.hidden = true;
  document.getElementById("pin").focus();
  ask();
});

// -- files, common workloads, copying ---------------------------------------------------------------------------------

readNeeds({
  input: document.getElementById("binary"), said: binarySaid, isa: field("isa"), token: field("csrfmiddlewaretoken"), words,
});
offerCommonWorkloads(document.getElementById("shapes"), {
  cluster, words,
  choose: (part) => {
    put(new Question({ ...question(), ...part }));
    field("isa").dispatchEvent(new Event("input"));
    ask();
  },
});
copyBy(form.querySelectorAll("[data-copies]"), {
  shown: copyText, status: copied, words,
  texts: {
    curl: () => curlOf(question().body(cluster, { explain: true })),
    cli: () => commandOf(question().manifestText, question().body(cluster)),
    yaml: () => question().manifestText,
    link: () => location.href,
  },
});

document.getElementById("manifest").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (!file) return;
  if (file.size > LARGEST_MANIFEST) {
    copied.textContent = words["too-large"];
    return;
  }
  yaml.value = await file.text();
  ask();
});

// -- events -----------------------------------------------------------------------------------------------------------

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", (event) => {
  if (event.target.name || event.target === yaml || event.target === nodesYaml) changed();
});
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.matches("input")) event.preventDefault();
});
form.addEventListener("reset", () => {
  pinned = null;
  yaml.value = nodesYaml.value = binarySaid.textContent = "";
  copyText.hidden = document.getElementById("unpin").hidden = true;
  nodeChanges.put();
  setTimeout(() => {
    field("isa").dispatchEvent(new Event("input"));
    ask();
  });
});
document.getElementById("mode").addEventListener("click", (event) => {
  if (!event.target.value) return;
  // Switching to YAML converts the form to a manifest.
  const mine = question();
  if (event.target.value === "yaml" && !yaml.value && mine.hasPods) yaml.value = mine.manifestText;
  showMode(event.target.value);
  ask();
});
const examples = readWords("worked-examples");
for (const button of document.querySelectorAll("[data-example]")) {
  button.addEventListener("click", () => {
    put(new Question({ wishes: examples[button.dataset.example].fields }));
    field("isa").dispatchEvent(new Event("input"));
    ask();
    field("cpu").focus();
  });
}
document.getElementById("matrix-part").addEventListener("toggle", drawEveryNode);
// The fragment contains the question, so a link to the answer must not change it.
jump.addEventListener("click", (event) => {
  event.preventDefault();
  answer.scrollIntoView();
  answer.focus({ preventScroll: true });
});

// The question is kept for another cluster, except changes of nodes by name.
document.querySelector("select[name=cluster]")?.form.addEventListener("submit", (event) => {
  event.preventDefault();
  writeAddress(question());
  const address = new URL(location.href);
  address.searchParams.set("cluster", event.target.elements.cluster.value);
  for (const name of ["drain", "copy"]) address.searchParams.delete(name);
  location.assign(address);
});

grid.draw(nodes);
readAddress();
new IsaPicker(document.getElementById("isa-part"), field("isa"), document.getElementById("isa-said"), words, cluster);
if (!question().isEmpty) ask();

// The what-if page: the question as fields or YAML, kept in the address, asked 300 ms after the last change.
import { words as readWords } from "./draw.js";
import { NodeGrid } from "./grid.js";
import { commandOf, curlOf, manifestOf, yamlText } from "./manifest.js";
import { drawAnswer, drawProblem, marksOf } from "./result.js";

const PAUSE_MILLISECONDS = 300;
const LONGEST_ADDRESS = 6000;
const FIELDS = ["cpu", "memory", "replicas", "isa", "emulated", "cards", "milli", "gpumem", "model", "policy"];
const words = readWords();
const form = document.getElementById("question");
const yaml = document.getElementById("yaml");
const answer = document.getElementById("answer");
const result = document.getElementById("result");
const cluster = document.getElementById("what-if").dataset.cluster;
const grid = new NodeGrid(document.getElementById("grid"), words, {
  readout: document.getElementById("readout"),
  size: "dense",
});
let mode = "form";
let timer = null;
let asked = null;

const fields = () => Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value.trim()]));

// A policy alone asks nothing.
function isEmpty() {
  const { policy, ...wishes } = fields();
  return mode === "yaml" ? !yaml.value.trim() : !Object.values(wishes).some(Boolean);
}

const manifest = () => (mode === "yaml" ? yaml.value : manifestOf(fields()));
const yamlNow = () => (mode === "yaml" ? yaml.value : yamlText(manifestOf(fields())));

function body(manifest_, explain) {
  const policy = form.elements.policy.value;
  return { manifest: manifest_, cluster, ...(policy ? { policy } : {}), ...(explain ? { explain: true } : {}) };
}

// -- the address ------------------------------------------------------------------------------------------------------

function writeAddress() {
  const address = new URL(location.href);
  const values = fields();
  for (const name of FIELDS) {
    if (values[name] && (mode === "form" || name === "policy")) address.searchParams.set(name, values[name]);
    else address.searchParams.delete(name);
  }
  // Behind the # it never reaches a server's log.
  const pasted = mode === "yaml" && yaml.value ? `yaml=${encodeURIComponent(yaml.value)}` : "";
  const tooLong = pasted.length > LONGEST_ADDRESS;
  address.hash = tooLong ? "" : pasted;
  say(tooLong ? words.long : "");
  history.replaceState(null, "", address);
}

function readAddress() {
  const values = new URLSearchParams(location.search);
  for (const name of FIELDS) if (values.has(name)) form.elements[name].value = values.get(name);
  const pasted = new URLSearchParams(location.hash.slice(1)).get("yaml");
  if (pasted) yaml.value = pasted;
  showMode(pasted ? "yaml" : "form");
}

function showMode(chosen) {
  mode = chosen;
  for (const button of document.querySelectorAll("#mode button")) {
    button.setAttribute("aria-pressed", button.value === mode);
  }
  for (const part of form.querySelectorAll("[data-mode]")) part.hidden = part.dataset.mode !== mode;
}

// -- asking -----------------------------------------------------------------------------------------------------------

function changed() {
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE_MILLISECONDS);
}

async function ask() {
  writeAddress();
  asked?.abort();
  const empty = isEmpty();
  document.getElementById("examples").hidden = !empty;
  result.hidden = empty;
  if (empty) {
    document.getElementById("ghosts").hidden = true;
    answer.setAttribute("aria-busy", "false");
    return;
  }
  const mine = new AbortController();
  asked = mine;
  answer.setAttribute("aria-busy", "true");
  try {
    // Every node for every one of many alike pods would be a large answer; the first pod's table says what matters.
    const several = mode === "form" && Number(form.elements.replicas.value) > 1;
    const one = several ? manifestOf({ ...fields(), replicas: "" }) : null;
    const [whole, first] = await Promise.all([
      post(body(manifest(), !several), mine.signal),
      one ? post(body(one, true), mine.signal) : null,
    ]);
    show(whole, first);
  } catch (error) {
    if (error.name === "AbortError") return;
    drawProblem(result, words, null);
  }
  if (asked === mine) answer.setAttribute("aria-busy", "false");
}

async function post(question, signal) {
  const response = await fetch("/api/v1/what-if/", {
    method: "POST",
    signal,
    headers: {
      "Content-Type": "application/json",
      "X-CSRFToken": form.elements.csrfmiddlewaretoken.value,
    },
    body: JSON.stringify(question),
  });
  return { ok: response.ok, document: await response.json() };
}

function show(whole, first) {
  const ghosts = document.getElementById("ghosts");
  if (!whole.ok) {
    ghosts.hidden = true;
    drawProblem(result, words, whole.document);
    return;
  }
  const answered = whole.document;
  const nodes = (first?.ok ? first.document.nodes : answered.nodes) ?? [];
  const margin = (first?.ok ? first.document : answered).tipping?.[0] ?? null;
  drawAnswer(result, words, answered, nodes, margin, attempt);
  const marks = marksOf(words, answered, nodes);
  ghosts.hidden = marks.size === 0;
  grid.mark(marks);
}

// The form's field for a field of the request; a change of others is only told.
const INPUTS = {
  "resources.requests.cpu": "cpu",
  "resources.requests.memory": "memory",
  "resources.limits.nvidia.com/gpu": "cards",
  "hetsched.io/gpu-milli": "milli",
  "oks/gpu-memory": "gpumem",
  "hetsched.io/gpu-model": "model",
  "hetsched.io/isa": "isa",
  "hetsched.io/emulated-isa": "emulated",
};

function attempt(fit) {
  const changes = [fit, fit.also].filter(Boolean);
  if (mode !== "form" || !changes.every(({ field }) => field in INPUTS)) return null;
  return () => {
    for (const { field, to } of changes) form.elements[INPUTS[field]].value = to;
    ask();
  };
}

// -- copying ----------------------------------------------------------------------------------------------------------

const COPIES = {
  curl: () => curlOf(body(manifest(), true)),
  cli: () => commandOf(yamlNow(), cluster, form.elements.policy.value),
  yaml: yamlNow,
  link: () => location.href,
};

async function copy(kind) {
  const shown = document.getElementById("copy-text");
  const text = COPIES[kind]();
  shown.hidden = true;
  try {
    await navigator.clipboard.writeText(text);
    say(words.copied);
  } catch {
    // Without a secure address there is no clipboard; the text can still be marked by hand.
    shown.textContent = text;
    shown.hidden = false;
    say(words["not-copied"]);
  }
}

function say(text) {
  document.getElementById("copied").textContent = text;
}

// -- wiring -----------------------------------------------------------------------------------------------------------

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", changed);
form.addEventListener("reset", () => {
  yaml.value = "";
  document.getElementById("copy-text").hidden = true;
  setTimeout(ask);
});
document.getElementById("mode").addEventListener("click", (event) => {
  if (!event.target.value) return;
  // Going over to YAML takes the form's question along.
  if (event.target.value === "yaml" && !yaml.value && !isEmpty()) yaml.value = yamlNow();
  showMode(event.target.value);
  ask();
});
for (const button of form.querySelectorAll("[data-copies]")) {
  button.addEventListener("click", () => copy(button.dataset.copies));
}
const examples = readWords("worked-examples");
for (const button of document.querySelectorAll("[data-example]")) {
  button.addEventListener("click", () => {
    for (const [name, value] of Object.entries(examples[button.dataset.example].fields)) {
      form.elements[name].value = value;
    }
    ask();
    form.elements.cpu.focus();
  });
}

grid.draw(readWords("nodes"));
readAddress();
if (!isEmpty()) ask();

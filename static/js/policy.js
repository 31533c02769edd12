// Policy editor: shows the draft as form and text. The server validates each change. The tab keeps the draft until it is saved.
import { act, token } from "./dialog.js";
import { element, fill, words as readWords } from "./draw.js";
import { reloadWithNote, showNote } from "./notes.js";
import { drawConflict } from "./policy-conflict.js";
import { countOf, drawDiff } from "./policy-diff.js";
import { Goldens } from "./policy-goldens.js";
import { PolicyForm } from "./policy-form.js";
import { Plans } from "./policy-plans.js";
import { Preview } from "./policy-preview.js";
import { Try } from "./policy-try.js";

const PAUSE_MILLISECONDS = 300;
const words = readWords();
const desk = readWords("desk");
const api = `/api/v1/policies/${encodeURIComponent(desk.name)}/`;
const storageKey = `policy-draft ${desk.name}`;
const byId = (id) => document.getElementById(id);
const yaml = byId("manifest");
let etag = byId("tags").dataset.etag;
let checked = null; // the server's last check of the current draft
let timer = null;
let running = null;
let leaving = false;
let latest = Number(byId("versions")?.dataset.latest ?? 0);

const form = new PolicyForm(byId("editor"), words, desk.deciding, () => changed());
let clean = JSON.stringify(form.read());
const attempt = byId("try") && new Try(byId("tried"), form, words);
let broken = []; // the golden placements that break under the draft
const agreed =
  byId("goldens") &&
  new Goldens(words, {
    name: desk.name,
    judged(found) {
      broken = found;
      drawState();
    },
  });
const dirty = () => desk.shown === 0 || JSON.stringify(form.read()) !== clean;

// -- checking ---------------------------------------------------------------------------------------------------------

function changed(text = null) {
  clearTimeout(timer);
  timer = setTimeout(() => check(text), PAUSE_MILLISECONDS);
  remember();
  attempt?.show();
  // The draft is not valid until the server has validated it.
  checked = null;
  drawState();
}

async function check(text = null) {
  timer = null;
  running?.abort();
  const controller = new AbortController();
  running = controller;
  const against = byId("against")?.value;
  const headers = { "Content-Type": text === null ? "application/json" : "application/yaml", "X-CSRFToken": token() };
  const body = text ?? JSON.stringify(form.read());
  try {
    const url = `${api}check/${against ? `?against=${against}` : ""}`;
    const answer = await fetch(url, { method: "POST", headers, body, signal: controller.signal });
    if (running !== controller) return;
    const result = await answer.json();
    if (answer.ok) understood(result, text !== null);
    else byId("draft-text").textContent = result.detail;
  } catch (error) {
    if (error.name !== "AbortError") byId("draft-text").textContent = words.unreachable;
  }
}

function understood(result, fromText) {
  checked = result;
  if (result.valid) agreed?.judge(result.spec);
  if (fromText && result.valid) {
    form.write(result.spec);
    remember();
    attempt?.show();
  } else if (!fromText && result.manifest && document.activeElement !== yaml) yaml.value = result.manifest;
  const row = form.fault(result.problem);
  const fault = byId("draft-fault");
  fault.hidden = !result.problem;
  if (row) fault.replaceChildren(element("a", { href: `#${row.id}` }, result.problem.message));
  else fault.textContent = result.problem ? [result.problem.message, result.problem.hint].filter(Boolean).join(" ") : "";
  yaml.setAttribute("aria-invalid", String(Boolean(result.problem)));
  byId("manifest-said").textContent = result.problem ? result.problem.message : words["yaml-alike"];
  const right = dirty() ? words.draft : `v${desk.shown}`;
  if (result.diff) byId("changes").replaceChildren(drawDiff(result.diff, words, `v${result.against}`, right));
  else byId("changes").replaceChildren(element("p", { class: "muted" }, result.valid ? words["nothing-to-compare"] : words["compare-later"]));
  drawState();
}

// -- state of the draft -----------------------------------------------------------------------------------------------

function drawState() {
  const chip = byId("draft-state");
  const isDirty = dirty();
  const bad = checked?.problem;
  const count = checked ? countOf(checked.diff) : null;
  const [tone, word] = bad
    ? ["bad", words["not-valid"]]
    : isDirty
      ? ["wait", words.unsaved]
      : desk.shown === desk.active
        ? ["", words.unchanged]
        : ["info", fill(words[desk.state === "draft" ? "saved-draft" : "earlier"], { version: desk.shown })];
  chip.className = `chip ${tone}`;
  chip.textContent = word;
  const differs =
    checked?.diff && count ? fill(words[count === 1 ? "differs-one" : "differs"], { count, version: checked.against }) : "";
  const more = desk.locked ? "" : isDirty ? words["kept-in-tab"] : desk.shown === desk.active ? words["begin-here"] : "";
  byId("draft-text").textContent = checked === null ? words.checking : [differs, more].filter(Boolean).join(" ");
  if (desk.locked) return;
  byId("discard").hidden = !isDirty || desk.shown === 0;
  byId("save").disabled = !isDirty || !checked?.valid;
  byId("activate").disabled = !checked?.valid || (!isDirty && desk.shown === desk.active) || broken.length > 0;
  const why = byId("activate-why");
  why.hidden = broken.length === 0;
  why.replaceChildren(
    ...(broken.length
      ? [element("a", { href: "#goldens" }, words["blocked-by-goldens"]), element("ul", { class: "plain" }, ...broken.map(goldenLine))]
      : []),
  );
  byId("activate").textContent = words[isDirty ? "save-and-activate" : "activate"];
  preview?.allow(Boolean(checked?.valid), isDirty);
}

function remember() {
  if (desk.locked) return;
  if (dirty()) sessionStorage.setItem(storageKey, JSON.stringify({ spec: form.read(), shown: desk.shown, at: Date.now() }));
  else sessionStorage.removeItem(storageKey);
}

function restore() {
  const stored = desk.locked ? null : JSON.parse(sessionStorage.getItem(storageKey) ?? "null");
  // A draft of another version stays stored until that version is opened.
  if (!stored || stored.shown !== desk.shown) return;
  form.write(stored.spec);
  if (dirty() && desk.shown) showNote(words.restored);
}

window.addEventListener("beforeunload", (event) => {
  if (!leaving && !desk.locked && desk.shown && dirty()) event.preventDefault();
});

// -- saving -----------------------------------------------------------------------------------------------------------

// Saves the draft as a version and selects this version; returns null if it was not saved.
async function save() {
  const sent = form.read();
  const headers = { "Content-Type": "application/json", "X-CSRFToken": token(), ...(etag ? { "If-Match": etag } : {}) };
  const url = desk.shown ? `${api}versions/` : "/api/v1/policies/";
  let answer;
  let result;
  try {
    answer = await fetch(url, { method: "POST", headers, body: JSON.stringify({ name: desk.name, ...sent }) });
    result = await answer.json();
  } catch {
    showNote(words.unreachable, "bad");
    return null;
  }
  if (answer.status === 412) await conflict();
  else if (!answer.ok) showNote([result.detail, result.hint].filter(Boolean).join(" "), "bad");
  if (!answer.ok) return null;
  await adopt(result, JSON.stringify(sent));
  return result;
}

// Selects the saved version without a reload.
async function adopt(saved, content) {
  latest = Math.max(latest, saved.version);
  sessionStorage.removeItem(storageKey);
  const address = new URL(location.href);
  address.searchParams.set("version", saved.version);
  address.searchParams.delete("from");
  history.replaceState(null, "", address);
  const present = await presentPolicy();
  // Take the new ETag only if nothing else has changed: after a concurrent write, the next write must report a conflict.
  const newest = Math.max(...Object.keys(present.document.versions).map(Number));
  if (newest === saved.version && present.document.activeVersion === desk.active) etag = present.etag;
  Object.assign(desk, { shown: saved.version, state: saved.state, spec: saved.spec });
  clean = content;
  remember();
  check();
}

async function presentPolicy() {
  const answer = await fetch(api, { headers: { Accept: "application/json" } });
  return { document: await answer.json(), etag: answer.headers.get("ETag") };
}

// Another user saved a version after the page was rendered: show it next to this draft.
async function conflict() {
  const present = await presentPolicy();
  latest = Math.max(...Object.keys(present.document.versions).map(Number));
  if (latest === desk.shown) {
    etag = present.etag;
    desk.active = present.document.activeVersion;
    showNote(fill(words["active-moved"], { version: desk.active }), "wait");
    check();
    return;
  }
  const theirs = await (await fetch(`${api}versions/${latest}/`)).json();
  drawConflict(byId("conflict"), words, {
    base: desk.spec,
    theirs: theirs.spec,
    version: theirs.version,
    author: theirs.author,
    reason: theirs.reason,
    mine: form.read(),
    choose(spec) {
      etag = present.etag;
      form.write(spec);
      changed();
      byId("save").focus();
    },
    takeTheirs() {
      leaving = true;
      sessionStorage.removeItem(storageKey);
      location.assign(`?version=${theirs.version}`);
    },
  });
}

byId("save")?.addEventListener("click", async () => {
  const saved = await save();
  if (saved) reloadWithNote(fill(words.saved, { version: saved.version }));
});
byId("discard")?.addEventListener("click", () => {
  sessionStorage.removeItem(storageKey);
  form.write(desk.spec);
  changed();
});

// The page updates live; a change by another user is reported and the draft stays unchanged.
function showNewerVersion() {
  const versions = byId("versions");
  if (checked?.valid) agreed?.judge(checked.spec);
  if (!versions || Number(versions.dataset.latest) <= latest) return;
  latest = Number(versions.dataset.latest);
  const look = element("button", { type: "button" }, words[dirty() ? "look-at-both" : "open-it"]);
  look.addEventListener("click", () => (dirty() ? conflict() : location.assign(`?version=${latest}`)));
  const text = fill(words.newer, { author: versions.dataset.author, version: latest });
  byId("conflict").replaceChildren(element("p", { class: "note wait row", role: "status" }, text, look));
  byId("conflict").hidden = false;
}

// -- activation -------------------------------------------------------------------------------------------------------

async function comparison(before, after) {
  const answer = await fetch(`${api}versions/${before}/diff/${after}/`).catch(() => null);
  return answer?.ok ? drawDiff((await answer.json()).diff, words, `v${before}`, `v${after}`) : null;
}

// Checks the golden placements for a version before its activation, and shows the result.
async function goldens(version) {
  const answer = await fetch(`${api}versions/${version}/goldens/`).catch(() => null);
  if (!answer?.ok) return null;
  const result = await answer.json();
  if (!result.results.length) return element("p", { class: "small muted" }, words["no-goldens"]);
  if (!result.broken) return element("p", {}, fill(words["goldens-hold"], { kept: result.kept, all: result.results.length }));
  return element(
    "div",
    { class: "note bad", "data-broken": result.broken },
    element("p", { class: "strong" }, fill(words["goldens-break"], { broken: result.broken, all: result.results.length })),
    element("ul", {}, ...result.results.filter((one) => one.state === "broken").map(goldenLine)),
  );
}

const goldenLine = (one) =>
  element("li", {}, element("strong", {}, one.golden), `: ${fill(words["expected-got"], { expected: one.expected, got: one.got })}`);

async function decide(address, version, wish) {
  const [differs, golden] = await Promise.all([desk.active ? comparison(desk.active, version) : null, goldens(version)]);
  const more = element("div", { class: "stack" }, ...(differs ? [differs] : []), ...(golden ? [golden] : []));
  // The server runs the same check and would reject the activation or rollback.
  const blocked = Boolean(golden?.dataset.broken);
  return act({ act: `${api}${address}/`, etag, more, blocked, ...wish });
}

// `step`: activate, rollback or rollforward; selects the texts of the dialog.
function stepWords(step, version) {
  const text = words[step === "activate" ? "activate-text" : "rollback-text"];
  return { title: fill(words[`${step}-title`], { version, name: desk.name }), text, confirm: fill(words[`${step}-confirm`], { version }) };
}

async function activate(version, step = "activate") {
  return (await decide("activate", version, { body: { version }, ...stepWords(step, version) })) !== null;
}

byId("activate")?.addEventListener("click", async () => {
  const saved = dirty() ? await save() : null;
  if (dirty()) return;
  const version = desk.shown;
  if (await activate(version)) reloadWithNote(fill(words.activated, { version }));
  else if (saved) reloadWithNote(fill(words.saved, { version }));
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-activate], [data-rollback], [data-differs]");
  if (!button) return;
  const { dataset } = button;
  if (dataset.differs) {
    const shown = byId("differs");
    const version = Number(dataset.differs);
    const [before, after] = [desk.active, version];
    shown.querySelector("h2").textContent = fill(words["differs-title"], { before, after });
    shown.querySelector("[data-slot]").replaceChildren((await comparison(before, after)) ?? "");
    shown.showModal();
  } else if (dataset.activate) {
    if (await activate(Number(dataset.activate), dataset.step)) {
      leaving = true;
      reloadWithNote(fill(words.activated, { version: dataset.activate }));
    }
  } else {
    const version = Number(dataset.rollback);
    if ((await decide("rollback", version, { body: {}, ...stepWords(dataset.step, version) })) !== null) {
      leaving = true;
      history.replaceState(null, "", location.pathname);
      reloadWithNote(fill(words.activated, { version }));
    }
  }
});

// -- YAML text, comparison, preview -----------------------------------------------------------------------------------

yaml.addEventListener("input", () => {
  clearTimeout(timer);
  timer = setTimeout(() => check(yaml.value), PAUSE_MILLISECONDS);
  byId("manifest-said").textContent = words.checking;
});
yaml.addEventListener("blur", () => {
  if (timer === null && checked?.valid) yaml.value = checked.manifest;
});
byId("copy-yaml").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(yaml.value);
    showNote(words.copied);
  } catch {
    yaml.select();
  }
});
byId("against")?.addEventListener("change", () => check());
byId("try")?.addEventListener("change", (event) => attempt.choose(event.target.value));

const preview = byId("preview") && new Preview(byId("preview"), words, {
  api,
  version: async () => {
    if (!dirty()) return desk.shown;
    const options = { title: words["replay-title"], text: words["replay-text"], confirm: words["save-and-replay"] };
    if ((await act({ ...options, reason: "none", send: () => ({}) })) === null) return null;
    const saved = await save();
    if (saved) showNote(fill(words.saved, { version: saved.version }));
    return saved?.version ?? null;
  },
  onDesk: desk.shown,
});

new MutationObserver(showNewerVersion).observe(byId("content"), { childList: true });
if (byId("plans")) new Plans(words, desk.name);
restore();
drawState();
check();

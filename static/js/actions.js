// What buttons of operators need beyond the dialog: how long something lasts, and several rows at once.
//
// A choice of time spans is a moment for the server (`data-seconds`), counted from when the dialog opens. Rows are picked
// by check boxes (`data-pick`: the id of a workload); the bar `#picked` shows while any is, and its buttons (`data-bulk`:
// the action) do one request after the other, each with the tag of what it was when the dialog opened.
import { act, token } from "./dialog.js";
import { fill } from "./draw.js";
import { reloadWithNote, showNote } from "./notes.js";
import { localized } from "./messages.js";

document.addEventListener(
  "click",
  (event) => {
    if (!event.target.closest("button[data-act]")) return;
    for (const template of document.querySelectorAll("template")) {
      for (const option of template.content.querySelectorAll("option[data-seconds]")) {
        option.value = new Date(Date.now() + Number(option.dataset.seconds) * 1000).toISOString();
      }
    }
  },
  true, // before the dialog takes the fields over
);

const bar = document.getElementById("picked");
const picked = new Set();
const MOST = 200;
const unreachable = () => document.querySelector("#act [data-words]").dataset.unreachable;

const boxes = () => document.querySelectorAll("input[data-pick]");

function showPicked() {
  const there = new Set([...boxes()].map((box) => box.dataset.pick));
  for (const id of picked) if (!there.has(id)) picked.delete(id);
  for (const box of boxes()) box.checked = picked.has(box.dataset.pick);
  const all = document.querySelector("input[data-pick-all]");
  if (all) {
    all.checked = there.size > 0 && picked.size === there.size;
    all.indeterminate = picked.size > 0 && picked.size < there.size;
  }
  bar.hidden = picked.size === 0;
  bar.querySelector("[data-count]").textContent = fill(bar.dataset.count, { count: picked.size });
}

async function read(id) {
  const answer = await fetch(`/api/v1/workloads/${id}/`, { headers: { Accept: "application/json" } }).catch(() => null);
  if (!answer) throw new Error(unreachable());
  const workload = await answer.json();
  if (!answer.ok) throw new Error(localized(workload.detail));
  // What is compressed on its way has a weak tag, which a write must not name; it is the same tag.
  const tag = answer.headers.get("ETag").replace(/^W\//, "");
  return { id, tag, name: [workload.namespace, workload.name].filter(Boolean).join("/"), pods: workload.podCount };
}

async function send(row, body) {
  const headers = { "Content-Type": "application/json", "If-Match": row.tag, "X-CSRFToken": token() };
  const request = { method: "POST", headers, body: JSON.stringify(body) };
  // A request without a response is reported next to the completed ones.
  const answer = await fetch(`/api/v1/workloads/${row.id}/actions/`, request).catch(() => null);
  if (!answer) return unreachable();
  if (answer.ok) return null;
  const problem = await answer.json().catch(() => ({}));
  return answer.status === 412 ? bar.dataset.outdated : (localized(problem.detail) ?? answer.statusText);
}

async function bulk(button) {
  const { dataset } = button;
  let rows;
  try {
    rows = await Promise.all([...picked].slice(0, MOST).map(read));
  } catch (error) {
    showNote(String(error.message ?? error), "bad");
    return;
  }
  const pods = rows.reduce((sum, row) => sum + row.pods, 0);
  const failed = [];
  const done = await act({
    title: fill(dataset.title, { count: rows.length }),
    text: fill(dataset.text, { count: rows.length, pods }),
    confirm: dataset.confirm,
    tone: dataset.tone,
    more: dataset.more,
    body: { action: dataset.bulk },
    send: async (body) => {
      for (const row of rows) {
        const problem = await send(row, body);
        if (problem) failed.push(`${row.name}: ${problem}`);
      }
    },
  });
  if (done === null) return;
  const said = fill(bar.dataset.done, { count: rows.length - failed.length, all: rows.length });
  if (!failed.length) {
    reloadWithNote(said);
    return;
  }
  showNote(said, "wait");
  for (const problem of failed.slice(0, 5)) showNote(problem, "bad");
}

if (bar) {
  document.addEventListener("change", (event) => {
    const { target } = event;
    if (target.matches("input[data-pick-all]")) {
      for (const box of boxes()) picked[target.checked ? "add" : "delete"](box.dataset.pick);
    } else if (target.matches("input[data-pick]")) picked[target.checked ? "add" : "delete"](target.dataset.pick);
    else return;
    showPicked();
  });
  for (const button of bar.querySelectorAll("[data-bulk]")) button.addEventListener("click", () => bulk(button));
  // Rows are exchanged while the page lives; what is picked stays picked.
  new MutationObserver(showPicked).observe(document.getElementById("content"), { childList: true, subtree: false });
}

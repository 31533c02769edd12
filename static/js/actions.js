// Operator actions beyond the dialog: durations and bulk actions.
//
// Duration options (`data-seconds`) are converted to end times, relative to the time when the dialog opened. Check boxes with
// `data-pick` (the id of a workload) select rows. The bar `#picked` is visible while rows are selected. Its buttons with
// `data-bulk` (the action) send one request per row, each with the ETag that was read when the dialog opened.
import { act, token } from "./dialog.js";
import { fill } from "./draw.js";
import { reloadWithNote, showNote } from "./notes.js";

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
  true, // capture phase: before the dialog copies the fields
);

const bar = document.getElementById("picked");
const picked = new Set();
const MOST = 200;
const unreachable = () => document.querySelector("#act [data-words]").dataset.unreachable;

const boxes = () => document.querySelectorAll("input[data-pick]");

function showPicked() {
  const present = new Set([...boxes()].map((box) => box.dataset.pick));
  for (const id of picked) if (!present.has(id)) picked.delete(id);
  for (const box of boxes()) box.checked = picked.has(box.dataset.pick);
  const all = document.querySelector("input[data-pick-all]");
  if (all) {
    all.checked = present.size > 0 && picked.size === present.size;
    all.indeterminate = picked.size > 0 && picked.size < present.size;
  }
  bar.hidden = picked.size === 0;
  bar.querySelector("[data-count]").textContent = fill(bar.dataset.count, { count: picked.size });
}

async function read(id) {
  const answer = await fetch(`/api/v1/workloads/${id}/`, { headers: { Accept: "application/json" } }).catch(() => null);
  if (!answer) throw new Error(unreachable());
  const workload = await answer.json();
  if (!answer.ok) throw new Error(workload.detail);
  // A compressing proxy makes the ETag weak; If-Match accepts only the strong form.
  const tag = answer.headers.get("ETag").replace(/^W\//, "");
  return { id, tag, name: [workload.namespace, workload.name].filter(Boolean).join("/"), pods: workload.podCount };
}

async function send(row, body) {
  const headers = { "Content-Type": "application/json", "If-Match": row.tag, "X-CSRFToken": token() };
  const request = { method: "POST", headers, body: JSON.stringify(body) };
  // Report a request without a response with the results of the other requests, instead of throwing.
  const answer = await fetch(`/api/v1/workloads/${row.id}/actions/`, request).catch(() => null);
  if (!answer) return unreachable();
  if (answer.ok) return null;
  const problem = await answer.json().catch(() => ({}));
  return answer.status === 412 ? bar.dataset.outdated : (problem.detail ?? answer.statusText);
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
  const summary = fill(bar.dataset.done, { count: rows.length - failed.length, all: rows.length });
  if (!failed.length) {
    reloadWithNote(summary);
    return;
  }
  showNote(summary, "wait");
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
  // Live updates replace rows, so select the new rows again.
  new MutationObserver(showPicked).observe(document.getElementById("content"), { childList: true, subtree: false });
}

// Confirmation dialog of all changes: consequences, reason, and errors of the request.
//
// Declarative use: a button with data attributes.
//
//   <button type="button" data-act="/api/v1/nodes/n1/actions/" data-title="Cordon n1?" data-text="No new pods
//     are placed on it; running pods stay." data-confirm="Cordon" data-body='{"action": "cordon"}' data-etag="{{ etag }}">Cordon</button>
//
//   data-act       URL of the request; required         data-method   POST (default), PUT, PATCH, DELETE (`?reason=`)
//   data-title     question; required                   data-text     consequences
//   data-confirm   label of the button                  data-tone     "bad" for destructive actions
//   data-body      JSON; `reason` is added              data-etag     sent as If-Match; 412 asks to reload
//   data-reason    "required" (default), "optional" or "none"
//   data-done      note after success                   data-next     URL to open after success; default: reload
//   data-more      id of a <template>: consequences as markup, and fields whose names are keys of the body (number
//                  fields and `data-number` as numbers, check boxes as booleans, empty fields omitted)
//
// From a script: `const answer = await act({act, title, text, body, …})` with the same names. The result is null if the
// user cancels, else the parsed response; the page does not reload. `more` may be an element, `body` an object. `actOn` reads a
// resource first.
// `blocked` disables the confirmation; `more` then contains the reason.
// `send`, a function of the body, replaces the request to `act`, for example to send several requests.
// The event "acted" (detail: the response) bubbles from the button; a listener that prevents it stops the reload.
import { reloadWithNote, showNote } from "./notes.js";

const dialog = document.getElementById("act");
const form = dialog.querySelector("form");
const slot = form.querySelector("[data-slot]");
const reason = form.elements.reason;
const problem = form.querySelector("[data-problem]");
const confirm = form.querySelector("[data-confirm]");
const cancel = form.querySelector("[data-cancel]");
const texts = dialog.querySelector("[data-words]").dataset;
const usual = confirm.textContent;
let current = null; // { wish, resolve } while the dialog is open
let busy = false;

export const token = () => document.querySelector("[name=csrfmiddlewaretoken]").value;

// Shows the dialog; see the options above.
export function act(wish) {
  return new Promise((resolve) => {
    current = { wish, resolve };
    form.reset();
    problem.hidden = true;
    form.querySelector("#act-title").textContent = wish.title;
    const text = form.querySelector("#act-text");
    text.textContent = wish.text ?? "";
    text.hidden = !wish.text;
    const more = typeof wish.more === "string" ? document.getElementById(wish.more)?.content.cloneNode(true) : wish.more;
    slot.replaceChildren(...(more ? [more] : []));
    slot.hidden = !more;
    reason.closest("label").hidden = wish.reason === "none";
    reason.required = (wish.reason ?? "required") === "required";
    confirm.textContent = wish.confirm ?? usual;
    confirm.classList.toggle("bad", wish.tone === "bad");
    confirm.disabled = Boolean(wish.blocked);
    dialog.showModal();
    (slot.querySelector("input, select, textarea") ?? (reason.closest("label").hidden ? cancel : reason)).focus();
  });
}

// Reads the resource at a URL, then shows the dialog to change or delete it; the request sends the ETag of the resource.
// `wish`: options without `act` and `etag`, or a function of the resource that returns them.
export async function actOn(address, wish) {
  const answer = await fetch(address);
  const now = await answer.json();
  if (!answer.ok) {
    showNote(now.detail, "bad");
    return null;
  }
  // A proxy that compresses a response makes its ETag weak; If-Match accepts only the strong form.
  const etag = answer.headers.get("ETag").replace(/^W\//, "");
  return act({ ...(typeof wish === "function" ? wish(now) : wish), act: address, etag });
}

function bodyOf(wish) {
  const body = { ...(typeof wish.body === "string" ? JSON.parse(wish.body) : wish.body) };
  for (const field of slot.querySelectorAll("input, select, textarea")) {
    if (!field.name || (field.type === "radio" && !field.checked)) continue;
    if (field.type === "checkbox") body[field.name] = field.checked;
    else if (field.value !== "") body[field.name] = field.type === "number" || "number" in field.dataset ? Number(field.value) : field.value;
  }
  if (wish.reason !== "none" && reason.value.trim()) body.reason = reason.value.trim();
  return body;
}

function refuse(detail, { code = "", id = "", outdated = false } = {}) {
  problem.querySelector("[data-detail]").textContent = detail;
  problem.querySelector("[data-code]").textContent = code && texts.codeOf.replace("{code}", code).replace("{id}", id);
  problem.querySelector("[data-outdated]").hidden = !outdated;
  problem.hidden = false;
}

async function send() {
  const { wish } = current;
  if (confirm.disabled) return;
  problem.hidden = true;
  if (reason.required && !reason.value.trim()) {
    refuse(texts.needReason);
    reason.focus();
    return;
  }
  if (!form.reportValidity()) return;
  busy = confirm.disabled = true;
  try {
    if (wish.send) {
      finish((await wish.send(bodyOf(wish))) ?? {});
      busy = confirm.disabled = false;
      return;
    }
    const headers = { "Content-Type": "application/json", Accept: "application/json", "X-CSRFToken": token() };
    if (wish.etag) headers["If-Match"] = wish.etag;
    const method = wish.method ?? "POST";
    const body = bodyOf(wish);
    // A DELETE has no body; its reason is a query parameter.
    const bare = method === "DELETE";
    const url = bare && body.reason ? `${wish.act}?${new URLSearchParams({ reason: body.reason })}` : wish.act;
    const answer = await fetch(url, { method, headers, ...(bare ? {} : { body: JSON.stringify(body) }) });
    const reply = await answer.json().catch(() => ({}));
    if (answer.ok) finish(reply);
    else if (answer.status === 412) refuse(texts.outdated, { code: reply.code, id: reply.requestId, outdated: true });
    else refuse([reply.detail ?? reply.title ?? answer.statusText, reply.hint].filter(Boolean).join(" "), { code: reply.code ?? answer.status, id: reply.requestId });
  } catch {
    refuse(texts.unreachable);
  }
  busy = confirm.disabled = false;
}

function finish(answer) {
  const { resolve } = current;
  current = null;
  dialog.close();
  resolve(answer);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!busy) send();
});
cancel.addEventListener("click", () => dialog.close());
form.querySelector("[data-reload]").addEventListener("click", () => location.reload());
dialog.addEventListener("cancel", (event) => {
  if (busy) event.preventDefault();
});
dialog.addEventListener("close", () => {
  current?.resolve(null);
  current = null;
});
reason.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-act]");
  if (!button) return;
  const wish = { ...button.dataset };
  const answer = await act(wish);
  if (answer === null) return;
  if (!button.dispatchEvent(new CustomEvent("acted", { bubbles: true, cancelable: true, detail: answer }))) {
    showNote(wish.done ?? texts.done);
  } else if (wish.next) location.assign(wish.next);
  else reloadWithNote(wish.done ?? texts.done);
});

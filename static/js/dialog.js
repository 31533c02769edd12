// One dialog for everything that changes something: what will happen, why it is done, and what went wrong, in place.
//
// Without any script of your own: a button that says what it does.
//
//   <button type="button" data-act="/api/v1/nodes/n1/actions/" data-title="Cordon n1?" data-text="Nothing new is placed on
//     it; what runs there stays." data-confirm="Cordon" data-body='{"action": "cordon"}' data-etag="{{ etag }}">Cordon</button>
//
//   data-act       address that is asked; required      data-method   POST unless said (PUT, PATCH, DELETE: `?reason=`)
//   data-title     question; required                   data-text     what follows of it
//   data-confirm   word on the button                   data-tone     "bad" for what destroys or interrupts
//   data-body      JSON; `reason` is added to it        data-etag     sent as If-Match; 412 asks to look again
//   data-reason    "required" (default), "optional" or "none"
//   data-done      note afterwards                      data-next     address to open afterwards, else the page reloads
//   data-more      id of a <template>: consequences as markup, and fields whose names are keys of the body (numbers
//                  and what is marked `data-number` as numbers, check boxes as booleans, empty ones left out)
//
// From a script: `const answer = await act({act, title, text, body, …})` with the same names: null when the person cancels,
// else the parsed answer; what follows is the script's own. `more` may be an element, `body` an object. `actOn` does the
// same for a resource that is read first.
// `blocked` disables the confirmation: what is in `more` says why it cannot be done.
// `send`, a function of the body, asks in place of `act`, where it is more than one request.
// A button's own listener may stop the load: the event "acted" (detail: the answer) bubbles from it and can be prevented.
import { reloadWithNote, showNote } from "./notes.js";
import { localized } from "./messages.js";

const dialog = document.getElementById("act");
const form = dialog.querySelector("form");
const slot = form.querySelector("[data-slot]");
const reason = form.elements.reason;
const problem = form.querySelector("[data-problem]");
const confirm = form.querySelector("[data-confirm]");
const cancel = form.querySelector("[data-cancel]");
const said = dialog.querySelector("[data-words]").dataset;
const usual = confirm.textContent;
let asked = null; // { wish, resolve } while the dialog is open
let busy = false;

export const token = () => document.querySelector("[name=csrfmiddlewaretoken]").value;

// Shows the dialog; see above.
export function act(wish) {
  return new Promise((resolve) => {
    asked = { wish, resolve };
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

// Reads the resource at an address, then shows the dialog to change or remove it: the request sends the ETag of what was
// read. `wish` is a wish without `act` and `etag`, or a function of the resource that returns one.
export async function actOn(address, wish) {
  const answer = await fetch(address);
  const now = await answer.json();
  if (!answer.ok) {
    showNote(localized(now.detail), "bad");
    return null;
  }
  // A proxy that compresses a response makes its ETag weak; If-Match compares strongly and takes only the strong form.
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
  problem.querySelector("[data-code]").textContent = code && said.codeOf.replace("{code}", code).replace("{id}", id);
  problem.querySelector("[data-outdated]").hidden = !outdated;
  problem.hidden = false;
}

async function send() {
  const { wish } = asked;
  if (confirm.disabled) return;
  problem.hidden = true;
  if (reason.required && !reason.value.trim()) {
    refuse(said.needReason);
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
    else if (answer.status === 412) refuse(said.outdated, { code: reply.code, id: reply.requestId, outdated: true });
    else refuse([reply.detail ?? reply.title ?? answer.statusText, reply.hint].filter(Boolean).map(localized).join(" "), { code: reply.code ?? answer.status, id: reply.requestId });
  } catch {
    refuse(said.unreachable);
  }
  busy = confirm.disabled = false;
}

function finish(answer) {
  const { resolve } = asked;
  asked = null;
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
  asked?.resolve(null);
  asked = null;
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
    showNote(wish.done ?? said.done);
  } else if (wish.next) location.assign(wish.next);
  else reloadWithNote(wish.done ?? said.done);
});

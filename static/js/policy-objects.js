// Golden placements and plans of the policy page: objects that the dialog creates, changes and removes.
import { act, actOn, token } from "./dialog.js";
import { fill } from "./draw.js";
import { reloadWithNote } from "./notes.js";

// A subclass defines `form(body, now, from)`, the fields of the dialog for a new object or for the object `now`. Structured
// values are stored in `body`, which the dialog sends.
export class PolicyObjects {
  // `kind` is the prefix of the data attributes of the buttons and of the words; `fixed` is part of every body.
  constructor(api, kind, words, fixed = {}) {
    Object.assign(this, { api, kind, words, fixed });
    document.addEventListener("click", (event) => {
      const button = event.target.closest(`[data-${kind}-add], [data-${kind}-edit], [data-${kind}-remove]`);
      if (!button) return;
      const { [`${kind}Add`]: from, [`${kind}Edit`]: edited, [`${kind}Remove`]: removed } = button.dataset;
      if (removed) this.remove(removed);
      else if (edited) this.change(edited);
      else this.add(from);
    });
  }

  word(name, values = {}) {
    return fill(this.words[`${this.kind}-${name}`], values);
  }

  // `from` is the value of the button's data attribute.
  async add(from) {
    const body = { ...this.fixed };
    const more = this.form(body, null, from);
    const done = await act({ act: this.api, title: this.word("add"), text: this.word("add-text"), confirm: this.word("save"), body, more });
    if (done) reloadWithNote(this.addedNote(done));
  }

  addedNote(done) {
    return this.word("saved", done);
  }

  async change(name) {
    const body = { ...this.fixed };
    const done = await actOn(`${this.api}${name}/`, (now) => ({
      method: "PUT",
      title: this.word("change", { name }),
      confirm: this.word("save"),
      body,
      more: this.form(body, now),
    }));
    if (done) reloadWithNote(this.word("saved", done));
  }

  async remove(name) {
    const done = await actOn(`${this.api}${name}/`, {
      method: "DELETE",
      title: this.word("remove", { name }),
      text: this.word("remove-text"),
      confirm: this.word("remove-confirm"),
      tone: "bad",
    });
    if (done) reloadWithNote(this.word("removed", { name }));
  }

  // Sends a trial, which writes nothing, and returns the response.
  post(path, body) {
    const headers = { "Content-Type": "application/json", "X-CSRFToken": token() };
    return fetch(`${this.api}${path}`, { method: "POST", headers, body: JSON.stringify(body) });
  }
}

// Shows an existing object in the common fields of its form; its name cannot be changed.
export function showCommonFields(form, now) {
  const name = form.querySelector("[name=name]");
  name.value = now.name;
  name.readOnly = true;
  form.querySelector("[name=enabled]").checked = now.enabled;
}

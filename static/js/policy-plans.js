// Planned activations of versions: at a time, or when a metric of a cluster crosses a threshold.
import { act, actOn, token } from "./dialog.js";
import { element, fill, moment } from "./draw.js";
import { reloadWithNote } from "./notes.js";

const API = "/api/v1/policy-plans/";
const number = new Intl.NumberFormat(document.documentElement.lang || "en", { maximumFractionDigits: 3 });
// Value of a datetime-local field.
const local = (iso) => new Date(new Date(iso) - new Date(iso).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);

export class Plans {
  constructor(words, { name }) {
    Object.assign(this, { words, name });
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-plan-add], [data-plan-edit], [data-plan-remove]");
      if (!button) return;
      const { planEdit, planRemove } = button.dataset;
      if (planRemove) this.remove(planRemove);
      else if (planEdit) this.change(planEdit);
      else this.add();
    });
  }

  async add() {
    const body = { policy: this.name };
    const wish = { title: this.words["plan-add"], text: this.words["plan-add-text"], confirm: this.words["plan-save"] };
    const done = await act({ ...wish, act: API, body, more: this.form(body) });
    if (done) reloadWithNote(fill(this.words["plan-saved"], done));
  }

  async change(name) {
    const body = { policy: this.name };
    const done = await actOn(`${API}${name}/`, (now) => ({
      method: "PUT",
      title: fill(this.words["plan-change"], { name }),
      confirm: this.words["plan-save"],
      body,
      more: this.form(body, now),
    }));
    if (done) reloadWithNote(fill(this.words["plan-saved"], done));
  }

  async remove(name) {
    const done = await actOn(`${API}${name}/`, {
      method: "DELETE",
      title: fill(this.words["plan-remove"], { name }),
      text: this.words["plan-remove-text"],
      confirm: this.words["plan-remove-confirm"],
      tone: "bad",
    });
    if (done) reloadWithNote(fill(this.words["plan-removed"], { name }));
  }

  // The fields of the dialog. The trigger of the plan is stored in `body`, which the dialog sends.
  form(body, now = null) {
    const form = document.getElementById("plan-form").content.firstElementChild.cloneNode(true);
    const find = (name) => form.querySelector(`[data-${name}]`);
    const value = (name) => find(name).value;
    // Versions may have been added since the page was rendered.
    const versions = [...document.querySelectorAll("#versions tbody th")].map((one) => one.textContent.trim());
    for (const select of form.querySelectorAll("[data-version], [data-above-version], [data-below-version]")) {
      select.replaceChildren(...versions.map((version) => element("option", { value: version.slice(1) }, version)));
    }
    const write = () => {
      const once = value("kind") === "once";
      find("once").hidden = !once;
      find("condition").hidden = once;
      find("at").required = once;
      delete body.once;
      delete body.condition;
      if (once) {
        const at = value("at") ? new Date(value("at")).toISOString() : "";
        body.once = { version: Number(value("version")), at, lateMinutes: Number(value("late")) };
      } else {
        body.condition = {
          cluster: value("cluster"),
          metric: value("metric"),
          above: Number(value("above")),
          aboveVersion: Number(value("above-version")),
          below: Number(value("below")),
          belowVersion: Number(value("below-version")),
          minutes: Number(value("minutes")),
        };
      }
    };
    if (now) {
      form.querySelector("[name=name]").value = now.name;
      form.querySelector("[name=name]").readOnly = true;
      form.querySelector("[name=enabled]").checked = now.enabled;
      find("kind").value = now.once ? "once" : "condition";
      if (now.once) {
        find("version").value = now.once.version;
        find("at").value = local(now.once.at);
        find("late").value = now.once.lateMinutes;
      } else {
        const { condition } = now;
        for (const [field, key] of [["cluster", "cluster"], ["metric", "metric"], ["above", "above"], ["above-version", "aboveVersion"], ["below", "below"], ["below-version", "belowVersion"], ["minutes", "minutes"]]) {
          find(field).value = condition[key];
        }
      }
    }
    form.addEventListener("input", write);
    find("try-plan").addEventListener("click", () => this.tried(find("tried"), body));
    write();
    return form;
  }

  // Shows the activations that the plan would have triggered with the metrics of the last days.
  async tried(place, body) {
    const headers = { "Content-Type": "application/json", "X-CSRFToken": token() };
    const asked = JSON.stringify({ condition: body.condition });
    const answer = await fetch(`${API}preview/`, { method: "POST", headers, body: asked });
    const trial = await answer.json();
    if (!answer.ok || !trial.known) {
      place.textContent = trial.detail ?? trial.note;
      return;
    }
    const count = trial.switches.length;
    const sentence = fill(this.words[count ? "plan-tried" : "plan-never"], { samples: number.format(trial.samples), count });
    const line = (one) => element("li", {}, fill(this.words["plan-switch"], { at: moment(one.at), version: one.version, value: number.format(one.value) }));
    place.replaceChildren(element("p", {}, sentence), element("ul", {}, ...trial.switches.slice(-8).map(line)));
  }
}

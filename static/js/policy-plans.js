// Planned activations of versions: at a time, or when a metric of a cluster crosses a threshold.
import { element, moment } from "./draw.js";
import { PolicyObjects, showCommonFields } from "./policy-objects.js";

const number = new Intl.NumberFormat(document.documentElement.lang || "en", { maximumFractionDigits: 3 });
// Value of a datetime-local field.
const local = (iso) => new Date(new Date(iso) - new Date(iso).getTimezoneOffset() * 60_000).toISOString().slice(0, 16);

export class Plans extends PolicyObjects {
  constructor(words, policy) {
    super("/api/v1/policy-plans/", "plan", words, { policy });
  }

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
      showCommonFields(form, now);
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
    const answer = await this.post("preview/", { condition: body.condition });
    const trial = await answer.json();
    if (!answer.ok || !trial.known) {
      place.textContent = trial.detail ?? trial.note;
      return;
    }
    const count = trial.switches.length;
    const sentence = this.word(count ? "tried" : "never", { samples: number.format(trial.samples), count });
    const line = (one) => element("li", {}, this.word("switch", { at: moment(one.at), version: one.version, value: number.format(one.value) }));
    place.replaceChildren(element("p", {}, sentence), element("ul", {}, ...trial.switches.slice(-8).map(line)));
  }
}

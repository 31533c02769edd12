// Golden placements of the policy page: create from a decision or a manifest, edit, delete, and check against the draft.
import { act, actOn, token } from "./dialog.js";
import { element, fill, words as readWords } from "./draw.js";
import { reloadWithNote } from "./notes.js";

const API = "/api/v1/golden-placements/";
const PAUSE_MILLISECONDS = 600;
const EXAMPLES = { nodes: "gpu-0, gpu-1", selector: "hetsched.io/pool=gpu", isa: "rv64gcv" };

export class Goldens {
  // `judged` is called with the broken golden placements after a check of the draft.
  constructor(section, words, { name, judged }) {
    Object.assign(this, { section, words, name, judged });
    this.pods = readWords("golden-pods");
    this.timer = null;
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-golden-add], [data-golden-edit], [data-golden-remove]");
      if (!button) return;
      const { goldenEdit, goldenRemove } = button.dataset;
      if (goldenRemove) this.remove(goldenRemove);
      else if (goldenEdit) this.change(goldenEdit);
      else this.add(button.dataset.goldenAdd);
    });
  }

  get there() {
    return document.querySelector("#goldens tr[data-golden]") !== null;
  }

  // -- editing --------------------------------------------------------------------------------------------------------

  async add(decision = "") {
    const { words } = this;
    const body = {};
    const more = this.form(body, null, decision);
    const wish = { act: API, title: words["golden-add"], text: words["golden-add-text"], confirm: words["golden-agree"], body, more };
    const answer = await act(wish);
    if (answer) reloadWithNote(fill(words[answer.state === "broken" ? "golden-added-broken" : "golden-added"], answer));
  }

  async change(name) {
    const body = {};
    const done = await actOn(`${API}${name}/`, (now) => ({
      method: "PUT",
      title: fill(this.words["golden-change"], { name }),
      confirm: this.words["golden-agree"],
      body,
      more: this.form(body, now),
    }));
    if (done) reloadWithNote(fill(this.words["golden-added"], done));
  }

  async remove(name) {
    const done = await actOn(`${API}${name}/`, {
      method: "DELETE",
      title: fill(this.words["golden-remove"], { name }),
      text: this.words["golden-remove-text"],
      confirm: this.words["golden-remove-confirm"],
      tone: "bad",
    });
    if (done) reloadWithNote(fill(this.words["golden-removed"], { name }));
  }

  // The fields of the dialog. Structured values are stored in `body`, which the dialog sends.
  form(body, now = null, decision = "") {
    const form = document.getElementById("golden-form").content.firstElementChild.cloneNode(true);
    const find = (selector) => form.querySelector(selector);
    const write = () => {
      const kind = find("[data-expect-kind]").value;
      const text = find("[data-expect]").value;
      find("[data-expect-text]").hidden = kind === "verdict";
      find("[data-expect-verdict]").hidden = kind !== "verdict";
      find("[data-expect]").placeholder = EXAMPLES[kind] ?? "";
      const parts = text.split(",").map((part) => part.trim()).filter(Boolean);
      body.expect = {
        nodes: () => ({ nodes: parts }),
        selector: () => ({ selector: Object.fromEntries(parts.map((part) => part.split("=", 2).map((one) => one.trim())).map(([key, value = ""]) => [key, value])) }),
        isa: () => ({ isa: text.trim() }),
        verdict: () => ({ verdict: find("[data-verdict]").value }),
      }[kind]();
      body.policy = find("[data-guards]").value;
      const then = find("[data-then]");
      then.closest("label").hidden = !then.value;
      body.decision = then.value && then.checked ? Number(then.value) : null;
    };
    const judgedOn = (id) => {
      const then = find("[data-then]");
      then.value = id ?? "";
      then.checked = Boolean(id);
      find("[data-then-text]").textContent = fill(this.words["golden-then"], { decision: id });
    };
    const begin = (id) => {
      const pod = this.pods[id];
      judgedOn(pod ? id : null);
      if (!pod) return write();
      find("[name=name]").value = pod.name;
      find("[name=cluster]").value = pod.cluster;
      find("[name=manifest]").value = pod.manifest;
      find("[data-expect-kind]").value = "nodes";
      find("[data-expect]").value = pod.node;
      write();
    };
    const from = find("[data-from]");
    if (now) {
      from?.closest("label").remove();
      const kind = Object.keys(now.expect)[0];
      const value = now.expect[kind];
      find("[name=name]").value = now.name;
      find("[name=name]").readOnly = true;
      find("[name=cluster]").value = now.cluster;
      find("[name=manifest]").value = now.manifest;
      find("[name=enabled]").checked = now.enabled;
      find("[data-guards]").value = now.policy;
      judgedOn(now.decision);
      find("[data-expect-kind]").value = kind;
      if (kind === "verdict") find("[data-verdict]").value = value;
      else if (kind === "selector") find("[data-expect]").value = Object.entries(value).map((pair) => pair.join("=")).join(", ");
      else find("[data-expect]").value = kind === "nodes" ? value.join(", ") : value;
    } else if (decision) {
      from.value = decision;
      begin(decision);
    }
    from?.addEventListener("change", () => begin(from.value));
    form.addEventListener("input", write);
    write();
    return form;
  }

  // -- checking -------------------------------------------------------------------------------------------------------

  // Checks the draft after a pause in editing.
  judge(draft) {
    clearTimeout(this.timer);
    if (this.there) this.timer = setTimeout(() => this.ask(draft), PAUSE_MILLISECONDS);
    else this.judged([]);
  }

  async ask(draft) {
    const headers = { "Content-Type": "application/json", "X-CSRFToken": token() };
    const body = JSON.stringify({ policy: this.name, plugins: draft.plugins, ties: draft.ties });
    const answer = await fetch(`${API}check/`, { method: "POST", headers, body }).catch(() => null);
    if (!answer?.ok) return;
    const { results } = await answer.json();
    this.judged(results.filter((one) => one.state === "broken"));
    const states = new Map(results.map((one) => [one.golden, one]));
    for (const row of document.querySelectorAll("#goldens tr[data-golden]")) {
      const found = states.get(row.dataset.golden);
      const tone = { kept: "good", broken: "bad", unknown: "wait" }[found?.state];
      row.querySelector("[data-under-draft]").replaceChildren(
        ...(found
          ? [element("span", { class: `chip ${tone}` }, this.words[`golden-${found.state}`]), element("span", { class: "small" }, ` ${found.got}`)]
          : [element("span", { class: "muted" }, "–")]),
      );
    }
  }
}

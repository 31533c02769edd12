// Golden placements of the policy page: create from a decision or a manifest, edit, delete, and check against the draft.
import { element, words as readWords } from "./draw.js";
import { PolicyObjects, showCommonFields } from "./policy-objects.js";

const PAUSE_MILLISECONDS = 600;
const EXAMPLES = { nodes: "gpu-0, gpu-1", selector: "hetsched.io/pool=gpu", isa: "rv64gcv" };

export class Goldens extends PolicyObjects {
  // `judged` is called with the broken golden placements after a check of the draft.
  constructor(words, { name, judged }) {
    super("/api/v1/golden-placements/", "golden", words);
    Object.assign(this, { name, judged, pods: readWords("golden-pods"), timer: null });
  }

  get there() {
    return document.querySelector("#goldens tr[data-golden]") !== null;
  }

  addedNote(done) {
    return this.word(done.state === "broken" ? "added-broken" : "saved", done);
  }

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
      find("[data-then-text]").textContent = this.word("then", { decision: id });
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
      showCommonFields(form, now);
      find("[name=cluster]").value = now.cluster;
      find("[name=manifest]").value = now.manifest;
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

  // Checks the draft after a pause in editing.
  judge(draft) {
    clearTimeout(this.timer);
    if (this.there) this.timer = setTimeout(() => this.ask(draft), PAUSE_MILLISECONDS);
    else this.judged([]);
  }

  async ask(draft) {
    const answer = await this.post("check/", { policy: this.name, plugins: draft.plugins, ties: draft.ties }).catch(() => null);
    if (!answer?.ok) return;
    const { results } = await answer.json();
    this.judged(results.filter((one) => one.state === "broken"));
    const states = new Map(results.map((one) => [one.golden, one]));
    for (const row of document.querySelectorAll("#goldens tr[data-golden]")) {
      const found = states.get(row.dataset.golden);
      const tone = { kept: "good", broken: "bad", unknown: "wait" }[found?.state];
      row.querySelector("[data-under-draft]").replaceChildren(
        ...(found
          ? [element("span", { class: `chip ${tone}` }, this.word(found.state)), element("span", { class: "small" }, ` ${found.got}`)]
          : [element("span", { class: "muted" }, "–")]),
      );
    }
  }
}

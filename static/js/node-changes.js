// Changes of nodes in a what-if question: nodes to drain, and copies of nodes to add.
import { element, fill } from "./draw.js";

const MOST_COPIES = 5000;

export class NodeChanges {
  // `nodes` are the nodes of the cluster by name; `changed` is called when the user has changed `drain` or `copies`.
  constructor(words, nodes, changed) {
    Object.assign(this, { words, nodes, changed, drain: [], copies: {} });
    this.#readInput("drain-name", "drain-add", (name) => (this.drain = [...new Set([...this.drain, name])]));
    this.#readInput("copy-name", "copy-add", (name) => {
      const count = Math.trunc(Number(document.getElementById("copy-count").value));
      this.copies[name] = Math.min(MOST_COPIES, (this.copies[name] ?? 0) + Math.max(1, count || 1));
    });
    document.getElementById("fleet-part").addEventListener("toggle", () => {
      const list = document.getElementById("node-names");
      if (!list.children.length) list.append(...Object.keys(nodes).sort().map((value) => element("option", { value })));
    });
  }

  get isEmpty() {
    return !this.drain.length && !Object.keys(this.copies).length;
  }

  put(drain = [], copies = {}) {
    Object.assign(this, { drain, copies });
    this.#show();
  }

  #show() {
    const chip = (text, drop) => {
      const close = element("button", { type: "button", "aria-label": fill(this.words["take-away"], { name: text }) }, "✕");
      close.addEventListener("click", () => {
        drop();
        this.#show();
        this.changed();
      });
      return element("span", { class: "chip" }, text, close);
    };
    const drained = this.drain.map((name) => chip(name, () => (this.drain = this.drain.filter((one) => one !== name))));
    document.getElementById("drained").replaceChildren(...drained);
    const added = Object.entries(this.copies).map(([name, count]) => chip(`${count} × ${name}`, () => delete this.copies[name]));
    document.getElementById("copied-nodes").replaceChildren(...added);
  }

  #readInput(id, button, add) {
    const input = document.getElementById(id);
    const addNode = () => {
      const name = input.value.trim();
      if (!(name in this.nodes)) {
        input.setCustomValidity(this.words["no-such-node"]);
        input.reportValidity();
        return;
      }
      add(name);
      input.value = "";
      this.#show();
      this.changed();
    };
    input.addEventListener("input", () => input.setCustomValidity(""));
    document.getElementById(button).addEventListener("click", addNode);
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") addNode();
    });
  }
}

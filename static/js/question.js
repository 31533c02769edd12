// A what-if question: form fields or a manifest, a policy, and hypothetical changes of the nodes.
//
// A question is parsed from and written to a URL: short values in the query, texts in the fragment, which browsers do
// not send to the server.
import { manifestOf, yamlText } from "./manifest.js";

export const WISHES = [
  "cpu", "memory", "replicas", "isa", "emulated", "cards", "milli", "gpumem", "model", "aware", "cpupolicy", "network",
  "disk", "priority", "namespace", "selector", "tolerations", "labels",
];
const HIDDEN = ["yaml", "nodes"];

const empty = () => ({ wishes: {}, mode: "form", yaml: "", nodes: "", policy: "", policy2: "", drain: [], copies: {}, nopreempt: false });

export class Question {
  constructor(values = {}) {
    Object.assign(this, empty(), values);
  }

  // `search` and `hash`: as in `location`.
  static read(search, hash) {
    const query = new URLSearchParams(search);
    const texts = new URLSearchParams(hash.replace(/^#/, ""));
    const wishes = Object.fromEntries(WISHES.filter((name) => query.get(name)).map((name) => [name, query.get(name)]));
    const copies = {};
    for (const piece of query.getAll("copy")) {
      const at = piece.lastIndexOf(":");
      const count = Number(piece.slice(at + 1));
      if (at > 0 && Number.isInteger(count) && count > 0) copies[piece.slice(0, at)] = count;
    }
    return new Question({
      wishes, copies, yaml: texts.get("yaml") ?? "", nodes: texts.get("nodes") ?? "",
      mode: texts.get("yaml") ? "yaml" : "form",
      policy: query.get("policy") ?? "", policy2: query.get("policy2") ?? "",
      drain: [...new Set(query.getAll("drain"))], nopreempt: query.get("nopreempt") === "1",
    });
  }

  // Returns the query and the fragment of the URL. A text that is too long is omitted; `complete` is then false.
  write(most) {
    const query = new URLSearchParams();
    if (this.mode === "form") for (const [name, value] of Object.entries(this.wishes)) if (value) query.set(name, value);
    for (const name of ["policy", "policy2"]) if (this[name]) query.set(name, this[name]);
    for (const name of this.drain) query.append("drain", name);
    for (const [name, count] of Object.entries(this.copies)) query.append("copy", `${name}:${count}`);
    if (this.nopreempt) query.set("nopreempt", "1");
    const texts = { yaml: this.mode === "yaml" ? this.yaml : "", nodes: this.nodes };
    const hash = HIDDEN.filter((name) => texts[name]).map((name) => `${name}=${encodeURIComponent(texts[name])}`).join("&");
    const complete = hash.length <= most;
    return { query, hash: complete ? hash : "", complete };
  }

  // Drained nodes without pods are a question; a policy without pods is not.
  get isEmpty() {
    return !this.hasPods && !this.drain.length;
  }

  get hasPods() {
    return this.mode === "yaml" ? Boolean(this.yaml.trim()) : Object.values(this.wishes).some(Boolean);
  }

  get manifest() {
    if (!this.hasPods) return { apiVersion: "v1", kind: "List", items: [] };
    return this.mode === "yaml" ? this.yaml : manifestOf(this.wishes);
  }

  get manifestText() {
    return this.mode === "yaml" ? this.yaml : yamlText(manifestOf(this.wishes));
  }

  get several() {
    return this.mode === "form" && Number(this.wishes.replicas) > 1;
  }

  // The body of the request; with `first`, it contains only the first of several identical pods.
  body(cluster, { explain = false, first = false } = {}) {
    return {
      manifest: first ? manifestOf({ ...this.wishes, replicas: "" }) : this.manifest,
      cluster,
      ...(this.policy ? { policy: this.policy } : {}),
      ...(this.drain.length ? { drain: this.drain } : {}),
      ...(Object.keys(this.copies).length ? { copyNodes: this.copies } : {}),
      ...(this.nodes.trim() ? { addNodes: this.nodes } : {}),
      ...(this.nopreempt ? { noPreempt: true } : {}),
      ...(explain ? { explain: true } : {}),
    };
  }
}

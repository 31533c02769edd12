// Recomputes one decision with other weights: which node wins, and at which weight of a plugin another node wins.
//
// The normalised scores of a decision do not depend on weights, so its total under other weights is
// T(node) + sum over plugins of (new weight - old weight) * score; filters and parameters are as in the decision.
import { element, fill } from "./draw.js";

const MOST_WEIGHT = 1000;
const EQUAL = 1e-9;
const SHOWN = 5;
const plain = new Intl.NumberFormat(document.documentElement.lang || "en", { maximumFractionDigits: 2 });
const fine = new Intl.NumberFormat(document.documentElement.lang || "en", { maximumSignificantDigits: 3 });

function ranked(decision, weights) {
  const rows = decision.nodes.map((node) => {
    const scores = Object.fromEntries(node.scores.map((score) => [score.plugin, score]));
    let now = node.total;
    for (const { plugin, normalized, weight } of node.scores) now += ((weights.get(plugin) ?? 0) - weight) * normalized;
    return { name: node.name, then: node.total, now, scores };
  });
  return rows.sort((one, other) => (Math.abs(other.now - one.now) > EQUAL ? other.now - one.now : one.name < other.name ? -1 : 1));
}

// The nearest lower and higher weight at which another node wins, with that node.
function tippingOf(rows, plugin, weight) {
  const [winner, ...others] = rows;
  const points = {};
  const own = winner.scores[plugin]?.normalized;
  if (own === undefined) return points;
  for (const rival of others) {
    const slope = (rival.scores[plugin]?.normalized ?? 0) - own;
    if (Math.abs(slope) < EQUAL) continue;
    const at = weight + (winner.now - rival.now) / slope;
    const side = slope > 0 ? "above" : "below";
    if (at <= 0 || at >= MOST_WEIGHT) continue;
    if (!points[side] || Math.abs(at - weight) < Math.abs(points[side].at - weight)) points[side] = { at, node: rival.name };
  }
  return points;
}

export class Try {
  constructor(place, form, words) {
    this.place = place;
    this.form = form;
    this.words = words;
    this.decision = null;
  }

  async choose(id) {
    this.decision = null;
    for (const tip of this.form.root.querySelectorAll("[data-tip]")) tip.hidden = true;
    if (!id) {
      this.place.replaceChildren();
      return;
    }
    this.place.setAttribute("aria-busy", "true");
    const answer = await fetch(`/api/v1/decisions/${id}/?explain=true`).catch(() => null);
    this.place.removeAttribute("aria-busy");
    const decision = answer?.ok ? await answer.json() : null;
    const nodes = decision?.nodes?.filter((node) => node.feasible) ?? [];
    if (!nodes.length) {
      this.place.replaceChildren(element("p", { class: "muted" }, this.words["not-again"]));
      return;
    }
    const own = new Set(nodes.flatMap((node) => node.scores.map((score) => score.plugin)));
    this.decision = { id, nodes, own, added: new Map(), asked: "" };
    this.show();
  }

  // Plugins enabled since the decision have no recorded scores: the server computes them on the same state.
  async score(rows) {
    const { decision } = this;
    const scoring = JSON.stringify(rows.map((row) => ({ ...this.form.use(row), weight: 1 })));
    if (decision.asked === scoring) return;
    decision.asked = scoring;
    const query = new URLSearchParams({ explain: "true", scoring });
    const answer = await fetch(`/api/v1/decisions/${decision.id}/?${query}`).catch(() => null);
    if (!answer?.ok || this.decision !== decision || decision.asked !== scoring) return;
    const found = new Map((await answer.json()).nodes.map((node) => [node.name, node]));
    for (const { name, params } of JSON.parse(scoring)) {
      decision.added.set(name, JSON.stringify(params));
      for (const node of decision.nodes) {
        const score = found.get(node.name)?.scores.find(({ plugin }) => plugin === name);
        // Weight 0, as in the decision, so that the recorded total does not change.
        node.scores = node.scores.filter(({ plugin }) => plugin !== name).concat(score ? [{ ...score, weight: 0 }] : []);
      }
    }
    this.show();
  }

  show() {
    if (!this.decision) return;
    const rows = this.form.rows.filter((row) => this.form.isOn(row));
    const weights = new Map(rows.map((row) => [row.dataset.plugin, this.form.weight(row) ?? 0]));
    const found = ranked(this.decision, weights);
    const then = found.reduce((best, row) => (row.then > best.then + EQUAL || (Math.abs(row.then - best.then) <= EQUAL && row.name < best.name) ? row : best));
    const [winner, second] = found;
    const known = new Set(this.decision.nodes.flatMap((node) => node.scores.map((score) => score.plugin)));
    const unknown = rows.filter((row) => row.hasAttribute("data-scores") && weights.get(row.dataset.plugin) > 0 && !known.has(row.dataset.plugin));
    const late = rows.filter((row) => row.hasAttribute("data-scores") && this.isLate(row, weights));
    if (late.length) this.score(late);
    const margin = second ? winner.now - second.now : Infinity;
    const outcome = !second ? "only-node" : margin < EQUAL ? "tied" : winner.name === then.name ? "still-wins" : "now-wins";
    const values = { node: winner.name, other: outcome === "tied" ? second.name : then.name, margin: fine.format(margin) };
    const sentence = fill(this.words[outcome], values);
    this.place.replaceChildren(
      element("p", { class: winner.name === then.name ? "" : "strong" }, sentence),
      this.table(found, winner, then),
      ...(unknown.length
        ? [element("p", { class: "small muted" }, fill(this.words["not-scored"], { plugins: unknown.map((row) => row.dataset.plugin).join(", ") }))]
        : []),
      element("p", { class: "small muted" }, this.words["weights-only"], " ", element("a", { href: `/decisions/${this.decision.id}/` }, this.words["the-decision"])),
      ...(document.querySelector("[data-golden-add]")
        ? [element("p", {}, element("button", { type: "button", "data-golden-add": this.decision.id }, this.words["golden-from"]))]
        : []),
    );
    this.tips(found, weights);
  }

  // Whether a plugin has no recorded scores, and its scores for these parameters are not loaded yet.
  isLate(row, weights) {
    const { own, added } = this.decision;
    const { name, params } = this.form.use(row);
    return weights.get(name) > 0 && !own.has(name) && added.get(name) !== JSON.stringify(params);
  }

  table(found, winner, then) {
    const shown = found.slice(0, SHOWN);
    if (!shown.includes(then)) shown.push(then);
    const row = (one) =>
      element(
        "tr",
        { "aria-current": one === winner && "true" },
        element("th", { scope: "row" }, one.name),
        element("td", { class: "number" }, plain.format(one.then)),
        element("td", { class: "number" }, plain.format(one.now)),
      );
    const heads = [this.words.node, this.words["points-then"], this.words["points-now"]];
    const head = heads.map((word, at) => element("th", { scope: "col", class: at && "number" }, word));
    return element("table", { class: "tried" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...shown.map(row)));
  }

  tips(found, weights) {
    for (const row of this.form.root.querySelectorAll(".use[data-scores]")) {
      const place = row.querySelector("[data-tip]");
      const { plugin } = row.dataset;
      const points = this.form.isOn(row) && weights.has(plugin) ? tippingOf(found, plugin, weights.get(plugin)) : {};
      const parts = ["below", "above"].filter((side) => points[side]).map((side) =>
        fill(this.words[`tips-${side}`], { at: plain.format(points[side].at), node: points[side].node }),
      );
      place.textContent = parts.join(" · ");
      place.hidden = !parts.length;
    }
  }
}

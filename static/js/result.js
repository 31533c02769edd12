// The result of a what-if as panels: the verdict, placements, rejections with reasons, and the best nodes.
import { bar, clock, counted, element, fill, keeping, stateChip } from "./draw.js";

const MOST_PLACEMENTS = 12;
const MOST_NODES = 10;
const MOST_NAMED = 3;
const MOST_SIDE_BY_SIDE = 3;
const number = (value, digits = 1) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const nodeLink = (name) => element("a", { class: "nowrap", href: keeping(`/nodes/${encodeURIComponent(name)}/`) }, name);
const panel = (title, ...children) =>
  element("section", { class: "panel" }, element("header", {}, element("h2", {}, title)), ...children);

function table(heads, rows, kind = null) {
  const cell = (tag, value, head) => {
    return element(tag, { class: head.number ? "number" : null }, ...[value].flat());
  };
  return element(
    "div",
    { class: "table-wrap" },
    element(
      "table",
      { class: kind },
      element("thead", {}, element("tr", {}, ...heads.map((head) => cell("th", head.title ?? head, head)))),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, at) => cell("td", value, heads[at]))))),
    ),
  );
}
const right = (title) => ({ title, number: true });

// URLs of the node tabs that show the placement as a ghost; null for a hypothetical node.
function ghostsOf({ node, zones, gpus }, known) {
  if (known && !known.has(node)) return null;
  const cpus = zones.map((zone) => zone.cpus).filter(Boolean).join(",");
  const ghost = [...(cpus ? [`cpus:${cpus}`] : []), ...gpus.map((card) => `gpu:${card.index}/${card.milli}`)].join(";");
  if (!ghost) return null;
  const address = (tab) => {
    const path = keeping(`/nodes/${encodeURIComponent(node)}/${tab}/`);
    return `${path}${path.includes("?") ? "&" : "?"}${new URLSearchParams({ ghost })}`;
  };
  return { numa: address("numa"), gpu: address("gpu") };
}

// `attempt(fit)` returns a function that repeats the question with the change, or null if the question cannot express it.
// `known` are the names of existing nodes, `offer` is a button below the verdict.
export function drawAnswer(container, words, answer, nodes, { margin = null, attempt = () => null, known = null, offer = null, scoring = {} } = {}) {
  const placed = answer.placements.length ? [placements(words, answer.placements, known)] : [];
  if (margin) placed.push(margins(words, margin));
  const best = nodes.some((node) => node.feasible) ? bestNodes(words, nodes, podsOf(answer), weightsOf(answer.policy, scoring)) : null;
  // Next to a narrow node table the other tables are stacked; above a wide one they are in a row.
  const tables = best?.matches(".whole") || !placed.length ? [...placed, best] : [element("div", { class: "stack" }, ...placed), best];
  container.replaceChildren(
    verdict(words, answer, offer),
    ...warnings(words, answer),
    ...refusals(words, answer, attempt),
    ...moves(words, answer),
    element("div", { class: "columns" }, ...tables.filter(Boolean)),
  );
}

// A rejected question: its wrong fields with codes and hints, and the request id; `problem` is null if there was no response.
export function drawProblem(container, words, problem) {
  const said = problem
    ? [
        ...(problem.errors ?? [problem]).flatMap(wrongField),
        element("p", { class: "small muted" }, fill(words["request-of"], { id: problem.requestId ?? "–" })),
      ]
    : [element("p", {}, words.unreachable)];
  container.replaceChildren(element("section", { class: "note bad stack", role: "alert" }, ...said.filter(Boolean)));
}

const wrongField = ({ code, place, detail, hint }) => [
  element("p", {}, element("b", {}, [place?.replace("manifest#1 ", ""), detail].filter(Boolean).join(": ")), " ", element("span", { class: "mono small muted" }, code)),
  hint ? element("p", {}, hint) : null,
];

// Marks of the node grid for an answer: chosen nodes as ghosts, rejected nodes faded.
export function marksOf(words, answer, nodes) {
  const marks = new Map();
  for (const node of nodes) {
    if (!node.feasible) {
      marks.set(node.name, { kind: "out", words: fill(words.refused, { reason: node.refused?.message ?? "–" }) });
    }
  }
  const chosen = new Map();
  for (const { node } of answer.placements) chosen.set(node, (chosen.get(node) ?? 0) + 1);
  for (const [name, count] of chosen) marks.set(name, { kind: "ghost", words: fill(words.chosen, { count }) });
  return marks;
}

// Alternatives of a decision: the smallest changes that make a rejected request fit, or that change the winner.
export function drawFurther(container, words, decision) {
  const fits = decision.nearestFit?.length ? [panel(words["nearest-fit"], nearest(words, decision.nearestFit))] : [];
  const use = decision.expectedUse ? [panel(words["expected-use"], element("p", {}, expected(decision.expectedUse)))] : [];
  container.replaceChildren(...fits, ...(decision.tipping ? [margins(words, decision.tipping)] : []), ...use);
}

function nearest(words, fits, attempt = () => null) {
  const rows = fits.map((fit) => {
    const more = (fit.count ?? 0) - Math.min(fit.nodes.length, MOST_NAMED);
    const nodes = fit.nodes.slice(0, MOST_NAMED).flatMap((name, at) => [at ? ", " : "", nodeLink(name)]);
    const fields = [fit.field, fit.also?.field].filter(Boolean).join(", ");
    const ask = attempt(fit);
    const button = ask && element("button", { type: "button" }, words.try);
    button?.addEventListener("click", ask);
    return [
      element("b", {}, fit.change),
      more > 0 ? [...nodes, ` ${fill(words.more, { count: more })}`] : nodes,
      element("span", { class: "mono small muted" }, fields),
      button ?? "",
    ];
  });
  const note = element("p", { class: "small muted" }, words["nearest-note"]);
  return element("div", { class: "stack nearest" }, note, table([words.change, words.nodes, words.field, ""], rows));
}

function margins(words, { node, runnerUp, margin, points }) {
  const sentence = runnerUp ? words[margin ? "margin" : "tie"] : words["only-node"];
  // A positive margin is never shown as 0.00.
  const by = margin && margin < 0.005 ? margin.toPrecision(1) : margin?.toFixed(2);
  const won = fill(sentence, { node, runnerUp, margin: by });
  const rows = points.map((point) => [
    point.plugin, String(point.weight), fill(words[point.side], { at: Number(point.at.toFixed(3)) }), nodeLink(point.node),
  ]);
  const heads = [words.plugin, right(words.weight), words.at, words.winner];
  const detail = rows.length ? table(heads, rows, "fit") : runnerUp && margin ? element("p", { class: "muted" }, words.firm) : null;
  return panel(words.margins, element("p", {}, won), detail);
}

// Probable misspellings in the manifest.
function warnings(words, answer) {
  if (!answer.warnings?.length) return [];
  const lines = answer.warnings.map(({ place, message, hint }) =>
    element("li", {}, element("span", { class: "mono" }, place.replace("manifest#1 ", "")), `: ${message}`, hint ? `. ${hint}` : ""));
  return [element("section", { class: "note wait stack" }, element("h2", {}, words.warnings), element("ul", {}, ...lines))];
}

const podsOf = (answer) => answer.placements.length + answer.unplaced.length;

function verdict(words, answer, offer) {
  const time = clock(answer.evaluatedAt);
  const { before, after } = answer.balance;
  return element(
    "section",
    { class: "panel" },
    element(
      "div",
      { class: "verdict-line" },
      stateChip(answer.verdict, words[answer.verdict]),
      element("p", { id: "sentence" }, answer.summary),
    ),
    element(
      "p",
      { class: "banner" },
      element("span", { class: "strong" }, fill(words.banner, { time })),
      element("span", {}, fill(words.policy, answer.policy)),
      element("span", {}, fill(words.balance, { before: before.toFixed(4), after: after.toFixed(4) })),
      element("span", { class: "mono", title: answer.snapshot }, fill(words.snapshot, { digest: answer.snapshot.slice(0, 10) })),
    ),
    offer && element("p", { class: "row no-print" }, offer),
  );
}

function placements(words, placed, known) {
  const rows = placed.slice(0, MOST_PLACEMENTS).map((item) => {
    const ghosts = ghostsOf(item, known);
    const linked = (text, tab) => (text && ghosts ? element("a", { href: ghosts[tab], title: words["see-there"] }, text) : text || "–");
    return [
      item.pod,
      known && !known.has(item.node) ? `${item.node} (${words.supposed})` : nodeLink(item.node),
      item.isa.mode === "any" ? "–" : instructions(words, item.isa),
      linked(cards(words, item.gpus), "gpu"),
      linked(item.zones.map((zone) => (zone.cpus ? `${zone.name} [${zone.cpus}]` : zone.name)).join(", "), "numa"),
      item.expectedUse ? expected(item.expectedUse) : "–",
      number(item.score, 2),
    ];
  });
  const heads = [words.pod, words.node, words.mode, words.cards, words.zones, words["expected-use"], right(words.score)];
  const filled = heads.map((_, at) => rows.some((row) => row[at] !== "–"));
  const more = placed.length - rows.length;
  const warned = placed.slice(0, MOST_PLACEMENTS).flatMap((item) => (item.isa.warnings ?? []).map((said) => `${item.pod}: ${said}`));
  const stated = (item) => [...(item.pairings ?? []), ...(item.alignments ?? [])];
  const remarks = placed.slice(0, MOST_PLACEMENTS).flatMap((item) => stated(item).map((said) => `${item.pod}: ${said}`));
  return panel(
    `${words["placed-on"]} ${placed.length}`,
    table(heads.filter((_, at) => filled[at]), rows.map((row) => row.filter((_, at) => filled[at])), "fit"),
    more > 0 ? element("p", { class: "small muted" }, fill(words.more, { count: more })) : null,
    ...warned.map((said) => element("p", { class: "note wait small" }, said)),
    ...remarks.map((said) => element("p", { class: "small" }, said)),
  );
}

// "cpu 610m, memory 161Mi · learnt p95 of 6 pods of Deployment/web"
const expected = ({ amounts, basis }) =>
  `${Object.entries(amounts).map((pair) => pair.join(" ")).join(", ")} · ${basis}`;

const instructions = (words, { mode, required, offered }) =>
  element("span", { title: offered }, `${words[`isa-${mode}`] ?? mode} `, element("span", { class: "mono" }, required));

// "#0, #1 · 32,510 MiB each": all GPUs of a pod have the same allocation.
function cards(words, held) {
  const names = held.map((card) => fill(card.milli < 1000 ? words["milli-of"] : words["card-of"], card)).join(", ");
  const memory = held[0]?.memoryMiB;
  return memory ? `${names} · ${fill(words["mib-each"], { memory: counted(memory) })}` : names;
}

// Messages often already contain the missing amount.
function missing(words, reason) {
  const names = (reason.missing ?? []).filter((name) => !reason.message.includes(name));
  return names.length ? element("span", { class: "mono" }, ` ${words.missing}: ${names.join(", ")}`) : "";
}

// Pods rejected for the same reasons are shown once.
function refusals(words, answer, attempt) {
  const alike = new Map();
  for (const pod of answer.unplaced) {
    const key = JSON.stringify([pod.verdict, pod.reasons]);
    if (!alike.has(key)) alike.set(key, { ...pod, count: 0 });
    alike.get(key).count += 1;
  }
  return [...alike.values()].map((pod) => {
    const most = Math.max(1, ...pod.reasons.map((reason) => reason.nodes));
    const rows = pod.reasons.map((reason) => [
      String(reason.nodes || "–"),
      reason.nodes ? bar("", reason.nodes / most) : "",
      [
        reason.field ? `${reason.field}: ` : "",
        reason.message,
        missing(words, reason),
      ],
      reason.plugin,
      element("span", { class: "mono small muted" }, reason.code),
    ]);
    const title = pod.count > 1 ? fill(words["pods-alike"], pod) : pod.pod;
    return element(
      "section",
      { class: "panel" },
      element(
        "header",
        {},
        element("h2", {}, `${words["not-placed"]}: ${title}`),
        stateChip(pod.verdict, words[pod.verdict]),
      ),
      funnel(words, pod),
      table([right(words.nodes), "", words.reason, words.plugin, words.code], rows),
      pod.nearestFit.length ? element("h3", {}, words["nearest-fit"]) : null,
      pod.nearestFit.length ? nearest(words, pod.nearestFit, attempt) : null,
    );
  });
}

// Number of nodes that passed each plugin, in the order of the plugins; fields that are zero are omitted.
function funnel(words, pod) {
  const before = pod.reasons[0]?.before;
  if (!before) return null;
  const left = new Map(pod.reasons.map(({ plugin, after }) => [plugin, after ?? 0]));
  const steps = [...left].map(([plugin, count]) => element("li", {}, `${plugin} `, element("b", {}, count)));
  const start = element("li", {}, `${words.nodes} `, element("b", {}, before));
  return element("ol", { class: "funnel", "aria-label": words.funnel }, start, ...steps);
}

const eviction = (words, { priority, pdb }) =>
  fill(words[pdb ? "evicted-against" : "evicted-at"], { priority, budget: pdb });

const displacement = (words) => ({ pod, from, to, verdict, message }) => [
  pod, from, to ?? words.nowhere, [stateChip(verdict, words[verdict]), message ? ` ${message}` : ""],
];

function moves(words, answer) {
  const rows = [
    ...[...answer.displaced].sort((a, b) => (a.to !== null) - (b.to !== null)).map(displacement(words)),
    ...answer.evictions.map((pod) => [pod.pod, pod.node, "–", eviction(words, pod)]),
  ];
  return rows.length ? [panel(words.displaced, table([words.pod, words.node, words["new-node"], words.result], rows))] : [];
}

// The scoring plugins of the policy of the answer with their weights; empty if the policy has another version now.
const weightsOf = ({ name, version }, scoring) => (scoring[name]?.version === version ? scoring[name].weights : []);

function bestNodes(words, nodes, pods, weights, most = MOST_NODES) {
  const pod = nodes[0].pod;
  const own = nodes.filter((node) => node.pod === pod);
  const feasible = own.filter((node) => node.feasible).sort((a, b) => a.rank - b.rank);
  const plugins = feasible[0].scores;
  const rows = feasible.slice(0, most).map((node) => [
    String(node.rank),
    nodeLink(node.name),
    element("b", {}, number(node.total)),
    ...node.scores.map((score) => number(score.weighted)),
  ]);
  const heads = [
    right(words.rank),
    words.node,
    right(words.total),
    ...plugins.map((score) => right([score.plugin, element("span", { class: "muted" }, ` ×${score.weight}`)])),
  ];
  const rated = new Set(plugins.map(({ plugin }) => plugin));
  const without = weights.filter(([name]) => !rated.has(name)).map(([name, weight]) => `${name} ×${weight}`);
  const title = fill(words["best-nodes-of"], { pod, feasible: feasible.length, all: own.length });
  const made = panel(
    title,
    pods > 1 ? element("p", { class: "small muted" }, fill(words["first-pod"], { count: pods })) : null,
    table(heads, rows, "fit"),
    element(
      "p",
      { class: "small muted" },
      fill(words["score-of-total"], { weights: plugins.reduce((sum, { weight }) => sum + weight, 0) }),
      without.length ? ` ${fill(words["score-without"], { plugins: without.join(", ") })}` : null,
    ),
  );
  // With many plugins, and so many columns, the table gets the full width.
  made.classList.toggle("whole", plugins.length > MOST_SIDE_BY_SIDE);
  return made;
}

// Comparison of two what-if results, row by row; rows that differ are marked by a colour and a sign.
import { element, fill, keeping, stateChip } from "./draw.js";

const MOST = 8;
const number = (value, digits) => (value === null || value === undefined ? "–" : value.toFixed(digits));

// `sides` has two entries {question, answer: {ok, document}}; `exchange` loads the second question into the form, or is null.
export function drawComparison(container, words, sides, exchange) {
  const columns = sides.map(({ question, answer }) => (answer.ok ? columnOf(words, question, answer.document) : wrong(words, answer.document)));
  const rows = Object.keys(words.compared).filter((key) => columns.some((column) => column[key]));
  const button = exchange && element("button", { type: "button" }, words.exchange);
  button?.addEventListener("click", exchange);
  const differs = rows.some((key) => columns[0][key]?.text !== columns[1][key]?.text);
  const policies = columns.map(({ policy }) => policy?.text);
  const same = policies[0] && policies[0] === policies[1] ? fill(words["same-policy"], { policy: policies[0] }) : words["same-answers"];
  container.replaceChildren(
    element("header", {}, element("h2", {}, words.comparison), button ?? ""),
    ...(differs ? [] : [element("p", { class: "note", "data-same": "" }, same)]),
    element(
      "div", { class: "table-wrap" },
      element(
        "table", { class: "compared" },
        element("thead", {}, element("tr", {}, element("td"), ...[words["this-one"], words["the-other"]].map((title) => element("th", { scope: "col" }, title)))),
        element("tbody", {}, ...rows.map((key) => row(words, key, columns))),
      ),
    ),
  );
}

function row(words, key, columns) {
  const texts = columns.map((column) => column[key]?.text ?? "–");
  const differs = texts[0] !== texts[1];
  return element(
    "tr", { class: differs ? "differs" : null },
    element("th", { scope: "row" }, words.compared[key], differs ? element("span", { class: "visually-hidden" }, ` ${words.differs}`) : null),
    ...columns.map((column) => element("td", {}, ...(column[key]?.shown ?? [column[key]?.text ?? "–"]))),
  );
}

const plain = (text) => ({ text });

function wrong(words, problem) {
  return { verdict: plain(`${problem.code}: ${problem.detail}`) };
}

function columnOf(words, question, answer) {
  const asked = Object.entries(question.wishes).map(([name, value]) => `${name} ${value}`).join(", ");
  const fleet = [
    ...question.drain.map((name) => fill(words["drains"], { name })),
    ...Object.entries(question.copies).map(([name, count]) => `+ ${count} × ${name}`),
    ...(question.nodes.trim() ? [words["other-nodes"]] : []),
  ].join(", ");
  return {
    asked: plain(question.mode === "yaml" ? "YAML" : asked || "–"),
    fleet: fleet ? plain(fleet) : undefined,
    policy: plain(`${answer.policy.name} v${answer.policy.version}`),
    verdict: { text: answer.verdict, shown: [stateChip(answer.verdict, words[answer.verdict])] },
    summary: plain(answer.summary),
    placements: places(words, answer.placements),
    score: answer.placements.length ? plain(number(mean(answer.placements.map(({ score }) => score)), 2)) : undefined,
    evictions: answer.evictions.length ? plain(answer.evictions.map(({ pod }) => pod).join(", ")) : undefined,
    displaced: answer.displaced.length
      ? plain(answer.displaced.map(({ pod, to }) => `${pod} → ${to ?? words.nowhere}`).join(", "))
      : undefined,
    nearest: answer.unplaced[0]?.nearestFit.length ? plain(answer.unplaced[0].nearestFit[0].change) : undefined,
    balance: plain(`${number(answer.balance.before, 4)} → ${number(answer.balance.after, 4)}`),
  };
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// "node ×3, other": number of pods per node, with GPUs and CPUs of the first pod.
function places(words, placements) {
  if (!placements.length) return undefined;
  const byNode = new Map();
  for (const one of placements) byNode.set(one.node, [...(byNode.get(one.node) ?? []), one]);
  const parts = [...byNode].map(([node, here]) => {
    const [first] = here;
    const held = [
      ...first.gpus.map((card) => `#${card.index}${card.milli < 1000 ? ` ${card.milli} ‰` : ""}`),
      ...first.zones.map((zone) => (zone.cpus ? `${zone.name} [${zone.cpus}]` : zone.name)),
    ];
    return { node, text: `${here.length > 1 ? ` ×${here.length}` : ""}${held.length ? ` (${held.join(", ")})` : ""}` };
  });
  const shown = parts.slice(0, MOST).flatMap(({ node, text }, at) => [
    at ? ", " : "", element("a", { href: keeping(`/nodes/${encodeURIComponent(node)}/`) }, node), text,
  ]);
  if (parts.length > MOST) shown.push(` ${fill(words.more, { count: parts.length - MOST })}`);
  return { text: parts.map(({ node, text }) => node + text).join(", "), shown };
}

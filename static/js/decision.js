// Decision page: the score of each plugin on each node, and the replay of the decision; both computed on request.
import { element, fill, keeping, stateChip, words as readWords } from "./draw.js";
import { NodeMatrix } from "./matrix.js";
import { drawProblem } from "./result.js";

const words = readWords();
const button = document.getElementById("matrix");
const shown = document.getElementById("matrix-shown");
const form = document.querySelector("[data-again]");
const again = document.getElementById("again-shown");

async function ask(address, place, draw) {
  try {
    const answer = await fetch(address);
    const document_ = await answer.json();
    if (answer.ok) draw(document_);
    else drawProblem(place, words, document_);
  } catch {
    drawProblem(place, words, null);
  }
}

button?.addEventListener("click", async () => {
  button.disabled = true;
  await ask(button.dataset.url, shown, ({ id, nodes }) => {
    const place = element("div", { class: "stack" });
    shown.replaceChildren(
      element("section", { class: "panel" }, element("header", {}, element("h2", {}, words["every-node"])), place),
    );
    new NodeMatrix(place, words, nodes, { name: `decision-${id}` });
  });
  button.disabled = false;
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const version = form.elements.version.value;
  // A version without a policy name is a version of the decision's policy.
  const policy = form.elements.policy.value || (version && form.dataset.policy);
  const query = new URLSearchParams(Object.entries({ policy, version }).filter(([, value]) => value));
  again.replaceChildren(element("p", { class: "muted" }, words["working-out"]));
  ask(`${form.dataset.again}?${query}`, again, showResult);
});

function showResult(found) {
  const head = element(
    "p", { class: `note ${found.same ? "" : "wait"}` },
    stateChip(found.verdict, words[found.verdict]), " ",
    element("strong", {}, fill(words[found.same ? "again-same" : "again-other"], { summary: found.summary })),
    found.node ? element("a", { href: keeping(`/nodes/${encodeURIComponent(found.node)}/`) }, ` ${found.node}`) : null,
  );
  const by = element("p", { class: "small muted" }, fill(words.by, found.policy));
  const rows = found.differences.map((part) =>
    element("tr", { class: "differs" }, ...[part.what, part.was || "–", part.now || "–"].map((text) => element("td", { class: "wrap" }, text))),
  );
  const heads = [words.what, words.was, words.now].map((title) => element("th", {}, title));
  const table = element(
    "div", { class: "table-wrap" },
    element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)),
  );
  again.replaceChildren(head, ...(rows.length ? [table] : []), by);
}

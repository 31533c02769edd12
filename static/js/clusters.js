// The clusters page: a selected file fills its text field; the connection test shows its results.
import { token } from "./dialog.js";
import { element } from "./draw.js";
import { showNote } from "./notes.js";

const words = JSON.parse(document.getElementById("words").textContent);

document.addEventListener("change", async (event) => {
  const { target } = event;
  if (!target.matches("input[type=file][data-into]") || !target.files.length) return;
  target.form.elements[target.dataset.into].value = await target.files[0].text();
});

async function test(button) {
  const place = document.getElementById(button.dataset.shows);
  button.disabled = true;
  place.replaceChildren(element("p", { class: "muted" }, words.asking));
  try {
    const answer = await fetch(button.dataset.test, { method: "POST", headers: { "X-CSRFToken": token() } });
    const report = await answer.json();
    place.replaceChildren(answer.ok ? panel(report) : "");
    if (!answer.ok) showNote([report.detail, report.hint].filter(Boolean).join(" "), "bad");
  } catch {
    place.replaceChildren();
    showNote(words.unreachable, "bad");
  }
  button.disabled = false;
}

function panel({ cluster, ok, checks }) {
  const rows = checks.map((one) =>
    element(
      "tr",
      {},
      element("th", { scope: "row" }, one.check),
      element("td", {}, element("span", { class: `chip ${one.ok ? "good" : "bad"}` }, one.ok ? words.well : words.wrong)),
      element("td", { class: "wrap" }, one.detail),
    ),
  );
  const title = (checks.length ? (ok ? words.allWell : words.someWrong) : words.nothing).replace("{name}", cluster);
  return element(
    "section",
    { class: `panel note ${ok ? "" : "wait"}` },
    element("h3", {}, title),
    checks.length ? element("div", { class: "table-wrap" }, element("table", { class: "fit" }, element("tbody", {}, ...rows))) : null,
  );
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-test]");
  if (button) test(button);
});

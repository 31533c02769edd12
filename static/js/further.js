// Alternatives of a decision; the server computes them after the page is shown.
import { words as readWords } from "./draw.js";
import { drawFurther } from "./result.js";

const words = readWords();
for (const place of document.querySelectorAll("[data-further]")) {
  // Shows nothing if the state of the decision was deleted or the server is unreachable.
  fetch(place.dataset.further)
    .then((answer) => (answer.ok ? answer.json() : {}))
    .then((decision) => drawFurther(place, words, decision))
    .catch(() => {});
}

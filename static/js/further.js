// What a decision could have been, worked out by the server after the page is shown.
import { words as readWords } from "./draw.js";
import { drawFurther } from "./result.js";

const words = readWords();
for (const place of document.querySelectorAll("[data-further]")) {
  // A decision whose state cannot be had any more says nothing further; neither does a server that is away.
  fetch(place.dataset.further)
    .then((answer) => (answer.ok ? answer.json() : {}))
    .then((decision) => drawFurther(place, words, decision))
    .catch(() => {});
}

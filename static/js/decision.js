// The whole node x plugin matrix of one decision, worked out again by the server when somebody asks for it.
import { words as readWords } from "./draw.js";
import { drawMatrix, drawProblem } from "./result.js";

const words = readWords();
const button = document.getElementById("matrix");
const shown = document.getElementById("matrix-shown");

button.addEventListener("click", async () => {
  button.disabled = true;
  try {
    const answer = await fetch(button.dataset.url);
    const document_ = await answer.json();
    if (answer.ok) drawMatrix(shown, words, document_.nodes);
    else drawProblem(shown, words, document_);
  } catch {
    drawProblem(shown, words, null);
  }
  button.disabled = false;
});

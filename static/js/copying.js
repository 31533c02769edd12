// Buttons that copy a text: to the clipboard, or, where a page may not use it, into view to be marked by hand.

// `texts` has, by the `data-copies` of a button, what makes its text.
export function copyBy(buttons, { texts, shown, said, words }) {
  for (const button of buttons) {
    button.addEventListener("click", async () => {
      const text = texts[button.dataset.copies]();
      shown.hidden = true;
      try {
        await navigator.clipboard.writeText(text);
        said.textContent = words.copied;
      } catch {
        // Without a secure address there is no clipboard.
        shown.textContent = text;
        shown.hidden = false;
        said.textContent = words["not-copied"];
      }
    });
  }
}

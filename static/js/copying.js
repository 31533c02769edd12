// Buttons that copy a text to the clipboard, or show it selected if the page has no access to the clipboard.

// `texts`: `data-copies` of a button -> function that returns the text to copy.
export function copyBy(buttons, { texts, shown, status, words }) {
  for (const button of buttons) {
    button.addEventListener("click", async () => {
      const text = texts[button.dataset.copies]();
      shown.hidden = true;
      try {
        await navigator.clipboard.writeText(text);
        status.textContent = words.copied;
      } catch {
        // The clipboard is available only in a secure context.
        shown.textContent = text;
        shown.hidden = false;
        status.textContent = words["not-copied"];
      }
    });
  }
}

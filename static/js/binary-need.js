// Instruction set requirement of a local program or image file: the server inspects the file, and the form gets the result.
import { element, fill } from "./draw.js";

// `input`: file field; `said`: element for the result; `isa`: field for the requirement; `token`: CSRF field of the form.
export function readNeeds({ input, said, isa, token, words }) {
  input.addEventListener("change", async () => {
    const [file] = input.files;
    input.value = "";
    if (!file) return;
    said.textContent = fill(words.reading, { name: file.name });
    try {
      const response = await fetch(`/api/v1/isa/inspect/?${new URLSearchParams({ file: file.name.slice(0, 100) })}`, {
        method: "POST",
        headers: { "Content-Type": "application/octet-stream", "X-CSRFToken": token.value },
        body: file,
      });
      const found = await response.json();
      if (response.ok) showNeeds(file.name, found);
      else said.textContent = `${found.detail} (${found.code})`;
    } catch {
      said.textContent = words.unreachable;
    }
  });

  function use(need) {
    isa.value = need;
    isa.dispatchEvent(new Event("input", { bubbles: true }));
  }

  // A program has one requirement. An image has one per architecture; the user chooses one of them.
  function showNeeds(name, found) {
    const needs = found.requirements ?? { [found.machine]: found.requirement };
    const known = Object.entries(needs).filter(([, need]) => need);
    const choices = known.map(([machine, need]) => {
      const button = element("button", { type: "button", class: "pick" }, `${machine}: ${need}`);
      button.addEventListener("click", () => use(need));
      return button;
    });
    const sentence = known.length ? words.needs : words["needs-unknown"];
    const warned = [...(found.warnings ?? []), ...(found.problems ?? [])].slice(0, 3);
    said.replaceChildren(
      fill(sentence, { name }), " ", ...choices, ...warned.map((one) => element("span", { class: "muted" }, ` ${one}.`)),
    );
    if (known.length === 1) use(known[0][1]);
  }
}

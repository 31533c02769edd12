// A list of the most common workload shapes of a cluster, loaded when the user opens it.
import { element, fill } from "./draw.js";
import { yamlText } from "./manifest.js";

// `choose` is called with the form fields or the manifest of the selected workload.
export function offerCommonWorkloads(list, { cluster, words, choose }) {
  let table = null;
  let reading = false;

  async function load() {
    if (table || reading) return;
    reading = true;
    try {
      const found = await fetch(`/api/v1/metrics/headroom/?${new URLSearchParams({ cluster })}`);
      if (!found.ok) return;
      table = await found.json();
      list.append(...table.shapes.map((shape, at) => element("option", { value: at }, wordsOf(shape, words))));
    } catch {
      // Opening the list again reloads it.
    } finally {
      reading = false;
    }
  }

  list.addEventListener("focus", load);
  list.addEventListener("pointerdown", load);
  list.addEventListener("change", (event) => {
    event.stopPropagation();
    if (list.value) choose(asked(table.shapes[list.value]));
  });
}

function wordsOf(shape, words) {
  const parts = [
    shape.cpu && `${shape.cpu} CPU`, shape.memory, shape.isa, shape.cards > 0 && !shape.milli && `${shape.cards} GPU`,
    shape.milli && `${shape.milli} ‰ GPU`, shape.model, ...Object.entries(shape.others).map((pair) => pair.join(" ")),
  ];
  const text = parts.filter(Boolean).join(" · ");
  return shape.like ? `${text} (${fill(words.like, { name: shape.like })})` : text;
}

function asked(shape) {
  if (!shape.plain) return { yaml: yamlText(shape.manifest), mode: "yaml" };
  const wishes = {
    cpu: shape.cpu, memory: shape.memory, isa: shape.isa, emulated: shape.emulated, cards: shape.milli ? null : shape.cards || null,
    milli: shape.milli, gpumem: shape.gpuMemoryMib ?? shape.gpuMemoryMiB, model: shape.model,
  };
  const filled = Object.entries(wishes).filter(([, value]) => value).map(([name, value]) => [name, String(value)]);
  return { wishes: Object.fromEntries(filled), mode: "form" };
}

// The button that creates a hold for the placements of a result; shown below results for the real cluster.
import { act } from "./dialog.js";
import { element, keeping } from "./draw.js";

const fields = "hold-fields"; // id of a <template>; pages contain it only for users who may submit

export function holdButton(words, question, answer, cluster) {
  const { verdict, placements, evictions, displaced } = answer;
  const asItIs = !question.drain.length && !Object.keys(question.copies).length && !question.nodes.trim();
  if (!document.getElementById(fields) || !asItIs) return null;
  if (verdict !== "placed" || !placements.length || evictions.length || displaced.length) return null;
  const button = element("button", { type: "button" }, words["hold-capacity"]);
  button.addEventListener("click", async () => {
    const { manifest, policy } = question.body(cluster);
    const hold = await act({
      act: "/api/v1/holds/",
      title: words["hold-capacity-title"],
      text: words["hold-capacity-text"],
      confirm: words["hold-capacity-confirm"],
      more: fields,
      reason: "none",
      body: { manifest, cluster, ...(policy ? { policy } : {}) },
    });
    if (hold !== null) location.assign(keeping(`/holds/${hold.id}/`));
  });
  return button;
}

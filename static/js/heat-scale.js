// Colours of the heat map, read from the style sheet: a scale of 64 steps of one hue, the colours of signs, and the legend.
import { element } from "./draw.js";

const STEPS = 64;
const STOPS = 7;
const READY_LEVEL = 0.25;
// Positions of the states on the scale.
export const STATE_LEVELS = { ready: READY_LEVEL, cordoned: 0.5, "not-ready": 0 };

export class HeatScale {
  // Reads the colours that apply inside the element `place`.
  constructor(place) {
    const probe = element("i");
    place.append(probe);
    const read = (name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    const numbers = (colour) => colour.match(/[\d.]+/g).slice(0, 3).map(Number);
    const stops = Array.from({ length: STOPS }, (_, at) => numbers(read(`--heat-${at}`)));
    this.table = Array.from({ length: STEPS }, (_, step) => {
      const at = (step / (STEPS - 1)) * (STOPS - 1);
      const low = Math.min(Math.floor(at), STOPS - 2);
      return `rgb(${stops[low].map((from, part) => Math.round(from + (stops[low + 1][part] - from) * (at - low))).join(" ")})`;
    });
    for (const name of ["surface", "line", "bad", "text", "accent"]) this[name] = read(`--${name}`);
    probe.remove();
  }

  // The colour of a position on the scale from 0 to 1.
  colourOf(level) {
    return this.table[Math.round(Math.min(1, Math.max(0, level)) * (STEPS - 1))];
  }

  // The elements of the legend of a measure.
  legend(measure, words) {
    const ends = { balance: [words.even, words.uneven], state: null }[measure];
    const scale = element("canvas", { class: "heat-scale", width: STEPS * 2, height: 10, "aria-hidden": "true" });
    const context = scale.getContext("2d");
    for (const [step, colour] of this.table.entries()) {
      context.fillStyle = colour;
      context.fillRect(step * 2, 0, 2, 10);
    }
    const parts = [element("span", { class: "heat-key slash" }), words.cordoned, element("span", { class: "heat-key cross" }), words["not-ready"]];
    if (ends === null) {
      const ready = element("span", { class: "heat-key" });
      ready.style.background = this.colourOf(READY_LEVEL);
      return [ready, words.ready, ...parts];
    }
    const [least, most] = ends ?? ["0 %", "100 %"];
    const none = measure === "gpu" ? [element("span", { class: "heat-key none" }), words["no-cards"]] : [];
    return [least, scale, most, ...none, ...parts];
  }
}

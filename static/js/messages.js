// Translate messages of the engine, the ledger and the API into the language of the reader: as
// web/pages/message_translation.py, with the patterns and translations that the page names. In English, and while the
// document is not available, every text stays unchanged. The browser keeps the document and has begun to fetch it before
// this runs; a page waits for it, but at most LONGEST_MILLIS.
const LONGEST_MILLIS = 5000;
const address = document.documentElement.dataset.sentences;
const { patterns, glue } = await (address ? fetch(address, { signal: AbortSignal.timeout(LONGEST_MILLIS) }) : Promise.reject())
  .then((answer) => (answer.ok ? answer.json() : null))
  .catch(() => null) ?? { patterns: [], glue: {} };

const HOLE = /\{(\w+)\}/;
const KEY = /^(\S+\/\S+?|\S+(?=:))(:?) (.+)$/s;
const COUNTED = /^(\d+) (.+)$/s;
const NUMBERS = new Set(["n", "m", "k"]);
const SAID = new Set(["said", "told"]);

const taken = (hole) => {
  if (NUMBERS.has(hole)) return "\\d+";
  return SAID.has(hole) || hole === "each" || /^(names|text)/.test(hole) ? ".+?" : "\\S+";
};
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

const read = patterns.map(([source, said]) => {
  const parts = source.split(HOLE);
  const expression = parts.map((part, at) => (at % 2 ? `(?<${part}>${taken(part)})` : escaped(part))).join("");
  return { source, said, begin: parts[0], end: parts.at(-1), pattern: new RegExp(`^${expression}$`, "s") };
});
const known = new Map();

// Returns a message in the page's language; unknown sentences are returned unchanged.
export const localized = (text) => (text && read.length ? (say(text) ?? text) : text);

function say(text) {
  if (!known.has(text)) known.set(text, found(text));
  return known.get(text);
}

function found(text) {
  for (const between of [", or ", "; ", ". ", " and "]) {
    if (!text.includes(between)) continue;
    const parts = text.split(between).map(say);
    if (!parts.includes(null)) return parts.join(glue[between]);
  }
  for (const { source, said, begin, end, pattern } of read) {
    if (!text.startsWith(begin) || !text.endsWith(end)) continue;
    const match = pattern.exec(text);
    const full = match && filled(source, said, match.groups ?? {});
    if (full) return full;
  }
  return inPart(text);
}

function filled(source, said, holes) {
  const values = {};
  for (const [name, value] of Object.entries(holes)) {
    let inner = value;
    if (SAID.has(name)) inner = say(value) ?? (source.includes(`: {${name}}`) ? value : null);
    else if (name === "each") inner = value.split("; ").map(counted).join(glue["; "]);
    else if (name.startsWith("names")) inner = value.replaceAll(", ", glue[", "]);
    if (inner === null) return null;
    values[name] = inner;
  }
  return said.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

function counted(part) {
  const [, count, rest] = COUNTED.exec(part) ?? [];
  if (count === undefined) return say(part) ?? part;
  return glue.counted.replace("{count}", count).replace("{said}", () => say(rest) ?? rest);
}

// What stands behind a pod's name, or those of several sentences that are known.
function inPart(text) {
  const [, key, colon, rest] = KEY.exec(text) ?? [];
  const behind = rest && say(rest);
  if (behind) return `${key}${colon ? glue[": "] : " "}${behind}`;
  const parts = text.split("; ");
  const said = parts.length > 1 ? parts.map(say) : [];
  return said.some(Boolean) ? said.map((new_, at) => new_ ?? parts[at]).join(glue["; "]) : null;
}

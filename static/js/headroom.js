// Headroom: how many more pods of common shapes fit now, by pool (rows) and shape (columns). Each number links to a what-if.
//
// The table is requested after the page is rendered and after changes of the cluster, at most every few seconds, and shows
// its age. Rows and columns keep their positions while the shapes and pools are the same.
import { ago, counted, element, fill, keeping, moment, visible } from "./draw.js";
import { shortIsa } from "./grid.js";

const PAUSE_SECONDS = 5;
const WAIT_SECONDS = 3;

export function showHeadroom(panel, words, cluster) {
  const table = panel.querySelector("table");
  const note = panel.querySelector(".headroom-note");
  const age = panel.querySelector("time");
  const address = `/api/v1/metrics/headroom/?${new URLSearchParams({ cluster })}`;
  let shown = null;
  let tag = null;
  let latest = null;
  let timer = null;
  let drawn = "";

  async function ask() {
    timer = null;
    if (document.hidden) {
      document.addEventListener("visibilitychange", soon, { once: true });
      return;
    }
    const answer = await fetch(address, tag ? { headers: { "If-None-Match": tag } } : {}).catch(() => null);
    if (answer?.status === 200) {
      tag = answer.headers.get("ETag");
      draw(await answer.json());
    } else if (answer?.status !== 304) {
      note.textContent = answer?.status === 503 ? words["headroom-counting"] : words["headroom-unknown"];
      timer ??= setTimeout(ask, WAIT_SECONDS * 1000);
      return;
    }
    if (latest !== null && latest > shown.revision) soon();
  }

  function soon() {
    timer ??= setTimeout(ask, PAUSE_SECONDS * 1000);
  }

  function draw(found) {
    shown = found;
    age.dateTime = found.countedAt;
    updateAge();
    const key = JSON.stringify([found.pools, found.shapes.map(({ counts, emulatedCounts, exact, reasons, like, workloads, ...shape }) => shape)]);
    if (key !== drawn) {
      drawn = key;
      table.replaceChildren(head(found), ...body(found));
      panel.querySelector("[data-empty]").hidden = found.pools.length > 0;
    }
    for (const [at, row] of [...table.querySelectorAll("tbody tr")].entries()) {
      for (const [number, shape] of found.shapes.entries()) write(row.cells[number + 1].firstChild, found, shape, at);
    }
  }

  function head({ shapes }) {
    const cells = shapes.map((shape) =>
      element("th", { scope: "col" }, element("a", { href: whatIf(shape, null), "aria-label": inWords(shape), "data-says": says(shape) }, ...short(shape))),
    );
    return element("thead", {}, element("tr", {}, element("th", { scope: "col" }, words.pool), ...cells));
  }

  function body({ pools, shapes }) {
    const tbody = element("tbody");
    for (const pool of pools) {
      const cells = shapes.map((shape) => element("td", { class: "number" }, element("a", { href: whatIf(shape, pool) })));
      const name = element("th", { scope: "row", title: pool.name, "data-family": pool.family }, element("span", {}, pool.name));
      tbody.append(element("tr", {}, name, ...cells));
    }
    return [tbody];
  }

  function write(cell, found, shape, at) {
    const [count, exact, reason] = [shape.counts[at], shape.exact[at], shape.reasons[at]];
    const pool = found.pools[at];
    const emulated = shape.emulatedCounts[at];
    const text = `${exact ? "" : "≥"}${compact(count)}${emulated ? "*" : ""}`;
    if (cell.textContent !== text) cell.textContent = text;
    cell.className = count ? "" : "none";
    const sentence = count
      ? fill(exact ? words["headroom-fits"] : words["headroom-fits-least"], { count: counted(count), pool: pool.name })
      : fill(words["headroom-none"], { pool: pool.name, reason: reason ?? "" });
    const how = emulated ? `; ${fill(words["headroom-emulated"], { count: counted(emulated) })}` : "";
    cell.dataset.says = visible(`${inWords(shape)}: ${sentence}${how}`);
    cell.setAttribute("aria-label", cell.dataset.says);
  }

  const compact = (count) => (count < 10_000 ? String(count) : `${Math.floor(count / 1000)}k`);

  // Description of a shape: a text, and three short lines for the column heading.
  function inWords(shape) {
    const gpu = shape.milli
      ? fill(words["headroom-part"], { milli: shape.milli })
      : shape.cards && fill(words["headroom-cards"], { cards: shape.cards });
    const memory = shape.gpuMemoryMib && `${shape.gpuMemoryMib} MiB`;
    const others = Object.entries(shape.others).map(([name, amount]) => `${name} ${amount}`);
    const parts = [shape.cpu && `${shape.cpu} ${words.cpu}`, shape.memory, shape.isa, gpu, memory, shape.model, shape.zones && "NUMA", ...others];
    return parts.filter(Boolean).join(" · ") || words["headroom-anything"];
  }

  function says(shape) {
    const like = shape.like ? fill(words["headroom-like"], { count: shape.workloads, pod: shape.like }) : words["headroom-example"];
    return `${inWords(shape)} – ${like}`;
  }

  function short(shape) {
    const gpu = shape.milli ? `${shape.milli}‰` : shape.cards ? `${shape.cards}×GPU` : "";
    const third = gpu || (shape.isa ? shortIsa(shape.isa).replace("RV64", "").replace("ARM64", "Arm") : "") || (shape.zones ? "NUMA" : "") || words["headroom-any"];
    const memory = (shape.memory ?? "").replace("i", "");
    return [shape.cpu ? `${shape.cpu} ${words.cpu}` : "–", memory || "–", third].map((text) => element("span", {}, text));
  }

  // Link to the form if its fields can express the shape, else to the manifest; a node selector selects the pool.
  function whatIf(shape, pool) {
    const chosen = Object.keys(pool?.selector ?? {}).length > 0;
    if (shape.plain && !chosen) {
      const { cpu, memory, isa, emulated, milli, gpuMemoryMib, model } = shape;
      const fields = { cpu, memory, isa, emulated, milli, model, gpumem: gpuMemoryMib, cards: milli ? null : shape.cards || null };
      const query = new URLSearchParams(Object.entries(fields).filter(([, value]) => value !== null));
      const keep = new URLSearchParams(keeping("").slice(1));
      for (const [name, value] of keep) query.set(name, value);
      return `/what-if/?${query}`;
    }
    const { metadata, spec, ...rest } = shape.manifest;
    const nodeSelector = { ...spec.nodeSelector, ...pool?.selector };
    const manifest = { ...rest, metadata, spec: Object.keys(nodeSelector).length ? { ...spec, nodeSelector } : spec };
    return `${keeping("/what-if/")}#yaml=${encodeURIComponent(JSON.stringify(manifest, null, 2))}`;
  }

  function updateAge() {
    if (shown === null) return;
    const current = latest === null || latest <= shown.revision;
    age.textContent = current ? words["headroom-now"] : ago(age.dateTime);
    age.title = moment(age.dateTime);
  }

  const standard = note.textContent;
  for (const kind of ["pointerover", "focusin"]) {
    table.addEventListener(kind, (event) => {
      note.textContent = visible(event.target.closest("[data-says]")?.dataset.says ?? standard);
    });
  }
  setInterval(updateAge, 1000);
  // Runs after the visible parts of the page are drawn.
  requestAnimationFrame(() => setTimeout(ask));
  return {
    changed(revision) {
      latest = revision;
      if (shown !== null && revision > shown.revision) soon();
    },
  };
}

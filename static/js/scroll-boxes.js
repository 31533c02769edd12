// Boxes of tables and texts that exceed them can be scrolled with the keyboard: such a box is a tab stop, and a region
// with the name of its caption or of the heading before it. A box that does not scroll is neither.
const BOXES = ".table-wrap, pre";
const observed = new WeakSet();
const sizes = new ResizeObserver((entries) => {
  for (const box of new Set(entries.map(({ target }) => target.closest(BOXES)))) if (box) update(box);
});

function nameOf(box) {
  const headings = [...document.querySelectorAll("h1, h2, h3, :has(> pre) > summary")].filter(
    (heading) => heading.checkVisibility() && heading.compareDocumentPosition(box) & Node.DOCUMENT_POSITION_FOLLOWING,
  );
  const heading = box.querySelector("caption") ?? headings.at(-1);
  // Without the values that a heading shows in elements of their own.
  const words = [...(heading?.childNodes ?? [])].find(({ nodeType, data }) => nodeType === Node.TEXT_NODE && data.trim());
  return (words ?? heading)?.textContent.trim() ?? "";
}

function update(box) {
  const exceeds = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
  if (exceeds && getComputedStyle(box).overflowX !== "visible") {
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", nameOf(box));
  } else for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
}

// Returns the positions of the boxes in a part of the page, for `restorePositions` after the part is replaced.
export function positionsOf(part) {
  return [...part.querySelectorAll(BOXES)].map((box) => ({
    left: box.scrollLeft,
    top: box.scrollTop,
    focused: box === document.activeElement,
  }));
}

export function restorePositions(part, positions) {
  for (const [index, box] of [...part.querySelectorAll(BOXES)].entries()) {
    const { left, top, focused } = positions[index] ?? {};
    if (!left && !top && !focused) continue;
    box.scrollTo(left, top);
    update(box); // only a tab stop can be focused
    if (focused) box.focus({ preventScroll: true });
  }
}

// A table can grow without its box, so both are observed.
function observe() {
  for (const part of document.querySelectorAll(`${BOXES}, .table-wrap > *`)) {
    if (observed.has(part)) continue;
    observed.add(part);
    sizes.observe(part);
  }
}

observe();
new MutationObserver(observe).observe(document.body, { childList: true, subtree: true });

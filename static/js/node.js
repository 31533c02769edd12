// A node's tabs: hovering or focusing an owner highlights all its allocations.
const owned = (target) => target.closest?.("[data-owner]")?.dataset.owner;

function light(owner) {
  for (const part of document.querySelectorAll("[data-owner]")) {
    part.classList.toggle("lit", owner !== undefined && part.dataset.owner === owner);
    part.classList.toggle("dim", owner !== undefined && part.dataset.owner !== owner);
  }
}

for (const kind of ["mouseover", "focusin"]) document.addEventListener(kind, (event) => light(owned(event.target)));
document.addEventListener("focusout", () => light(undefined));

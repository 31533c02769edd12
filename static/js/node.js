// A node's tabs: whoever is pointed at, or has the focus, lights up everywhere he holds something.
const owned = (target) => target.closest?.("[data-owner]")?.dataset.owner;

function light(owner) {
  for (const part of document.querySelectorAll("[data-owner]")) {
    part.classList.toggle("lit", owner !== undefined && part.dataset.owner === owner);
    part.classList.toggle("dim", owner !== undefined && part.dataset.owner !== owner);
  }
}

for (const kind of ["mouseover", "focusin"]) document.addEventListener(kind, (event) => light(owned(event.target)));
document.addEventListener("focusout", () => light(undefined));

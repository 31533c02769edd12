// Runs before the first paint, so that the page does not flash in another theme.
(() => {
  const choices = { theme: ["light", "dark"], palette: ["contrast"], density: ["comfortable"] };
  for (const [name, values] of Object.entries(choices)) {
    const chosen = localStorage.getItem(name);
    if (values.includes(chosen)) document.documentElement.dataset[name] = chosen;
  }
})();

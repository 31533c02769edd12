// Rulings on quarantined facts: a reason is asked for, and what was seen must still be so (If-Match).
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-ruling]");
  if (!button) return;
  const panel = document.getElementById("quarantine");
  const asked = [button.dataset.warn, panel.dataset.ask].filter(Boolean).join(" ");
  const reason = window.prompt(asked)?.trim();
  if (!reason) return;
  button.disabled = true;
  const said = document.getElementById("ruled");
  try {
    const answer = await fetch(panel.dataset.url, {
      method: "POST",
      headers: {
        "Content-Type": "application/json",
        "If-Match": panel.dataset.etag,
        "X-CSRFToken": panel.querySelector("[name=csrfmiddlewaretoken]").value,
      },
      body: JSON.stringify({ action: button.dataset.ruling, fact: button.dataset.fact, reason }),
    });
    if (answer.ok) location.reload();
    else said.textContent = (await answer.json()).detail;
  } catch (error) {
    said.textContent = String(error);
  }
  button.disabled = false;
});

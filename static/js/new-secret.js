// A new secret or token is shown once and not stored in the browser. Buttons that create one have `data-secret`.
const panel = document.getElementById("made");
const field = document.getElementById("plaintext");
const copy = document.getElementById("copy");

document.addEventListener("acted", (event) => {
  if (!("secret" in event.target.dataset)) return;
  event.preventDefault(); // no reload: it would remove the secret
  field.value = event.detail.secret ?? event.detail.token;
  panel.hidden = false;
  panel.scrollIntoView({ block: "nearest" });
  field.focus();
  field.select();
});

copy.addEventListener("click", async () => {
  field.select();
  try {
    await navigator.clipboard.writeText(field.value);
  } catch {
    if (!document.execCommand("copy")) return; // a page without TLS has no access to the clipboard
  }
  copy.textContent = copy.dataset.copied;
});

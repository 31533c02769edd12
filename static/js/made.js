// A new secret or token is shown once, to be copied, and never written anywhere. Buttons that make one have
// `data-secret`.
const made = document.getElementById("made");
const field = document.getElementById("plaintext");
const copy = document.getElementById("copy");

document.addEventListener("acted", (event) => {
  if (!("secret" in event.target.dataset)) return;
  event.preventDefault(); // no load: it would take the secret away
  field.value = event.detail.secret ?? event.detail.token;
  made.hidden = false;
  made.scrollIntoView({ block: "nearest" });
  field.focus();
  field.select();
});

copy.addEventListener("click", async () => {
  field.select();
  try {
    await navigator.clipboard.writeText(field.value);
  } catch {
    if (!document.execCommand("copy")) return; // a page without TLS has no clipboard of its own
  }
  copy.textContent = copy.dataset.copied;
});

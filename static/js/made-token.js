// A new token is shown once, to be copied, and never written anywhere.
const made = document.getElementById("made");
const field = document.getElementById("plaintext");
const copy = document.getElementById("copy");

document.getElementById("create").addEventListener("acted", (event) => {
  event.preventDefault(); // no load: it would take the token away
  field.value = event.detail.token;
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

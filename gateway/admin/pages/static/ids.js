// `/` leads to the search, and each id gets a button that copies it.
"use strict";
const find = document.getElementById("find");
document.addEventListener("keydown", (event) => {
  if (!find || event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) return;
  event.preventDefault();
  find.focus();
});
for (const id of navigator.clipboard ? document.querySelectorAll("main .id:not(.fact), main .fact.id dd") : []) {
  const text = id.textContent;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.setAttribute("aria-label", `Copy ${text}`);
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(text);
    button.classList.add("done");
  });
  if (id.matches("a, button, code")) id.after(button);
  else id.append(button);
}

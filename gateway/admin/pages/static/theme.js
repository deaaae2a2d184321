// The theme: the system's until a person chooses. It runs before the page is painted.
"use strict";
(() => {
  const KEY = "sluicegate-theme";
  const NAMES = { "": "\u25d0 Auto", light: "\u2600 Light", dark: "\u263e Dark" };
  const root = document.documentElement;
  let theme = "";
  try {
    theme = localStorage.getItem(KEY) || "";
  } catch {
    // a browser that keeps nothing
  }
  const show = (button) => {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    if (!button) return;
    button.textContent = NAMES[theme] || NAMES[""];
    button.setAttribute("aria-label", `Colours: ${button.textContent}`);
  };
  show(null);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    if (!button) return;
    button.hidden = false;
    show(button);
    button.addEventListener("click", () => {
      const order = ["", "light", "dark"];
      theme = order[(order.indexOf(theme) + 1) % order.length];
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // it is chosen for this page alone
      }
      show(button);
    });
  });
})();

// Before the first paint: the theme that was chosen here. Storage may be forbidden, then the system's holds.
"use strict";
(() => {
  const root = document.documentElement;
  const themes = ["system", "light", "dark"];
  let theme = "system";
  try { theme = localStorage.getItem("compatkit-theme") || "system"; } catch { /* not kept */ }
  if (!themes.includes(theme)) theme = "system";
  const show = () => { if (theme === "system") delete root.dataset.theme; else root.dataset.theme = theme; };
  show();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const name = () => { button.textContent = `Theme: ${theme}`; };
    button.hidden = false;
    name();
    button.addEventListener("click", () => {
      theme = themes[(themes.indexOf(theme) + 1) % themes.length];
      try { localStorage.setItem("compatkit-theme", theme); } catch { /* not kept */ }
      show();
      name();
    });
  });
})();

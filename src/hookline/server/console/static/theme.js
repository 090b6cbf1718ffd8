// The colours that the reader chose, before anything is drawn. The reports keep the same choice (common.js).
"use strict";

{
  const key = "hookline-theme", root = document.documentElement;
  try {
    const kept = localStorage.getItem(key);
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch { /* a browser without storage */ }
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-switch]")) return;
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
    try { localStorage.setItem(key, root.dataset.theme); } catch { /* the same */ }
  });
}

// From one verdict to the next with n and p, on the page of a run.
"use strict";

(() => {
  let current = "";
  function go(by) {
    const all = [...document.querySelectorAll(".verdict")];
    if (!all.length) return;
    const at = all.findIndex((each) => each.id === current);
    const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : (at + by + all.length) % all.length];
    for (const old of document.querySelectorAll(".hit")) old.classList.remove("hit");
    for (let outer = next.closest("details"); outer; outer = outer.parentElement.closest("details")) outer.open = true;
    next.classList.add("hit");
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "center" });
    current = next.id;
  }
  document.addEventListener("keydown", (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey || event.target.closest("input, textarea, select")) return;
    if (event.key === "n") go(1);
    else if (event.key === "p") go(-1);
  });
})();

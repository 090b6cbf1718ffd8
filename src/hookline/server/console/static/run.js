// The page of a run: a call opens in the drawer, n and p go from one verdict to the next, and rows are filtered.
"use strict";

(() => {
  const sheet = document.querySelector(".sheet");
  const tree = document.getElementById("run-steps");
  const drawer = () => document.getElementById("run-drawer");
  const rowOf = (key) => document.getElementById(`line-${key}`);
  let shown = drawer()?.dataset.shows ?? "", only = "", words = "";

  function mark() {
    for (const each of document.querySelectorAll(".rw.is-open")) each.classList.remove("is-open");
    const row = shown ? rowOf(shown) : null;
    if (row) row.classList.add("is-open");
    return row;
  }

  /** Show one call. The server renders it; the address names it, so that it can be sent to somebody. */
  async function show(key, { keep = false } = {}) {
    const query = new URLSearchParams(location.search);
    query.set("call", key);
    if (sheet.dataset.from) query.set("from", sheet.dataset.from);
    const answer = await hookline.load(`${sheet.dataset.calls}?${query}`, { headers: { accept: "application/json" } }).catch(() => null);
    if (!answer?.ok) { if (!keep) location.search = query; return; }
    if (keep && shown !== key) return;
    const sections = await answer.json();
    shown = key;
    const old = drawer(), top = keep ? old.scrollTop : 0;
    if (!keep) { history.replaceState(null, "", `?${query}`); old.blur(); }
    hookline.swap(sections, { force: true });
    drawer().scrollTop = top;
    const row = mark();
    for (let up = row?.closest("details"); up; up = up.parentElement.closest("details")) up.open = true;
    if (!keep) { row?.scrollIntoView({ block: "nearest" }); drawer().focus({ preventScroll: true }); }
  }

  function close() {
    const query = new URLSearchParams(location.search), row = rowOf(shown);
    query.delete("call");
    history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
    shown = "";
    drawer().hidden = true;
    mark();
    row?.querySelector(".nm")?.focus({ preventScroll: true });
  }

  function go(by) {
    // The strip has the verdicts of the whole run, also of steps that are on another page.
    const marks = [...document.querySelectorAll("#run-strip [data-call]")].map((each) => each.dataset.call);
    const rows = [...document.querySelectorAll(".rw.loud")].map((each) => each.id.slice(5));
    const keys = [...new Set(marks.length ? marks : rows)];
    if (!keys.length) return;
    const at = keys.indexOf(shown);
    show(keys[at < 0 ? (by > 0 ? 0 : keys.length - 1) : (at + by + keys.length) % keys.length]);
  }

  /** Hide the rows without verdicts, without errors or without the words, unless a row inside them has some. */
  function filter() {
    for (const each of document.querySelectorAll("[data-only]")) each.setAttribute("aria-pressed", String(each.dataset.only === only));
    for (const row of tree.querySelectorAll(".rw")) {
      const fits = (!only || row.classList.contains(only)) && (!words || row.textContent.toLowerCase().includes(words));
      row.parentElement.toggleAttribute("data-misfit", !fits);
    }
    tree.classList.toggle("filtered", Boolean(only || words));
  }

  document.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    const at = event.target.closest("[data-call], [data-close], [data-go], [data-only]");
    if (!at) return;
    event.preventDefault();
    if ("close" in at.dataset) close();
    else if (at.dataset.go) go(Number(at.dataset.go));
    else if ("only" in at.dataset) { only = at.dataset.only; filter(); }
    else show(at.dataset.call);
  });
  document.addEventListener("input", (event) => {
    if (event.target.id === "run-find") { words = event.target.value.trim().toLowerCase(); filter(); }
  });
  document.addEventListener("keydown", (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && shown) { close(); return; }
    if (event.defaultPrevented || event.target.closest("input:not([type=checkbox]), textarea, select")) return;
    if (event.key === "n") go(1);
    else if (event.key === "p") go(-1);
  });
  document.addEventListener("swapped", ({ detail }) => {
    if (detail.includes("run-drawer")) return;
    if (detail.some((id) => id.startsWith("run-step-") || id === "run-cols")) filter();
    mark();
    if (shown && detail.includes(`run-step-${shown.split(".")[0]}`)) show(shown, { keep: true });
  });
  const first = mark();
  for (let up = first?.closest("details"); up; up = up.parentElement.closest("details")) up.open = true;
  first?.scrollIntoView({ block: "center" });
})();

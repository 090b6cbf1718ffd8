// Draws two runs side by side, as `hookline.explain.comparison` paired them.
"use strict";

(() => {
  const { el, number, counted, duration, cost, pill } = hookline;

  for (const root of document.querySelectorAll(".hookline-diff")) mount(root);

  function mount(root) {
    const { runs, pairs, first, summary, verbs, statuses } = hookline.data(root);
    const isSame = (pair) => pair.left && pair.right && !(pair.differences || []).length;
    const name = (part) => [part.where, part.kind === "run" ? part.title || "a run" : part.title].filter(Boolean).join(", ");

    // Rows: a pair that differs, or a fold of pairs that are the same.

    const folds = [];
    let folded = null;
    pairs.forEach((pair, position) => {
      if (isSame(pair)) {
        if (!folded) folds.push(folded = { pairs: [] });
        folded.pairs.push(pair);
      } else {
        folded = null;
        folds.push({ pair, position });
      }
    });
    const stops = folds.filter((row) => row.pair);
    let all = false, current = -1;

    const list = el("div", { class: "rows" });
    const lazy = hookline.lazyList(list, { size: 20, height: 90, draw, drawn: () => {} });
    const show = () => lazy.show(folds.flatMap((row) => row.pairs && (all || row.open) ? row.pairs.map((pair) => row.rows?.get(pair) ?? keep(row, pair)) : [row]));
    const keep = (row, pair) => { row.rows ??= new Map(); const made = { pair, position: -1 }; row.rows.set(pair, made); return made; };

    function draw(row) {
      if (row.pairs) {
        const names = row.pairs.slice(0, 4).map((pair) => name(pair.left)).filter(Boolean).join(" · ");
        return row.element = el("li", {}, el("button", { class: "same", type: "button", onclick: () => { row.open = true; show(); } }, `${counted(row.pairs.length, "part")} the same`, names ? `: ${names}${row.pairs.length > 4 ? " …" : ""}` : ""));
      }
      const { left, right } = row.pair, part = left || right, same = isSame(row.pair);
      row.element = el("li", { class: `pair card${same ? " equal" : ""}${row.position === first ? " first" : ""}` },
        el("div", { class: "head" }, el("b", {}, part.where || (part.kind === "run" ? "Input" : "End")), el("span", { class: "mono" }, part.title), row.position === first ? pill("first difference", "blue") : null, !left ? pill("only in the second run", "green") : !right ? pill("only in the first run", "red") : same ? pill("the same") : (row.pair.differences || []).map((difference) => el("span", { class: "label" }, difference.name))),
        el("div", { class: "sides" }, cells(row.pair)));
      row.element.style.setProperty("--depth", part.depth || 0);
      return row.element;
    }

    /** What hooks did, and each text that differs, next to the one of the other run. */
    function cells({ left, right, differences }) {
      const changed = new Map((differences || []).map((difference) => [difference.name, difference.parts]));
      const names = changed.size ? [...changed.keys()] : Object.keys((left || right).texts || {});
      const found = [];
      if ([left, right].some((part) => part && (part.verbs || []).length)) found.push(verbsOf(left), verbsOf(right));
      for (const text of names) found.push(cell(text, left, changed.get(text), "-"), cell(text, right, changed.get(text), "+"));
      return found;
    }

    const verbsOf = (part) => el("div", {}, ((part && part.verbs) || []).map(([verb, hook]) => [pill((verbs[verb] || [verb])[0], (verbs[verb] || ["", "grey"])[1]), ` ${hook} `]));

    function cell(text, part, parts, own) {
      if (!part) return el("div", {});
      const shown = parts ? parts.filter(([op]) => op === "=" || op === "~" || op === own) : [["=", (part.texts || {})[text] || ""]];
      const nothing = !shown.some(([op, piece]) => op !== "~" && piece);
      return el("div", {}, el("div", { class: "label" }, text), nothing ? el("span", { class: "absent" }, "none") : el("pre", {}, shown.map(([op, piece]) =>
        op === "=" ? piece : op === "~" ? el("span", { class: "fold" }, ` ⋯ ${piece} ⋯ `) : el(op === "+" ? "ins" : "del", {}, piece))));
    }

    // The toolbar and the header.

    const position = el("span", { class: "meta", "aria-live": "polite" });
    const tell = () => { position.textContent = stops.length ? `${current < 0 ? "–" : current + 1}/${number(stops.length)}` : ""; };
    function step(by) {
      if (!stops.length) return;
      current = current < 0 ? (by > 0 ? 0 : stops.length - 1) : (current + by + stops.length) % stops.length;
      lazy.reach(stops[current]);
      hookline.goTo(stops[current].element);
      tell();
    }
    const toggle = el("button", { class: "quiet", type: "button", "aria-pressed": "false", onclick: () => {
      all = !all;
      for (const row of folds) row.open = false;
      toggle.setAttribute("aria-pressed", String(all));
      show();
    } }, "Show what is the same");
    const bar = el("nav", { class: "bar", "aria-label": "Differences" }, el("div", { class: "wrap" }, toggle, position,
      el("button", { class: "quiet", type: "button", title: "Previous difference (p)", "aria-label": "Previous difference", disabled: !stops.length, onclick: () => step(-1) }, "↑"),
      el("button", { class: "quiet", type: "button", title: "Next difference (n)", disabled: !stops.length, onclick: () => step(1) }, "Next ↓"), hookline.themeButton()));
    document.addEventListener("keydown", (event) => {
      if (event.metaKey || event.ctrlKey || event.altKey || event.target.closest("input, textarea, select")) return;
      if (event.key === "n") step(1);
      if (event.key === "p") step(-1);
    });

    const head = (run) => el("div", { class: "card" },
      el("div", {}, pill(run.status, statuses[run.status]), " ", el("span", { class: "mono" }, run.id)),
      el("div", {}, run.why),
      el("ul", { class: "facts" }, [["agent", run.agent], ["model", run.model], ["started", run.time ? new Date(run.time * 1000).toLocaleString() : ""], ["took", duration(run.elapsed)], ["tokens", `${number(run.input_tokens)} in, ${number(run.output_tokens)} out`], ["cost", cost(run.cost)]].filter(([, value]) => value).map(([fact, value]) => el("li", {}, `${fact} `, el("b", {}, value)))));
    root.append(bar, el("div", { class: "wrap" }, el("header", {}, el("h1", {}, "Two runs"), el("p", { class: "summary" }, summary), el("div", { class: "runs" }, runs.map(head))), el("main", {}, list)));
    show();
    tell();
  }
})();

// Draws two runs side by side, as `hookline.explain.comparison` paired them.
"use strict";

(() => {
  const { el, number, counted, duration, cost, pill, diffParts } = hookline;

  for (const root of document.querySelectorAll(".hookline-diff")) mount(root);

  function mount(root) {
    const { runs, pairs, first, summary, verbs, statuses } = hookline.data(root);
    const isSame = (pair) => pair.left && pair.right && !(pair.differences || []).length;

    // Rows: a pair that differs, or a fold of pairs that are the same. An open fold is drawn as its pairs.

    const rows = [];
    pairs.forEach((pair, position) => {
      const row = { pair, position, element: null };
      if (!isSame(pair)) rows.push(row);
      else if (rows.length && rows.at(-1).folded) rows.at(-1).folded.push(row);
      else rows.push({ folded: [row], open: false });
    });
    const stops = rows.filter((row) => row.pair);
    let showsAll = false, current = -1;

    const list = el("div", { class: "rows" });
    const lazy = hookline.lazyList(list, { size: 20, height: 90, draw, drawn: () => {} });
    const show = () => lazy.show(rows.flatMap((row) => (row.folded && (showsAll || row.open) ? row.folded : [row])));

    function draw(row) {
      return row.folded ? drawFold(row) : drawPair(row);
    }

    function drawFold(row) {
      const names = row.folded.slice(0, 4).map(({ pair }) => [pair.left.where, pair.left.title].filter(Boolean).join(", "));
      const more = row.folded.length > 4 ? " …" : "";
      const onclick = () => { row.open = true; show(); };
      return el("li", {}, el("button", { class: "same", type: "button", onclick },
        `${counted(row.folded.length, "part")} the same: ${names.filter(Boolean).join(" · ")}${more}`));
    }

    function drawPair(row) {
      const { left, right, differences } = row.pair, part = left || right, isFirst = row.position === first;
      const kind = isSame(row.pair) ? " equal" : isFirst ? " first" : "";
      const state = !left ? pill("only in the second run", "blue")
        : !right ? pill("only in the first run", "red")
        : isSame(row.pair) ? pill("the same")
        : differences.map((difference) => el("span", { class: "label" }, difference.name));
      row.element = el("li", { class: `pair card${kind}` },
        el("div", { class: "head" },
          el("b", {}, part.where || (part.kind === "run" ? "Input" : "End")),
          el("span", { class: "mono" }, part.title),
          isFirst ? pill("first difference", "blue") : null,
          state),
        el("div", { class: "sides" }, cells(row.pair)));
      row.element.style.setProperty("--depth", part.depth || 0);
      return row.element;
    }

    /** What hooks did, and each text that differs, next to the one of the other run. */
    function cells({ left, right, differences }) {
      const changed = new Map((differences || []).map((difference) => [difference.name, difference.parts]));
      const names = changed.size ? [...changed.keys()] : Object.keys((left || right).texts || {});
      const found = [];
      if ([left, right].some((part) => part && part.verbs)) found.push(verbsOf(left), verbsOf(right));
      for (const name of names) {
        found.push(cell(name, left, changed.get(name), "-"), cell(name, right, changed.get(name), "+"));
      }
      return found;
    }

    function verbsOf(part) {
      const spoken = (part && part.verbs) || [];
      return el("div", {}, spoken.map(([verb, hook]) => {
        const [word, tone] = verbs[verb] || [verb, "grey"];
        return [pill(word, tone), ` ${hook} `];
      }));
    }

    function cell(name, part, parts, own) {
      if (!part) return el("div", {});
      const all = parts || [["=", (part.texts || {})[name] || ""]];
      const shown = all.filter(([op]) => op === "=" || op === "~" || op === own);
      const isEmpty = !shown.some(([op, text]) => op !== "~" && text);
      return el("div", {},
        el("div", { class: "label" }, name),
        isEmpty ? el("span", { class: "absent" }, "none") : el("pre", {}, diffParts(shown)));
    }

    // The toolbar and the header.

    const position = el("span", { class: "meta", "aria-live": "polite" });
    const tell = () => {
      position.textContent = stops.length ? `${current < 0 ? "–" : current + 1}/${number(stops.length)}` : "";
    };

    function step(by) {
      if (!stops.length) return;
      current = current < 0 ? (by > 0 ? 0 : stops.length - 1) : (current + by + stops.length) % stops.length;
      lazy.reach(stops[current]);
      hookline.goTo(stops[current].element);
      tell();
    }

    const button = (text, title, onclick) => el("button",
      { class: "quiet", type: "button", title, "aria-label": title, disabled: !stops.length, onclick }, text);
    const toggle = el("button", { class: "quiet", type: "button", "aria-pressed": "false", onclick: () => {
      showsAll = !showsAll;
      for (const row of rows) row.open = false;
      toggle.setAttribute("aria-pressed", String(showsAll));
      show();
    } }, "Show all");
    const bar = el("nav", { class: "bar", "aria-label": "Differences" }, el("div", { class: "wrap" },
      toggle,
      position,
      button("↑", "Previous difference (p)", () => step(-1)),
      button("Next ↓", "Next difference (n)", () => step(1)),
      hookline.themeButton()));
    document.addEventListener("keydown", (event) => {
      if (event.metaKey || event.ctrlKey || event.altKey || event.target.closest("input, textarea, select")) return;
      if (event.key === "n") step(1);
      if (event.key === "p") step(-1);
    });

    function head(run) {
      const facts = {
        agent: run.agent,
        model: run.model,
        started: run.time ? new Date(run.time * 1000).toLocaleString() : "",
        took: duration(run.elapsed),
        tokens: `${number(run.input_tokens)} in, ${number(run.output_tokens)} out`,
        cost: cost(run.cost),
      };
      return el("div", { class: "card" },
        el("div", {}, pill(run.status, statuses[run.status]), " ", el("span", { class: "mono" }, run.id)),
        el("div", {}, run.why),
        el("ul", { class: "facts" }, Object.entries(facts).map(([name, value]) =>
          value ? el("li", {}, `${name} `, el("b", {}, value)) : null)));
    }

    const header = el("header", {},
      el("h1", {}, "Two runs"),
      el("p", { class: "summary" }, summary),
      el("div", { class: "runs" }, runs.map(head)));
    root.append(bar, el("div", { class: "wrap" }, header, el("main", {}, list)));
    show();
    tell();
  }
})();

// The page of a backtest: filters, a table that can be sorted, and examples that open.
"use strict";

(() => {
  const { el, number, counted, duration, pill, data, themeButton } = hookline;
  const { report, headline, sure, about } = data();
  const SURE = ["exact", "conditional", "guess"];
  const MEANING = {
    exact: "Up to the first different decision of a run: the run went exactly this way.",
    conditional: "After that decision: this holds if the run had gone on all the same.",
    guess: "A hook read something that is not recorded.",
  };
  const words = (name) => name.replaceAll("_", " ");
  const total = (count) => count.exact + count.conditional + count.guess;
  const percent = (share) => share === null || share === undefined ? "unknown" : `${(share * 100).toFixed(share === 1 ? 0 : 1)} %`;
  const PAGE = 200;

  // How sure the answers are

  function certainty() {
    const bar = el("div", { class: "shares", role: "img", "aria-label": SURE.map((name) => `${name}: ${counted(report.certainty[name], "moment")}`).join(", ") });
    for (const name of SURE) {
      const part = report.certainty[name];
      if (!part) continue;
      const span = el("span", { class: name, title: `${name}: ${counted(part, "moment")}` });
      span.style.flexGrow = part;
      bar.append(span);
    }
    return el("section", { "aria-label": "How sure the answers are" },
      el("h2", {}, "How sure the answers are"),
      el("p", {}, sure),
      bar,
      el("div", { class: "sure" }, SURE.map((name) => el("div", { class: `card ${name}` },
        pill(name, name),
        el("b", {}, counted(report.differences[name], "difference")),
        el("p", {}, MEANING[name]),
        el("p", {}, `${counted(report.certainty[name], "moment")} in all`)))));
  }

  // The differences

  const COLUMNS = [
    ["Rule", (cell) => cell.hook], ["Tool or point", (cell) => cell.tool || cell.point], ["Difference", (cell) => words(cell.kind)],
    ...SURE.map((name) => [name, (cell) => cell.count[name]]), ["All", (cell) => total(cell.count)],
  ];
  const state = { sure: new Set(SURE), kind: "", hook: "", tool: "", text: "", column: 6, descending: true, shown: PAGE };

  const texts = new Map();
  function text(cell) {
    if (!texts.has(cell)) {
      const examples = cell.examples.flatMap((e) => [e.run_id, e.subject, e.then, e.now, e.reason, e.file]);
      texts.set(cell, [cell.hook, cell.point, cell.tool, words(cell.kind), ...examples].join("\n").toLowerCase());
    }
    return texts.get(cell);
  }

  const wanted = (cell) => (state.kind ? cell.kind === state.kind : cell.kind !== "same")
    && (!state.hook || cell.hook === state.hook) && (!state.tool || (cell.tool || cell.point) === state.tool)
    && SURE.some((name) => state.sure.has(name) && cell.count[name] > 0)
    && (!state.text || text(cell).includes(state.text));

  function compare(a, b) {
    const [, value] = COLUMNS[state.column], x = value(a), y = value(b);
    const order = typeof x === "number" ? x - y : x < y ? -1 : x > y ? 1 : 0;
    return state.descending ? -order : order;
  }

  function example(each) {
    const code = el("code", {}, each.command);
    const copy = el("button", { class: "quiet", type: "button", onclick: async () => {
      try { await navigator.clipboard.writeText(each.command); copy.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(code); }
    } }, "Copy");
    const fact = (name, value) => value ? [el("dt", {}, name), el("dd", {}, value)] : [];
    return el("article", { class: `example ${each.certainty}` },
      el("header", {}, pill(each.certainty, each.certainty), el("span", {}, each.point), each.tool && el("code", {}, each.tool)),
      each.subject && el("pre", { class: "subject" }, each.subject),
      el("dl", {}, fact("Then", each.then || "no decision"), fact("Now", each.now || "no decision"),
        fact("Run", each.run_id), fact("Record", each.file)),
      el("div", { class: "copy" }, code, copy));
  }

  const examples = (list) => el("div", { class: "examples" }, list.map(example));

  /** A row, which opens to show its examples. */
  function rows(cell) {
    const has = cell.examples.length > 0, name = cell.hook || "no hook";
    let opened = null;
    const button = has
      ? el("button", { class: "open", type: "button", "aria-expanded": "false" }, name)
      : el("span", { class: cell.hook ? "" : "none" }, name);
    const toggle = () => {
      if (opened) { opened.remove(); opened = null; }
      else {
        const left = total(cell.count) - cell.examples.length;
        const shown = cell.examples.filter((e) => state.sure.has(e.certainty));
        const rest = left > 0 && el("p", { class: "none" }, `The report keeps ${counted(cell.examples.length, "example")} of ${number(total(cell.count))}.`);
        opened = el("tr", {}, el("td", { colspan: COLUMNS.length }, examples(shown.length ? shown : cell.examples), rest));
        row.after(opened);
      }
      button.setAttribute("aria-expanded", String(opened !== null));
    };
    const row = el("tr", { class: "row", "aria-disabled": has ? null : "true", onclick: has ? toggle : () => {} },
      el("td", {}, button),
      el("td", {}, cell.tool ? el("code", {}, cell.tool) : null, cell.tool ? " " : null, el("span", { class: "point" }, cell.point)),
      el("td", {}, pill(words(cell.kind), cell.tone)),
      SURE.map((each) => el("td", { class: "num", "data-name": each }, el("span", { class: cell.count[each] ? each : "zero" }, number(cell.count[each])))),
      el("td", { class: "num", "data-name": "all" }, number(total(cell.count))));
    return row;
  }

  function differences() {
    const body = el("tbody"), more = el("button", { class: "quiet", type: "button", onclick: () => { state.shown += PAGE; draw(); } });
    const found = el("p", { role: "status" });
    const heads = COLUMNS.map(([name], index) => el("th", { scope: "col", class: index > 2 ? "num" : "" },
      el("button", { type: "button", onclick: () => {
        state.descending = state.column === index ? !state.descending : index > 2;
        state.column = index;
        draw();
      } }, name)));

    function draw() {
      const cells = report.cells.filter(wanted).sort(compare);
      body.replaceChildren(...cells.slice(0, state.shown).map(rows));
      heads.forEach((head, index) => {
        if (index === state.column) head.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      const moments = cells.reduce((sum, cell) => sum + SURE.reduce((n, name) => n + (state.sure.has(name) ? cell.count[name] : 0), 0), 0);
      found.textContent = cells.length ? `${counted(moments, "moment")} in ${counted(cells.length, "row")}` : "Nothing matches the filters.";
      more.hidden = cells.length <= state.shown;
      more.textContent = `Show ${number(Math.min(PAGE, cells.length - state.shown))} more`;
    }
    const change = () => { state.shown = PAGE; draw(); };

    const select = (label, key, values, shown = (value) => value) => el("select", { class: "field", "aria-label": label, onchange: (event) => {
      state[key] = event.target.value;
      change();
    } }, el("option", { value: "" }, label), values.map((value) => el("option", { value }, shown(value) || "no hook")));
    const unique = (value) => [...new Set(report.cells.map(value))].filter(Boolean).sort();
    const kinds = unique((cell) => cell.kind);
    const sure = el("div", { class: "seg", role: "group", "aria-label": "How sure" }, SURE.map((name) => {
      const button = el("button", { type: "button", "aria-pressed": "true", onclick: () => {
        if (state.sure.has(name)) state.sure.delete(name); else state.sure.add(name);
        button.setAttribute("aria-pressed", String(state.sure.has(name)));
        change();
      } }, name, el("b", {}, number(report.differences[name])));
      return button;
    }));
    draw();
    return el("section", { "aria-label": "Differences" },
      el("h2", {}, "Differences"),
      el("div", { class: "filters" },
        sure,
        select("All differences", "kind", kinds, words),
        select("All rules", "hook", unique((cell) => cell.hook)),
        select("All tools and points", "tool", unique((cell) => cell.tool || cell.point)),
        el("input", { class: "field", type: "search", placeholder: "Search", "aria-label": "Search", oninput: (event) => {
          state.text = event.target.value.toLowerCase();
          change();
        } })),
      found,
      el("div", { class: "card cells" }, el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads)), body))),
      more);
  }

  // What went wrong

  function table(title, text, heads, list) {
    if (!list.length) return null;
    return el("section", { "aria-label": title },
      el("h2", {}, title), el("p", {}, text),
      el("div", { class: "card plain" }, el("div", { class: "scroll" }, el("table", {},
        el("thead", {}, el("tr", {}, heads.map(([name, kind]) => el("th", { class: kind || "" }, name)))),
        el("tbody", {}, list.map((cells) => el("tr", {}, cells.map((cell, index) => el("td", { class: heads[index][1] || "" }, cell)))))))));
  }

  function failures() {
    if (!report.failures.length) return null;
    return el("section", { "aria-label": "Rules that failed" },
      el("h2", {}, "Rules that failed"),
      el("p", {}, "At these moments a rule raised an exception, was refused something, or exceeded a limit."),
      report.failures.map((each) => el("details", { class: "card plain" },
        el("summary", {}, pill(words(each.problem), "red"), " ", el("b", {}, each.hook), ` · ${counted(each.count, "moment")}`, each.message && ` · ${each.message}`),
        examples(each.examples))));
  }

  // Labels

  function confusion(title, labels) {
    const row = (name, stopped, passed) => el("tr", {}, el("th", { scope: "row" }, name),
      [stopped, passed].map((count) => el("td", { class: "num", title: SURE.map((part) => `${count[part]} ${part}`).join(", ") }, number(total(count)))));
    return el("div", { class: "card confusion" }, el("div", { class: "label" }, title),
      el("table", {},
        el("thead", {}, el("tr", {}, el("th", {}, "labelled"), el("th", { class: "num" }, "stopped"), el("th", { class: "num" }, "passed"))),
        el("tbody", {}, row("bad", labels.bad_stopped, labels.bad_passed), row("good", labels.good_stopped, labels.good_passed))),
      el("ul", { class: "facts" },
        el("li", {}, "precision ", el("b", {}, percent(labels.precision))), el("li", {}, "recall ", el("b", {}, percent(labels.recall)))));
  }

  function labels() {
    if (!report.labels.total && !report.labels_then.total) return null;
    return el("section", { "aria-label": "Labels" },
      el("h2", {}, "Labelled calls"),
      el("p", {}, "Calls that people approved, denied, or called good or bad. A call is stopped if it is blocked, asked about, or ends the run."),
      el("div", { class: "two" }, confusion(report.baseline ? "Baseline" : "Then", report.labels_then), confusion("Now", report.labels)));
  }

  // How it was computed

  function computed() {
    const facts = [
      ...Object.entries(about),
      ["Tested hooks", report.rules.join(", ") || "none"],
      ["Compared with", report.baseline ? report.baseline.join(", ") || "no hooks" : "the recorded decisions"],
      ["Read", `${counted(report.files, "file")}, ${counted(report.runs, "run")}, ${counted(report.nested, "nested run")}`],
      ["Moments", `${number(report.moments)}, of which the rules judged ${number(report.judged)}`],
      ["Time", duration(report.seconds)],
    ];
    return el("section", { "aria-label": "How this was computed" },
      el("h2", {}, "How this was computed"),
      el("dl", { class: "card facts tall" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
      report.notes.map((note) => el("p", { class: "note amber" }, note)));
  }

  const skipped = report.skipped.map((each) => [each.file, each.reason, number(each.count), each.first ? number(each.first) : ""]);
  document.getElementById("page").append(
    el("div", { class: "bar" }, el("div", { class: "wrap" }, el("b", {}, "Backtest"), el("span", { class: "rules" }, report.rules.join(", ").slice(0, 300)), themeButton())),
    el("main", { class: "wrap" },
      el("div", { class: "lead" }, el("h1", {}, headline),
        el("p", {}, `${counted(report.judged, "moment")} of ${number(report.moments)} were judged. No agent ran, and no tool was called.`)),
      certainty(), differences(), labels(), failures(),
      table("Guesses", "These hooks read something that is not recorded, so their decisions are guesses.",
        [["hook"], ["what it read"], ["moments", "num"]], report.guesses.map((each) => [each.hook, each.read, number(each.count)])),
      table("Skipped", "These lines were not judged.",
        [["file"], ["why"], ["lines", "num"], ["first line", "num"]], skipped),
      computed()));
})();

// Draws a run that `hookline.explain` described as JSON.
//
// A run may have 50,000 moments, so only what is near the screen is drawn: rows (a step each) come in chunks, a chunk is
// filled when it comes near, and the body of a row is built when the row is opened.
"use strict";

(() => {
  const { el, number, counted, duration, cost, pill, diff } = hookline;
  const CHUNK = 12, FEW = 40, NS = "http://www.w3.org/2000/svg";
  // Points whose text says nothing that the page does not show elsewhere; drawn only if they have hooks.
  const QUIET = ["on_run_start", "on_run_end", "on_stop", "subagent_spawning", "subagent_spawned", "subagent_ended"];

  for (const root of document.querySelectorAll(".hookline-explain")) mount(root);

  function mount(root) {
    const { run, verbs, outcomes, statuses, decisions: approvals, only: ONLY } = hookline.data(root);
    const word = (verb) => (verbs[verb] || [verb, "grey"])[0], tone = (verb) => (verbs[verb] || [verb, "grey"])[1];

    // Rows: a step each, and a line for each nested run. Nested steps follow the step that started them.

    const rows = [], marks = [], rowOfMoment = new Map();
    const total = Math.max(run.elapsed || 0, run.until || 0, 1e-9);

    function collect(view, depth, outer) {
      for (const step of view.steps || []) {
        const row = { step, view, depth, outer, marks: [], tools: new Set(), text: null, open: null, element: null };
        rows.push(row);
        for (const item of step.items || []) {
          if (item.kind === "call") row.tools.add(item.tool);
          for (const moment of item.moments || []) {
            rowOfMoment.set(moment.n, row);
            for (const decision of moment.decisions || []) {
              if (decision.verb === "cont") continue;
              row.marks.push({ n: moment.n, at: moment.at, verb: decision.verb, hook: decision.hook, tool: item.tool || "", row });
            }
            if (!(moment.decisions || []).length && moment.verdict === "invalid") {
              row.marks.push({ n: moment.n, at: moment.at, verb: "invalid", hook: "", tool: item.tool || "", row });
            }
          }
        }
        marks.push(...row.marks);
        for (const item of step.items || []) {
          const inside = item.kind === "run" ? [item.run] : item.runs || [];
          for (const nested of inside) {
            const line = { nested, view: nested, depth: depth + 1, outer: row, marks: [], tools: new Set(), call: item, closed: false };
            rows.push(line);
            nested.row = line;
            collect(nested, depth + 1, line);
          }
        }
      }
    }
    collect(run, 0, null);
    const few = rows.length <= FEW;

    // The toolbar and the header.

    const filter = { only: "", hook: "", tool: "", query: "" };
    const counts = (key) => {
      const found = new Map();
      for (const mark of marks) found.set(mark[key], (found.get(mark[key]) || 0) + 1);
      return found;
    };
    const byVerb = counts("verb");
    const groups = Object.entries(ONLY).map(([name, wanted]) => [name, wanted, wanted.reduce((sum, verb) => sum + (byVerb.get(verb) || 0), 0)]).filter(([, , count]) => count);
    const segments = el("div", { class: "seg", role: "group", "aria-label": "Show" },
      el("button", { type: "button", "data-only": "", "aria-pressed": "true" }, "All", el("b", {}, number(run.events))),
      groups.map(([name, , count]) => el("button", { type: "button", "data-only": name, "aria-pressed": "false" }, name[0].toUpperCase() + name.slice(1), el("b", {}, number(count)))));
    segments.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) choose("only", button.dataset.only === filter.only ? "" : button.dataset.only);
    });
    let waiting;
    const search = el("input", { class: "field search", type: "search", placeholder: "Search", "aria-label": "Search texts, tools and hooks", oninput: () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => choose("query", search.value.trim().toLowerCase()), 120);
    } });
    const help = el("dialog", { class: "keys", "aria-label": "Keys" }, el("h2", {}, "Keys"),
      el("dl", {}, [["n", "next intervention of a hook"], ["p", "previous intervention"], ["/", "search"], ["Esc", "clear the search and all filters"], ["?", "this help"]].map(([key, text]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)])),
      el("button", { type: "button", class: "quiet", onclick: () => help.close() }, "Close"));
    const previous = el("button", { class: "quiet", type: "button", title: "Previous intervention (p)", "aria-label": "Previous intervention", onclick: () => step(-1) }, "↑");
    const next = el("button", { class: "quiet", type: "button", title: "Next intervention (n)", onclick: () => step(1) }, "Next ↓");
    const position = el("span", { class: "meta", "aria-live": "polite" });
    const bar = el("nav", { class: "bar", "aria-label": "Filters" }, el("div", { class: "wrap" }, segments, search, position, previous, next,
      el("button", { class: "quiet help", type: "button", title: "Keys (?)", "aria-label": "Keys", onclick: () => help.showModal() }, "?"), hookline.themeButton()));

    function header() {
      const tokens = `${number(run.input_tokens)} in, ${number(run.output_tokens)} out` + (run.cached_tokens ? `, ${number(run.cached_tokens)} cached` : "");
      const steps = (run.steps || []).filter((one) => one.index >= 0).length;
      const facts = [["agent", run.agent], ["model", run.model], ["steps", number(steps)], ["tool calls", number(run.tool_calls)], ["took", duration(run.elapsed || 0)], ["tokens", tokens], ["cost", cost(run.cost)], ["moments", number(run.events)]];
      return el("header", {},
        el("div", { class: "crumb" }, pill(run.status || "cut off", statuses[run.status || "cut off"]), el("span", { class: "mono" }, run.id), run.time ? el("time", { datetime: new Date(run.time * 1000).toISOString() }, new Date(run.time * 1000).toLocaleString()) : null),
        el("h1", {}, (run.task || "").trim() || "(no task)"),
        el("ul", { class: "facts" }, facts.filter(([, value]) => value).map(([name, value]) => el("li", {}, `${name} `, el("b", {}, value)))),
        (run.notes || []).map((note) => el("p", { class: "note amber" }, note)),
        el("div", { class: "card ending" },
          el("div", {}, el("div", { class: "label" }, "Why it stopped"), el("div", { class: "why" }, run.why)),
          run.reply ? el("div", {}, el("div", { class: "label" }, "Reply"), el("pre", {}, run.reply)) : null),
        strip());
    }

    /** Where the time went, and where hooks intervened. Intervals that touch are joined, so a long run is drawn fast too. */
    function strip() {
      const WIDTH = 1000, shapes = new Map(), lanes = Math.min(3, 1 + Math.max(0, ...rows.map((row) => row.depth)));
      const span = (name, from, to, lane) => {
        const key = `${name} ${lane}`;
        if (!shapes.has(key)) shapes.set(key, []);
        shapes.get(key).push([from / total * WIDTH, Math.max(to / total * WIDTH, from / total * WIDTH + 1.5)]);
      };
      for (const row of rows) {
        const lane = Math.min(row.depth, lanes - 1);
        for (const item of (row.step && row.step.items) || []) {
          if (!item.duration) continue;
          const last = (item.moments || []).findLast((moment) => moment.point === "after_llm" || moment.point === "after_tool");
          const until = last ? last.at : item.at + item.duration;
          if (item.kind === "model") span("model", until - item.duration, until, lane);
          if (item.kind === "call") span("tool", Math.max(item.at, until - item.duration), until, lane);
        }
      }
      for (const mark of marks) span(tone(mark.verb), mark.at - total / 800, mark.at + total / 800, -1);
      const svg = document.createElementNS(NS, "svg");
      svg.setAttribute("viewBox", `0 0 ${WIDTH} ${14 + lanes * 14}`);
      svg.setAttribute("height", 14 + lanes * 14);
      svg.setAttribute("preserveAspectRatio", "none");
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", "Timeline of the run");
      for (const [key, spans] of shapes) {
        const [name, lane] = key.split(" "), top = lane === "-1" ? 0 : 14 + Number(lane) * 14, tall = lane === "-1" ? 9 : 11;
        spans.sort((one, other) => one[0] - other[0]);
        let path = "", from = -1, to = -1;
        const close = () => { if (to > from) path += `M${from.toFixed(1)} ${top}H${to.toFixed(1)}V${top + tall}H${from.toFixed(1)}Z`; };
        for (const [begin, end] of spans) {
          if (begin <= to + 0.2) to = Math.max(to, end);
          else { close(); from = begin; to = end; }
        }
        close();
        const shape = document.createElementNS(NS, "path");
        shape.setAttribute("class", name);
        shape.setAttribute("d", path);
        svg.append(shape);
      }
      svg.addEventListener("click", (event) => {
        const at = event.offsetX / svg.clientWidth * total;
        let best = rows[0];
        for (const row of rows) if (row.step && row.step.at <= at && row.step.at >= (best.step ? best.step.at : 0)) best = row;
        go(best);
      });
      const legend = [["model", "model"], ["tool", "tools"], ...[...new Map([...byVerb.keys()].map((verb) => [tone(verb), verb])).keys()].map((name) => [name, [...byVerb.keys()].filter((verb) => tone(verb) === name).map(word).join(", ")])];
      return el("div", { class: "card strip" }, svg, el("div", { class: "legend" }, legend.map(([name, text]) => el("span", {}, el("i", { class: name }), text)), el("span", {}, `0 to ${duration(total)}`)));
    }

    // Filters by hook and tool.

    function choices() {
      const spoke = new Map(), registered = new Set(), called = new Map();
      for (const chain of run.chains || []) for (const hook of chain) registered.add(hook.name);
      for (const mark of marks) {
        if (!mark.hook) continue;
        registered.add(mark.hook);
        if (!spoke.has(mark.hook)) spoke.set(mark.hook, new Map());
        const verbs = spoke.get(mark.hook);
        verbs.set(mark.verb, (verbs.get(mark.verb) || 0) + 1);
      }
      for (const row of rows) for (const item of (row.step && row.step.items) || []) if (item.kind === "call") called.set(item.tool, (called.get(item.tool) || 0) + 1);
      const sum = (map) => [...map.values()].reduce((one, other) => one + other, 0);
      const hooks = [...spoke].sort((one, other) => sum(other[1]) - sum(one[1]));
      const silent = [...registered].filter((name) => !spoke.has(name));
      const choice = (kind, name, ...more) => el("button", { class: "choice", type: "button", "data-kind": kind, "data-name": name, "aria-pressed": "false", title: name, onclick: () => choose(kind, filter[kind] === name ? "" : name) }, el("span", { class: "name" }, name), more);
      const details = el("details", { class: "card filters" }, el("summary", {}, "Hooks and tools"),
        hooks.length ? [el("div", { class: "label" }, "Hooks that intervened"), hooks.map(([name, verbs]) => choice("hook", name, [...verbs].map(([verb, count]) => pill(`${number(count)} ${word(verb)}`, tone(verb)))))] : el("div", { class: "label" }, "No hook intervened"),
        called.size ? [el("div", { class: "label" }, "Tools"), [...called].sort((one, other) => other[1] - one[1]).map(([name, count]) => choice("tool", name, el("span", { class: "quiet-count" }, number(count))))] : null,
        silent.length ? [el("div", { class: "label" }, "Hooks that let everything pass"), el("div", { class: "quiet-count" }, silent.join(", "))] : null);
      const wide = matchMedia("(min-width: 981px)");
      details.open = wide.matches;
      wide.addEventListener("change", () => { details.open = wide.matches; });
      return details;
    }

    // Drawing rows.

    const list = el("div", { class: "rows" });
    const none = el("p", { class: "none", hidden: true }, "Nothing in this run matches. ", el("button", { class: "quiet", type: "button", onclick: clear }, "Show everything"));
    const lazy = hookline.lazyList(list, { size: CHUNK, height: 56, draw, drawn: highlight });

    function draw(row) {
      if (row.nested) {
        row.element = el("li", { class: "run-line row inner card" }, runLine(row));
      } else {
        row.element = el("li", { class: `row step card${row.depth ? " inner" : ""}` }, el("button", { type: "button", "aria-expanded": "false", onclick: () => toggle(row) }, summary(row)));
        row.body = null;
        if (row.open ?? (few || row.marks.length > 0 || filter.query !== "")) toggle(row, true, true);
      }
      row.element.style.setProperty("--depth", row.depth);
      return row.element;
    }

    function runLine(row) {
      const nested = row.nested, shown = el("span", { class: "meta" }, row.closed ? "show" : "hide");
      return el("button", { type: "button", "aria-expanded": String(!row.closed), onclick: () => { row.closed = !row.closed; apply(); } }, el("span", { class: "line" },
        pill(nested.status || "cut off", statuses[nested.status || "cut off"]), el("span", { class: "who" }, nested.agent || "a run"), el("span", { class: "reason" }, short(nested.task || "", 160)),
        el("span", { class: "meta" }, [counted((nested.steps || []).filter((one) => one.index >= 0).length, "step"), duration(nested.elapsed || 0), row.call && row.call.tool ? `started by ${row.call.tool}` : "started by a hook"].join(" · ")), shown));
    }

    const short = (text, length) => { const line = text.replace(/\s+/g, " ").trim(); return line.length > length ? `${line.slice(0, length - 1)}…` : line; };
    const argumentsLine = (call) => short((call.arguments || []).map(([name, value]) => `${name}: ${value}`).join(", "), 140);

    function summary(row) {
      const items = row.step.items || [], calls = items.filter((item) => item.kind === "call"), models = items.filter((item) => item.kind === "model");
      const last = models.at(-1), event = items.find((item) => item.kind === "event" && item.text);
      const text = calls.length ? "" : last ? last.text || last.error || "" : event ? event.text : "";
      const tokens = models.reduce((sum, call) => sum + (call.input_tokens || 0) + (call.output_tokens || 0), 0);
      const paid = models.reduce((sum, call) => sum + (call.cost || 0), 0);
      const title = row.step.index < 0 ? "Start" : `Step ${row.step.index + 1}`;
      const shown = new Map();
      for (const mark of row.marks) shown.set(`${mark.verb} ${mark.hook}`, mark);
      const spoken = [...shown.values()];
      return [
        el("span", { class: "title" }, title),
        el("span", { class: "sum" },
          calls.slice(0, 5).map((call) => el("span", { class: "what" }, el("b", { class: "mono" }, call.tool), call.outcome && call.outcome !== "ok" && !(call.outcome === "blocked" && spoken.some((mark) => mark.verb === "block")) ? [" ", pill(call.outcome, outcomes[call.outcome])] : null, calls.length === 1 ? ` ${argumentsLine(call)}` : "")),
          calls.length > 5 ? el("span", { class: "what" }, `and ${calls.length - 5} more`) : null,
          text ? el("span", { class: "what" }, short(text, 180)) : null,
          spoken.slice(0, 5).map((mark) => el("span", {}, pill(word(mark.verb), tone(mark.verb)), ` ${mark.hook}`)),
          spoken.length > 5 ? el("span", { class: "what" }, `and ${spoken.length - 5} more`) : null),
        el("span", { class: "meta" }, [tokens ? `${number(tokens)} tokens` : "", paid ? cost(paid) : "", duration(Math.max(0, row.step.until - row.step.at) || null), `+${duration(row.step.at || 0)}`].filter(Boolean).join(" · ")),
      ];
    }

    function toggle(row, open = !row.element.classList.contains("open"), silent = false) {
      if (!silent) row.open = open;
      if (open && !row.body) {
        row.body = el("div", { class: "body" }, (row.step.items || []).map((one) => drawItem(one, row.step)));
        row.element.append(row.body);
      }
      if (row.body) row.body.hidden = !open;
      row.element.classList.toggle("open", open);
      row.element.firstChild.setAttribute("aria-expanded", String(open));
      if (!silent) highlight();
    }

    const item = (dot, ...parts) => el("div", { class: "item" }, el("span", { class: `dot ${dot}` }), el("div", {}, ...parts));
    const at = (moments, ...points) => (moments || []).filter((moment) => points.includes(moment.point)).map(point);

    function drawItem(one, step) {
      if (one.kind === "model") return modelCall(one, step);
      if (one.kind === "call") return toolCall(one);
      if (one.kind === "run") return item("model", el("div", { class: "line" }, nestedLink(one.run)));
      const drawn = one.moments.map(point), name = one.moments[0].point, alone = drawn.every((part) => part === null);
      const text = QUIET.includes(name) ? "" : one.text;
      if (alone && !text) return null;
      return item(one.bad ? "bad" : "", text ? el("div", { class: one.bad ? "bad-text" : "" }, alone ? el("code", { class: "meta" }, `${name} `) : null, text) : null, drawn);
    }

    function modelCall(call, step) {
      const tokens = call.answered && (call.input_tokens || call.output_tokens) ? `${number(call.input_tokens)} in, ${number(call.output_tokens)} out${call.cached_tokens ? `, ${number(call.cached_tokens)} cached` : ""}` : "";
      const facts = [call.model, call.duration ? duration(call.duration) : "", tokens, call.cost ? cost(call.cost) : "", call.finish_reason && !["stop", "tool_calls"].includes(call.finish_reason) ? `finished: ${call.finish_reason}` : ""];
      const messages = call.messages || [], sent = (call.kept || 0) + messages.length;
      const lost = (call.calls || []).filter((name) => !step.items.some((other) => other.kind === "call" && other.tool === name));
      const by = call.source && call.source !== "model" ? call.source : "";
      return item(call.error ? "bad" : "model",
        el("div", { class: "line" }, el("span", { class: "who" }, by ? `Answered by ${by}` : (call.purpose || "step") === "step" ? "Model" : `Model, for ${call.purpose}`), (call.attempt || 1) > 1 ? pill(`attempt ${call.attempt}`) : null, el("span", { class: "meta" }, facts.filter(Boolean).join(" · "))),
        sent ? el("details", { class: "more" }, el("summary", {}, `${counted(sent, "message")}${call.kept ? `, ${number(messages.length)} new` : ""}${call.tools ? `, ${counted(call.tools, "tool")}` : ""}`),
          el("dl", { class: "messages" }, messages.map((message) => [el("dt", {}, message.role), el("dd", {}, message.known ? el("span", { class: "fold" }, message.role === "tool" ? `the result of ${message.name || "the call"}` : "the reply above") : message.text ? el("pre", {}, message.text) : null, (message.calls || []).length ? el("span", { class: "fold" }, ` calls ${message.calls.join(", ")}`) : null)]))) : null,
        at(call.moments, "before_llm"),
        call.error ? el("pre", { class: "box bad" }, call.error) : null,
        call.text ? el("pre", { class: "text" }, call.text) : null,
        lost.length ? el("div", { class: "meta" }, `calls ${lost.join(", ")}`) : call.answered && !(call.calls || []).length && !call.text ? el("div", { class: "meta" }, "an empty reply") : null,
        at(call.moments, "on_token", "after_llm", "on_error"));
    }

    function toolCall(call) {
      const fine = ["ok", "answered", ""].includes(call.outcome || "");
      const changed = (call.moments || []).some((moment) => moment.point === "after_tool" && (moment.decisions || []).some((decision) => (decision.changes || []).length));
      const told = (call.moments || []).some((moment) => (moment.decisions || []).some((decision) => decision.verb === "block" && decision.value === call.result));
      const asked = (call.questions || []).length > 0;
      return item(fine ? "call" : "bad",
        el("div", { class: "line" }, el("span", { class: "who mono" }, call.tool), pill(call.outcome || "no result recorded", outcomes[call.outcome]), (call.attempts || 1) > 1 ? pill(`attempt ${call.attempts}`) : null, (call.labels || []).map((label) => pill(`label: ${label}`, "violet")), el("span", { class: "meta" }, [call.duration ? duration(call.duration) : "", call.id].filter(Boolean).join(" · "))),
        (call.arguments || []).length ? el("dl", { class: "args box call" }, call.arguments.map(([name, value]) => [el("dt", { class: "mono" }, name), el("dd", {}, el("pre", {}, value))])) : null,
        call.raw ? [el("div", { class: "label" }, "The arguments were not a JSON object"), el("pre", { class: "box bad" }, call.raw)] : null,
        at(call.moments, "before_tool"),
        asked ? el("div", { class: "line" }, pill(call.decision || "no answer", approvals[call.decision]), call.decided_by ? el("span", { class: "who" }, call.decided_by) : null, el("span", { class: "reason" }, call.questions.join(" ")), call.message ? el("span", { class: "reason" }, call.message) : null) : null,
        at(call.moments, "approval_requested", "approval_decided", "on_progress", "tool_end_with_path"),
        (call.runs || []).map((nested) => el("div", { class: "line" }, nestedLink(nested))),
        call.result && !told ? el("details", { class: "more", open: !changed && call.result.length < 1500 }, el("summary", {}, fine ? "Result" : "The model reads"), el("pre", { class: `box${fine ? "" : " bad"}` }, call.result)) : null,
        at(call.moments, "after_tool", "on_error"));
    }

    const nestedLink = (nested) => el("button", { class: "quiet", type: "button", onclick: () => go(nested.row) }, `↳ ${nested.agent || "a run"}: ${counted((nested.steps || []).filter((one) => one.index >= 0).length, "step")}, ${nested.status || "cut off"}`);

    /** One point: its hooks in firing order, and what they decided. Nothing if the point has no hooks. */
    function point(moment) {
      const chain = run.chains[moment.chain || 0] || [], decisions = [...(moment.decisions || [])], parts = [], others = [];
      chain.forEach((hook, index) => {
        const found = decisions.findIndex((decision) => decision.hook === hook.name && decision.phase === hook.phase);
        if (found >= 0) {
          const decision = decisions.splice(found, 1)[0];
          parts.push(el("span", { class: decision.verb === "cont" ? "passed" : `spoke ${tone(decision.verb)}`, title: `${hook.phase}: ${word(decision.verb)}` }, hook.name));
        } else if (hook.selected === false) others.push(hook.name);
        else if ((moment.skipped || []).includes(index)) parts.push(el("span", { class: "skipped", title: `${hook.phase}: not called, because an earlier hook decided` }, hook.name));
        else parts.push(el("span", { class: "passed", title: `${hook.phase}: let it pass` }, hook.name));
      });
      for (const decision of decisions) parts.push(el("span", { class: `spoke ${tone(decision.verb)}` }, decision.hook));
      if (!parts.length && !(moment.notes || []).length && !others.length) return null;
      if (others.length) parts.push(el("span", { class: "others", title: `for other tools: ${others.join(", ")}` }, parts.length ? `${others.length} for other tools` : `no hook for this tool (${others.length} for others)`));
      return el("div", { class: "point", id: `m${moment.n}` },
        el("div", { class: "line" }, el("a", { class: "anchor", href: `#m${moment.n}`, title: "Link to this moment" }, `#${moment.n}`), el("code", {}, moment.point), el("span", { class: "chain" }, parts), moment.took ? el("span", { class: "meta" }, duration(moment.took)) : null),
        (moment.decisions || []).map(decision),
        (moment.checked || []).map((change) => el("div", { class: "decision grey" }, el("div", { class: "line" }, el("span", { class: "who" }, "validation"), el("span", { class: "reason" }, `changed ${change.field}`)), diff(change.parts))),
        moment.verdict === "invalid" ? el("div", { class: "decision red" }, el("div", { class: "line" }, pill("invalid", "red"), el("span", { class: "reason" }, "the arguments do not match the tool's schema, so no guard was called"))) : null,
        (moment.notes || []).map((note) => el("div", { class: "meta" }, note)));
    }

    function decision(one) {
      const said = one.value && !["claim", "merge"].includes(one.verb) && !(one.verb === "ask");
      return el("div", { class: `decision ${tone(one.verb)}` },
        el("div", { class: "line" }, pill(word(one.verb), tone(one.verb)), el("span", { class: "who" }, one.hook), el("span", { class: "meta" }, [one.phase, one.took ? duration(one.took) : ""].filter(Boolean).join(" · ")), one.error ? el("span", { class: "bad-text" }, one.error) : one.reason ? el("span", { class: "reason" }, one.reason) : null),
        said ? el("div", { class: "said" }, one.value) : one.value ? el("div", { class: "said mono" }, one.value) : null,
        (one.changes || []).map((change) => [el("div", { class: "label" }, change.field), diff(change.parts)]),
        one.verb === "replace" && !(one.changes || []).length ? el("div", { class: "meta" }, "the same values as before") : null,
        (one.state || []).map((change) => [el("div", { class: "label" }, `state: ${change.field}`), diff(change.parts)]));
    }

    // Filters, search, and moving from one intervention to the next.

    function choose(kind, value) {
      filter[kind] = value;
      for (const button of segments.children) button.setAttribute("aria-pressed", String(button.dataset.only === filter.only));
      for (const button of aside.querySelectorAll(".choice")) button.setAttribute("aria-pressed", String(filter[button.dataset.kind] === button.dataset.name));
      apply();
    }

    function clear() {
      Object.assign(filter, { only: "", hook: "", tool: "", query: "" });
      search.value = "";
      choose("query", "");
    }

    const wants = (mark) => (!filter.only || ONLY[filter.only].includes(mark.verb)) && (!filter.hook || mark.hook === filter.hook) && (!filter.tool || mark.tool === filter.tool);

    function matches(row) {
      if (row.nested) return false;
      if ((filter.only || filter.hook) && !row.marks.some(wants)) return false;
      if (filter.tool && !row.tools.has(filter.tool)) return false;
      return !filter.query || textOf(row).includes(filter.query);
    }

    /** All texts of a row in lower case; made when somebody searches. */
    function textOf(row) {
      if (row.text === null) {
        const texts = [], walk = (value) => {
          if (typeof value === "string") texts.push(value);
          else if (Array.isArray(value)) value.forEach(walk);
          else if (value && typeof value === "object") for (const [key, inner] of Object.entries(value)) if (key !== "runs" && key !== "run" && key !== "kind") walk(inner);
        };
        walk(row.step.items || []);
        row.text = texts.join("\n").toLowerCase();
      }
      return row.text;
    }

    function apply() {
      const active = filter.only || filter.hook || filter.tool || filter.query;
      const shown = new Set();
      for (const row of rows) {
        if (active ? !matches(row) : false) continue;
        if (!active && hidden(row)) continue;
        shown.add(row);
        if (active) for (let outer = row.outer; outer; outer = outer.outer) if (outer.nested) shown.add(outer);
      }
      none.hidden = shown.size > 0;
      current = -1;
      lazy.show(rows.filter((row) => shown.has(row)));
      tell();
    }

    const hidden = (row) => { for (let outer = row.outer; outer; outer = outer.outer) if (outer.nested && outer.closed) return true; return false; };

    let current = -1;
    const stops = () => {
      const active = filter.only || filter.hook || filter.tool || filter.query, found = new Map();
      for (const mark of marks) if (!active || (wants(mark) && (!filter.query || matches(mark.row)))) found.set(mark.n, mark);
      return [...found.values()];
    };
    const tell = () => { const all = stops(); position.textContent = all.length ? `${current < 0 ? "–" : current + 1}/${number(all.length)}` : ""; previous.disabled = next.disabled = !all.length; };

    function step(by) {
      const all = stops();
      if (!all.length) return;
      current = current < 0 ? (by > 0 ? 0 : all.length - 1) : (current + by + all.length) % all.length;
      go(all[current].row, all[current].n);
      tell();
    }

    /** Show a row, and one of its moments. */
    function go(row, n) {
      if (!row) return;
      if (!lazy.reach(row)) {
        for (let outer = row.outer; outer; outer = outer.outer) if (outer.nested) outer.closed = false;
        clear();
        lazy.reach(row);
      }
      if (row.step) toggle(row, true, true);
      hookline.goTo((n !== undefined && row.element.querySelector(`#m${n}`)) || row.element);
      if (n !== undefined) try { history.replaceState(null, "", `#m${n}`); } catch { /* not allowed in an embedded page */ }
    }

    function highlight() {
      if (typeof Highlight === "undefined") return;
      CSS.highlights.delete("found");
      if (!filter.query) return;
      const ranges = [], walker = document.createTreeWalker(list, NodeFilter.SHOW_TEXT);
      for (let node = walker.nextNode(); node && ranges.length < 2000; node = walker.nextNode()) {
        const text = node.data.toLowerCase();
        for (let start = text.indexOf(filter.query); start >= 0 && text.length === node.data.length; start = text.indexOf(filter.query, start + 1)) {
          const range = new Range();
          range.setStart(node, start);
          range.setEnd(node, start + filter.query.length);
          ranges.push(range);
        }
      }
      if (ranges.length) CSS.highlights.set("found", new Highlight(...ranges));
    }

    document.addEventListener("keydown", (event) => {
      if (event.metaKey || event.ctrlKey || event.altKey || help.open) return;
      if (event.key === "Escape") { clear(); search.blur(); return; }
      if (event.target.closest("input, textarea, select")) return;
      const action = { n: () => step(1), p: () => step(-1), "/": () => search.focus(), "?": () => help.showModal() }[event.key];
      if (action) { event.preventDefault(); action(); }
    });
    const openAnchor = () => {
      const found = /^#m(\d+)$/.exec(location.hash);
      if (found) go(rowOfMoment.get(Number(found[1])), Number(found[1]));
    };
    addEventListener("hashchange", openAnchor);

    const aside = choices();
    root.append(bar, el("div", { class: "wrap" }, header(), el("div", { class: "columns" }, el("main", {}, list, none), aside)), help);
    apply();
    openAnchor();
  }
})();

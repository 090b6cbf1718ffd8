// Draws a run that `hookline.explain` described as JSON.
//
// A run may have 50,000 moments, so only what is near the screen is drawn: rows (a step each) are drawn in chunks, when
// they come near, and the body of a row is built when the row is opened.
"use strict";

(() => {
  const { el, draw: shape, gate, number, counted, duration, cost, pill, diff } = hookline;
  const CHUNK = 6, FEW = 40;
  const KEYS = {
    n: "next intervention of a hook",
    p: "previous intervention",
    "/": "search",
    Esc: "clear the search and all filters",
    "?": "this help",
  };

  const short = (text, length) => {
    const line = text.replace(/\s+/g, " ").trim();
    return line.length > length ? `${line.slice(0, length - 1)}…` : line;
  };
  const joined = (...facts) => facts.filter(Boolean).join(" · ");
  const stepCount = (view) => counted(view.step_count || 0, "step");
  const statusOf = (view) => view.status || "interrupted";
  const decisionsOf = (moments) => (moments || []).flatMap((moment) => moment.decisions || []);

  for (const root of document.querySelectorAll(".hookline-explain")) mount(root);

  function mount(root) {
    const { run, verbs, outcomes, statuses, decisions: approvals, only: groups, quiet, gates, asked, signs } = hookline.data(root);
    const word = (verb) => (verbs[verb] || [verb])[0];
    const tone = (verb) => (verbs[verb] || ["", approvals[verb] || "grey"])[1];
    const isOpen = (verb, n) => verb === "ask" && asked[n]; // nobody has answered
    const stateOf = (verb, n) => isOpen(verb, n) || gates[verb] || "changed"; // as gate_of in words.py
    const saidOf = (verb, n) => (isOpen(verb, n) ? signs[asked[n]].word : word(verb));
    const toneOf = (verb, n) => (isOpen(verb, n) ? signs[asked[n]].tone : tone(verb));
    const markOf = (state) => hookline.mark(state, signs[state]);
    const verbPill = (verb, n) => el("span", { class: "verb" }, markOf(stateOf(verb, n)), pill(saidOf(verb, n), toneOf(verb, n)));
    const statusPill = (view) => pill(statusOf(view), statuses[statusOf(view)]);

    // Rows: a step each, and a line for each nested run, whose steps follow the step that started them. A mark is an
    // intervention of a hook, or of a person who denied a call.

    const rows = [], marks = [], rowOfMoment = new Map();
    collect(run, 0, null);
    const few = rows.length <= FEW;
    const total = Math.max(run.elapsed || 0, run.until || 0, 1e-9);
    const isOf = (group, mark) => (group === "blocked" ? mark.refused : groups[group].includes(mark.verb));

    function collect(view, depth, outer) {
      for (const step of view.steps || []) {
        const row = { step, depth, outer, marks: [], tools: new Set(), text: null, open: null, element: null };
        rows.push(row);
        for (const item of step.items || []) {
          if (item.kind === "call") row.tools.add(item.tool);
          for (const moment of item.moments || []) {
            rowOfMoment.set(moment.n, row);
            for (const [verb, hook, refused] of interventions(moment)) {
              row.marks.push({ n: moment.n, at: moment.at, verb, hook, refused, tool: item.tool || "", row });
            }
          }
          const last = (item.moments || []).at(-1);
          if (item.decision === "denied" && last) {
            const numbers = new Set(item.moments.map((moment) => moment.n));
            const claim = row.marks.findLast((mark) => mark.verb === "claim" && numbers.has(mark.n));
            const denial = { n: last.n, at: last.at, verb: "denied", hook: item.decided_by || "", refused: true, tool: item.tool, row };
            if (claim) claim.refused = true;
            else row.marks.push(denial);
          }
        }
        for (const mark of row.marks) marks.push(mark);
        for (const item of step.items || []) {
          for (const nested of item.kind === "run" ? [item.run] : item.runs || []) {
            const line = { nested, depth: depth + 1, outer: row, marks: [], call: item, closed: false };
            rows.push(line);
            nested.row = line;
            collect(nested, depth + 1, line);
          }
        }
      }
    }

    function interventions(moment) {
      const decisions = (moment.decisions || []).filter((one) => one.verb !== "cont");
      const found = decisions.map((one) => [one.verb, one.hook, Boolean(one.refused)]);
      return found.length || moment.verdict !== "invalid" ? found : [["invalid", "", false]];
    }

    // The toolbar.

    const filter = { only: "", hook: "", tool: "", query: "" };
    const isFiltered = () => Object.values(filter).some(Boolean);

    const segment = (name, text, count) => el("button", {
      type: "button", "data-only": name, "aria-pressed": String(!name),
      onclick: () => choose("only", filter.only === name ? "" : name),
    }, text, el("b", {}, number(count)));
    const segments = el("div", { class: "seg", role: "group", "aria-label": "Show" }, segment("", "All", run.events));
    for (const name of Object.keys(groups)) {
      const count = marks.filter((mark) => isOf(name, mark)).length;
      if (count) segments.append(segment(name, name[0].toUpperCase() + name.slice(1), count));
    }

    let typing;
    const search = el("input", {
      class: "field search", type: "search", placeholder: "Search", "aria-label": "Search texts, tools and hooks",
      oninput: () => {
        clearTimeout(typing);
        typing = setTimeout(() => choose("query", search.value.trim().toLowerCase()), 120);
      },
    });
    const help = el("dialog", { class: "keys", "aria-label": "Keys" },
      el("h2", {}, "Keys"),
      el("dl", {}, Object.entries(KEYS).map(([key, text]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)])),
      el("button", { type: "button", class: "quiet", onclick: () => help.close() }, "Close"));
    const button = (text, title, onclick) =>
      el("button", { class: "quiet", type: "button", title, "aria-label": title, onclick }, text);
    const previous = button("↑", "Previous intervention (p)", () => step(-1));
    const next = button("Next ↓", "Next intervention (n)", () => step(1));
    const keys = button("?", "Keys (?)", () => help.showModal());
    keys.classList.add("help");
    const position = el("span", { class: "meta", "aria-live": "polite" });
    const bar = el("nav", { class: "bar", "aria-label": "Filters" },
      el("div", { class: "wrap" }, segments, search, position, previous, next, keys, hookline.themeButton()));

    // The header.

    function header() {
      const started = new Date(run.time * 1000);
      const cached = run.cached_tokens ? `, ${number(run.cached_tokens)} cached` : "";
      const below = run.subagents;
      const facts = {
        agent: run.agent,
        model: run.model,
        steps: number(run.step_count || 0),
        "tool calls": number(run.tool_calls),
        subagents: below && below.runs && `${number(below.runs)} (${counted(below.steps || 0, "step")}, ${counted(below.tool_calls || 0, "tool call")})`,
        took: duration(run.elapsed || 0),
        tokens: `${number(run.input_tokens)} in, ${number(run.output_tokens)} out${cached}`,
        cost: cost(run.cost),
        moments: number(run.events),
        rules: (run.rules || "").slice(0, 8),
      };
      return el("header", {},
        el("div", { class: "crumb" },
          statusPill(run),
          el("span", { class: "mono" }, run.id),
          run.time ? el("time", { datetime: started.toISOString() }, started.toLocaleString()) : null),
        el("h1", {}, (run.task || "").trim() || (run.has_texts === false ? `A run of ${run.agent}` : "(no task)")),
        el("ul", { class: "facts" }, Object.entries(facts).map(([name, value]) =>
          value ? el("li", {}, `${name} `, el("b", {}, value)) : null)),
        (run.notes || []).map((note) => el("p", { class: "note amber" }, note)),
        el("div", { class: "card ending" },
          el("div", {}, el("div", { class: "label" }, "Why it stopped"), el("div", { class: "why" }, run.why)),
          run.reply ? el("div", {}, el("div", { class: "label" }, "Reply"), el("pre", {}, run.reply)) : null),
        strip());
    }

    /** Where the time went, and where hooks intervened. Spans that touch are joined: a long run is drawn fast too. */
    function strip() {
      const width = 1000, lane = 14, lanes = Math.min(3, 1 + rows.reduce((most, row) => Math.max(most, row.depth), 0));
      const shapes = new Map();
      const add = (name, from, to, top, height) => {
        const key = name + top, left = from / total * width;
        let found = shapes.get(key);
        if (!found) shapes.set(key, found = { name, top, height, spans: [] });
        found.spans.push([left, Math.max(to / total * width, left + 1.5)]);
      };
      for (const row of rows) {
        const top = Math.min(row.depth, lanes - 1) * lane;
        for (const item of (row.step && row.step.items) || []) {
          if (!item.duration) continue;
          const last = item.moments.findLast((one) => one.point === "after_llm" || one.point === "after_tool");
          const until = last ? last.at : item.at + item.duration;
          add(item.kind === "call" ? "tool" : "model", Math.max(item.at, until - item.duration), until, top, 11);
        }
      }
      const height = lanes * lane;
      const svg = shape("svg", {
        viewBox: `0 0 ${width} ${height}`, height, preserveAspectRatio: "none", role: "img", "aria-label": "Timeline",
      });
      for (const each of shapes.values()) svg.append(shape("path", { class: each.name, d: outline(each) }));
      svg.addEventListener("click", (event) => {
        const at = event.offsetX / svg.clientWidth * total;
        go(rows.filter((row) => row.step && row.step.at <= at).at(-1) || rows[0]);
      });

      const legend = ["model", "tool"].map((name) => el("span", {}, el("i", { class: name }), name === "tool" ? "tools" : name));
      const said = new Map();
      for (const { verb, n } of marks) {
        said.set(stateOf(verb, n), (said.get(stateOf(verb, n)) || new Set()).add(saidOf(verb, n)));
      }
      for (const [state, texts] of said) legend.push(el("span", {}, markOf(state), [...texts].join(", ")));
      return el("div", { class: "card strip" }, gatesOverTime(), svg,
        el("div", { class: "legend" }, legend, el("span", {}, `0 to ${duration(total)}`)));
    }

    /** The line of the run: where hooks intervened. Of signs in the same place, the weightiest is drawn last. */
    function gatesOverTime() {
      const places = new Map(), order = Object.keys(signs);
      for (const mark of marks) {
        const place = Math.round(mark.at / total * 200), state = stateOf(mark.verb, mark.n);
        if (order.indexOf(state) > order.indexOf(places.get(place))) places.set(place, state);
      }
      const line = shape("svg", { class: "gates", height: 18, role: "img", "aria-label": "Interventions of hooks" },
        shape("line", { class: "wire", x1: 0, x2: "100%", y1: 9, y2: 9 }));
      for (const [place, state] of places) {
        line.append(shape("svg", { x: `${place / 2}%`, y: 9, overflow: "visible" }, gate(state, signs[state])));
      }
      return line;
    }

    function outline({ spans, top, height }) {
      let path = "", from = 0, to = -1;
      const close = () => {
        if (to > from) path += `M${from.toFixed(1)} ${top}H${to.toFixed(1)}V${top + height}H${from.toFixed(1)}Z`;
      };
      for (const [begin, end] of spans.sort((one, other) => one[0] - other[0])) {
        if (begin <= to + 0.2) {
          to = Math.max(to, end);
        } else {
          close();
          [from, to] = [begin, end];
        }
      }
      close();
      return path;
    }

    // Filters by hook and tool.

    function choices() {
      const spoke = new Map(), silent = new Set(), called = new Map();
      for (const mark of marks) {
        if (!mark.hook) continue;
        if (!spoke.has(mark.hook)) spoke.set(mark.hook, new Map());
        const counts = spoke.get(mark.hook);
        counts.set(mark.verb, (counts.get(mark.verb) || 0) + 1);
      }
      for (const chain of run.chains || []) for (const hook of chain) if (!spoke.has(hook.name)) silent.add(hook.name);
      for (const row of rows) {
        for (const item of (row.step && row.step.items) || []) {
          if (item.kind === "call") called.set(item.tool, (called.get(item.tool) || 0) + 1);
        }
      }
      const sum = (counts) => [...counts.values()].reduce((one, other) => one + other, 0);
      const choice = (kind, name, ...more) => el("button", {
        class: "choice", type: "button", title: name, "data-kind": kind, "data-name": name, "aria-pressed": "false",
        onclick: () => choose(kind, filter[kind] === name ? "" : name),
      }, el("span", { class: "name" }, name), more);
      const hooks = [...spoke].sort((one, other) => sum(other[1]) - sum(one[1])).map(([name, counts]) =>
        choice("hook", name, [...counts].map(([verb, count]) => pill(`${number(count)} ${word(verb)}`, tone(verb)))));
      const tools = [...called].sort((one, other) => other[1] - one[1]).map(([name, count]) =>
        choice("tool", name, el("span", { class: "quiet-count" }, number(count))));
      const label = (text) => el("div", { class: "label" }, text);
      const details = el("details", { class: "card filters" },
        el("summary", {}, "Hooks and tools"),
        label(hooks.length ? "Hooks that intervened" : "No hook intervened"), hooks,
        tools.length ? [label("Tools"), tools] : null,
        silent.size ? label("Hooks that let everything pass") : null,
        el("div", { class: "quiet-count" }, [...silent].join(", ")));
      const wide = matchMedia("(min-width: 981px)");
      details.open = wide.matches;
      wide.addEventListener("change", () => { details.open = wide.matches; });
      return details;
    }

    // Rows.

    const list = el("div", { class: "rows" });
    const none = el("p", { class: "none", hidden: true }, "Nothing in this run matches. ",
      el("button", { class: "quiet", type: "button", onclick: clear }, "Show everything"));
    const lazy = hookline.lazyList(list, { size: CHUNK, height: 56, draw, drawn: highlight });

    function draw(row) {
      if (row.nested) {
        row.element = el("li", { class: "run-line row inner card" }, runLine(row));
      } else {
        const onclick = () => toggle(row);
        row.element = el("li", { class: `row step card${row.depth ? " inner" : ""}` },
          el("button", { type: "button", "aria-expanded": "false", onclick }, summary(row)));
        row.body = null;
        if (row.open ?? (few || row.marks.length > 0 || filter.query !== "")) show(row, true);
      }
      row.element.style.setProperty("--depth", row.depth);
      return row.element;
    }

    function runLine(row) {
      const starter = row.call.tool ? `started by ${row.call.tool}` : "started by a hook";
      const onclick = () => { row.closed = !row.closed; apply(); };
      return el("button", { type: "button", "aria-expanded": String(!row.closed), onclick },
        el("span", { class: "line" },
          statusPill(row.nested),
          el("span", { class: "who" }, row.nested.agent || "a run"),
          el("span", { class: "reason" }, short(row.nested.task || "", 160)),
          el("span", { class: "meta" }, joined(stepCount(row.nested), duration(row.nested.elapsed || 0), starter)),
          el("span", { class: "meta" }, row.closed ? "show" : "hide")));
    }

    function summary(row) {
      const items = row.step.items || [];
      const calls = items.filter((item) => item.kind === "call"), models = items.filter((item) => item.kind === "model");
      const reply = models.at(-1), event = items.find((item) => item.kind === "event" && item.text);
      const text = calls.length ? "" : reply ? reply.text || reply.error : event ? event.text : "";
      const tokens = models.reduce((sum, call) => sum + (call.input_tokens || 0) + (call.output_tokens || 0), 0);
      const paid = models.reduce((sum, call) => sum + (call.cost || 0), 0);
      const spoken = [...new Map(row.marks.map((mark) => [`${mark.verb} ${mark.hook}`, mark])).values()];
      const isBlocked = spoken.some((mark) => mark.verb === "block");
      const what = (...parts) => el("span", { class: "what" }, parts);
      const more = (count) => (count > 0 ? what(`and ${number(count)} more`) : null);
      const callText = (call) => what(
        el("b", { class: "mono" }, call.tool),
        ["ok", "", undefined].includes(call.outcome) || (call.outcome === "blocked" && isBlocked)
          ? null : [" ", pill(call.outcome, outcomes[call.outcome])],
        calls.length > 1 ? null : ` ${short((call.arguments || []).map((pair) => pair.join(": ")).join(", "), 140)}`);
      const took = Math.max(0, row.step.until - row.step.at);
      return [
        el("span", { class: "title" }, row.step.index < 0 ? "Start" : `Step ${row.step.index + 1}`),
        el("span", { class: "sum" },
          calls.slice(0, 5).map(callText), more(calls.length - 5),
          text ? what(short(text, 180)) : null,
          spoken.slice(0, 5).map((mark) => el("span", {}, verbPill(mark.verb, mark.n), ` ${mark.hook}`)),
          more(spoken.length - 5)),
        el("span", { class: "meta" }, joined(
          tokens && counted(tokens, "token"),
          paid && cost(paid),
          took && duration(took),
          `+${duration(row.step.at || 0)}`)),
      ];
    }

    function toggle(row) {
      row.open = !row.element.classList.contains("open");
      show(row, row.open);
      highlight();
    }

    function show(row, open) {
      if (open && !row.body) {
        row.body = el("div", { class: "body" }, (row.step.items || []).map((item) => drawItem(item, row.step)));
        row.element.append(row.body);
      }
      if (row.body) row.body.hidden = !open;
      row.element.classList.toggle("open", open);
      row.element.firstChild.setAttribute("aria-expanded", String(open));
    }

    // The parts of a step.

    const part = (dot, ...children) =>
      el("div", { class: "item" }, el("span", { class: `dot ${dot}` }), el("div", {}, children));
    const line = (...children) => el("div", { class: "line" }, children);
    // The small images among the attachments that a text names.
    const imagesIn = (text) => [...text.matchAll(/^\[attached: (.*), SHA-256 ([0-9a-f]{12})\]$/gm)]
      .filter(([, , digest]) => run.images?.[digest])
      .map(([, about, digest]) => el("img", { class: "thumb", src: run.images[digest], alt: about, title: about }));
    const points = (moments, ...names) => (moments || []).filter((one) => names.includes(one.point)).map(point);

    function drawItem(item, step) {
      if (item.kind === "model") return modelCall(item, step);
      if (item.kind === "call") return toolCall(item);
      if (item.kind === "run") return part("model", line(nestedLink(item.run)));
      const drawn = item.moments.map(point), name = item.moments[0].point, hasHooks = drawn.some(Boolean);
      const text = quiet.includes(name) ? "" : item.text;
      if (!hasHooks && !text) return null;
      const label = hasHooks ? null : el("code", { class: "meta" }, `${name} `);
      return part(item.bad ? "bad" : "",
        text ? el("div", { class: item.bad ? "bad-text" : "" }, label, text) : null,
        imagesIn(text || ""),
        drawn);
    }

    function modelCall(call, step) {
      const by = call.source && call.source !== "model" ? `Answered by ${call.source}` : "";
      const purpose = (call.purpose || "step") === "step" ? "Model" : `Model, for ${call.purpose}`;
      const cached = call.cached_tokens ? `, ${number(call.cached_tokens)} cached` : "";
      const used = call.input_tokens || call.output_tokens;
      const oddEnd = call.finish_reason && !["stop", "tool_calls"].includes(call.finish_reason);
      const isShown = (name) => step.items.some((other) => other.kind === "call" && other.tool === name);
      const lost = (call.calls || []).filter((name) => !isShown(name));
      const isEmpty = run.has_texts !== false && call.answered && !call.text && !(call.calls || []).length;
      return part(call.error ? "bad" : "model",
        line(
          el("span", { class: "who" }, by || purpose),
          (call.attempt || 1) > 1 ? pill(`attempt ${call.attempt}`) : null,
          el("span", { class: "meta" }, joined(
            call.model,
            call.duration && duration(call.duration),
            used && `${number(call.input_tokens)} in, ${number(call.output_tokens)} out${cached}`,
            call.cost && cost(call.cost),
            oddEnd && `finished: ${call.finish_reason}`))),
        messages(call),
        points(call.moments, "before_llm"),
        call.error ? el("pre", { class: "box bad" }, call.error) : null,
        call.text ? el("pre", { class: "text" }, call.text) : null,
        lost.length ? el("div", { class: "meta" }, `calls ${lost.join(", ")}`) : null,
        isEmpty ? el("div", { class: "meta" }, "an empty reply") : null,
        points(call.moments, "on_token", "after_llm", "on_error"));
    }

    function messages(call) {
      const sent = call.messages || [], all = (call.kept || 0) + sent.length;
      if (!all) return null;
      const fresh = call.kept && sent.length ? `, ${number(sent.length)} new` : "";
      const tools = call.tools ? `, ${counted(call.tools, "tool")}` : "";
      const textOfMessage = (message) => {
        if (!message.known) return message.text ? [el("pre", {}, message.text), imagesIn(message.text)] : null;
        const what = message.role === "tool" ? `the result of ${message.name || "the call"}` : "the reply above";
        return el("span", { class: "fold" }, what);
      };
      return el("details", { class: "more" },
        el("summary", {}, `${counted(all, "message")}${fresh}${tools}`),
        el("dl", { class: "messages" }, sent.map((message) => [
          el("dt", {}, message.role),
          el("dd", {},
            textOfMessage(message),
            (message.calls || []).length ? el("span", { class: "fold" }, ` calls ${message.calls.join(", ")}`) : null),
        ])));
    }

    function toolCall(call) {
      const isFine = ["ok", "answered", "", undefined].includes(call.outcome);
      const said = decisionsOf(call.moments);
      const isTold = said.some((one) => one.verb === "block" && one.value === call.result);
      const after = (call.moments || []).filter((one) => one.point === "after_tool");
      const isChanged = decisionsOf(after).some((one) => one.changes);
      const question = said.some((one) => one.verb === "ask") ? call.message : (call.questions || []).join(" ");
      return part(isFine ? "call" : "bad",
        line(
          el("span", { class: "who mono" }, call.tool),
          pill(call.outcome || "no result recorded", outcomes[call.outcome]),
          (call.attempts || 1) > 1 ? pill(`attempt ${call.attempts}`) : null,
          (call.labels || []).map((label) => pill(`label: ${label}`, "violet")),
          el("span", { class: "meta" }, joined(call.duration && duration(call.duration), call.id))),
        (call.arguments || []).length ? el("dl", { class: "args box call" }, call.arguments.map(([name, value]) =>
          [el("dt", { class: "mono" }, name), el("dd", {}, el("pre", {}, value))])) : null,
        call.raw ? el("div", { class: "label" }, "The arguments were not a JSON object") : null,
        call.raw ? el("pre", { class: "box bad" }, call.raw) : null,
        points(call.moments, "before_tool"),
        points(call.moments, "approval_requested", "approval_decided", "on_progress", "tool_end_with_path"),
        (call.questions || []).length || call.decision ? line(
          pill(call.decision || "no answer", approvals[call.decision]),
          call.decided_by ? el("span", { class: "who" }, call.decided_by) : null,
          el("span", { class: "reason" }, question)) : null,
        (call.runs || []).map((nested) => line(nestedLink(nested))),
        call.result && !isTold ? el("details", { class: "more", open: !isChanged && call.result.length < 1500 },
          el("summary", {}, isFine ? "Result" : "The model reads"),
          el("pre", { class: `box${isFine ? "" : " bad"}` }, call.result),
          imagesIn(call.result)) : null,
        points(call.moments, "after_tool", "on_error"));
    }

    const nestedLink = (nested) => el("button", { class: "quiet", type: "button", onclick: () => go(nested.row) },
      `↳ ${nested.agent || "a run"}: ${stepCount(nested)}, ${statusOf(nested)}`);

    /** One point: its hooks in firing order, and what they decided. Nothing if the point has no hooks. */
    function point(moment) {
      const unseen = [...(moment.decisions || [])], hooks = [], others = [];
      const hook = (kind, name, title, state) =>
        hooks.push(el("span", { class: kind, title }, state ? markOf(state) : null, name));
      (run.chains[moment.chain || 0] || []).forEach(({ name, phase, selected }, index) => {
        const found = unseen.findIndex((one) => one.hook === name && one.phase === phase);
        if (found >= 0) {
          const [{ verb }] = unseen.splice(found, 1);
          hook(verb === "cont" ? "passed" : `spoke ${toneOf(verb, moment.n)}`, name, `${phase}: ${saidOf(verb, moment.n)}`, stateOf(verb, moment.n));
        } else if (selected === false) {
          others.push(name);
        } else if ((moment.skipped || []).includes(index)) {
          hook("skipped", name, `${phase}: not called, because an earlier hook decided`, "skipped");
        } else {
          hook("passed", name, `${phase}: passed`, "passed");
        }
      });
      for (const { verb, hook: name, phase } of unseen) hook(`spoke ${toneOf(verb, moment.n)}`, name, `${phase}: ${saidOf(verb, moment.n)}`, stateOf(verb, moment.n));
      if (!hooks.length && !others.length && !(moment.notes || []).length) return null;
      if (others.length) {
        const count = others.length;
        const text = hooks.length ? `${count} for other tools` : `no hook for this tool (${count} for others)`;
        hook("others", text, `for other tools: ${others.join(", ")}`);
      }
      const anchor = el("a", { class: "anchor", href: `#m${moment.n}`, title: "Link to this moment" }, `#${moment.n}`);
      return el("div", { class: "point", id: `m${moment.n}` },
        line(anchor, el("code", {}, moment.point), el("span", { class: "chain" }, hooks),
          moment.took ? el("span", { class: "meta" }, duration(moment.took)) : null),
        (moment.decisions || []).map((one) => decision(one, moment.n)),
        (moment.checked || []).map((change) => el("div", { class: "decision grey" },
          line(el("span", { class: "who" }, "validation"), el("span", { class: "reason" }, `changed ${change.field}`)),
          diff(change.parts))),
        moment.verdict === "invalid" ? el("div", { class: "decision red" }, line(verbPill("invalid"),
          el("span", { class: "reason" }, "the arguments do not match the tool's schema, so no guard was called"))) : null,
        (moment.notes || []).map((note) => el("div", { class: "meta" }, note)));
    }

    function decision(one, n) {
      const change = (label) => (each) => [el("div", { class: "label" }, label + each.field), diff(each.parts)];
      return el("div", { class: `decision ${toneOf(one.verb, n)}` },
        line(
          verbPill(one.verb, n),
          el("span", { class: "who" }, one.hook),
          el("span", { class: "meta" }, joined(one.phase, one.took && duration(one.took))),
          el("span", { class: one.error ? "bad-text" : "reason" }, one.error || one.reason)),
        one.value ? el("div", { class: ["claim", "merge"].includes(one.verb) ? "said mono" : "said" }, one.value) : null,
        (one.changes || []).map(change("")),
        one.verb === "replace" && !one.changes ? el("div", { class: "meta" }, "the same values as before") : null,
        (one.state || []).map(change("state: ")));
    }

    // Filters and search.

    function choose(kind, value) {
      filter[kind] = value;
      for (const one of segments.children) one.setAttribute("aria-pressed", String(one.dataset.only === filter.only));
      for (const one of aside.querySelectorAll(".choice")) {
        one.setAttribute("aria-pressed", String(filter[one.dataset.kind] === one.dataset.name));
      }
      apply();
    }

    function clear() {
      Object.assign(filter, { only: "", hook: "", tool: "" });
      search.value = "";
      choose("query", "");
    }

    const wants = (mark) =>
      (!filter.only || isOf(filter.only, mark)) &&
      (!filter.hook || mark.hook === filter.hook) &&
      (!filter.tool || mark.tool === filter.tool);

    function matches(row) {
      if (row.nested) return false;
      if ((filter.only || filter.hook) && !row.marks.some(wants)) return false;
      if (filter.tool && !row.tools.has(filter.tool)) return false;
      return !filter.query || textOf(row).includes(filter.query);
    }

    /** All texts of a row in lower case; collected when somebody searches. */
    function textOf(row) {
      if (row.text === null) {
        const texts = [];
        const walk = (value, key) => {
          if (typeof value === "string") texts.push(value);
          else if (Array.isArray(value)) for (const one of value) walk(one, key);
          else if (value && typeof value === "object") for (const [name, one] of Object.entries(value)) {
            if (!["runs", "run", "kind"].includes(name)) walk(one, name);
          }
        };
        walk(row.step.items || []);
        row.text = texts.join("\n").toLowerCase();
      }
      return row.text;
    }

    const outerRuns = (row) => {
      const found = [];
      for (let outer = row.outer; outer; outer = outer.outer) if (outer.nested) found.push(outer);
      return found;
    };

    function apply() {
      const shown = isFiltered() ? matching() : rows.filter((row) => !outerRuns(row).some((outer) => outer.closed));
      none.hidden = shown.length > 0;
      current = -1;
      lazy.show(shown);
      tell();
    }

    function matching() {
      const shown = new Set();
      for (const row of rows) {
        if (!matches(row)) continue;
        shown.add(row);
        for (const outer of outerRuns(row)) shown.add(outer);
      }
      return rows.filter((row) => shown.has(row));
    }

    function highlight() {
      if (typeof Highlight === "undefined") return;
      CSS.highlights.delete("found");
      if (!filter.query) return;
      const ranges = [], walker = document.createTreeWalker(list, NodeFilter.SHOW_TEXT);
      while (ranges.length < 2000 && walker.nextNode()) {
        const node = walker.currentNode, text = node.data.toLowerCase();
        if (text.length !== node.data.length) continue; // a character whose lower case is longer
        for (let start = text.indexOf(filter.query); start >= 0; start = text.indexOf(filter.query, start + 1)) {
          const range = new Range();
          range.setStart(node, start);
          range.setEnd(node, start + filter.query.length);
          ranges.push(range);
        }
      }
      if (ranges.length) CSS.highlights.set("found", new Highlight(...ranges));
    }

    // From one intervention to the next.

    let current = -1;

    function stops() {
      const wanted = isFiltered() ? marks.filter((mark) => wants(mark) && (!filter.query || matches(mark.row))) : marks;
      return [...new Map(wanted.map((mark) => [mark.n, mark])).values()];
    }

    function tell() {
      const count = stops().length;
      position.textContent = count ? `${current < 0 ? "–" : current + 1}/${number(count)}` : "";
      previous.disabled = next.disabled = !count;
    }

    function step(by) {
      const all = stops();
      if (!all.length) return;
      current = current < 0 ? (by > 0 ? 0 : all.length - 1) : (current + by + all.length) % all.length;
      go(all[current].row, all[current].n);
      tell();
    }

    /** Scroll to a row, or to one of its moments. */
    function go(row, n) {
      if (!row) return;
      if (!lazy.reach(row)) {
        for (const outer of outerRuns(row)) outer.closed = false;
        clear();
        lazy.reach(row);
      }
      if (row.step) show(row, true);
      hookline.goTo((n !== undefined && row.element.querySelector(`#m${n}`)) || row.element);
      try {
        if (n !== undefined) history.replaceState(null, "", `#m${n}`);
      } catch {
        // not allowed in an embedded page
      }
    }

    function openAnchor() {
      const found = /^#m(\d+)$/.exec(location.hash);
      if (found) go(rowOfMoment.get(Number(found[1])), Number(found[1]));
    }

    const actions = { n: () => step(1), p: () => step(-1), "/": () => search.focus(), "?": () => help.showModal() };
    document.addEventListener("keydown", (event) => {
      if (event.metaKey || event.ctrlKey || event.altKey || help.open) return;
      if (event.key === "Escape") {
        clear();
        search.blur();
      } else if (actions[event.key] && !event.target.closest("input, textarea, select")) {
        event.preventDefault();
        actions[event.key]();
      }
    });
    addEventListener("hashchange", openAnchor);

    const aside = choices();
    const columns = el("div", { class: "columns" }, el("main", {}, list, none), aside);
    root.append(bar, el("div", { class: "wrap" }, header(), columns), help);
    apply();
    openAnchor();
  }
})();

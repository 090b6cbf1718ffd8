// The page of a proposal: what the agent does, what the rules would have done, and what they would have cost.
"use strict";

(() => {
  const { el, draw, number, counted, duration, pill, data, themeButton } = hookline;
  const { proposal, headline, about, toml } = data();
  const hasAttacks = proposal.judged.stopped.total > 0;
  const all = [...proposal.rules, ...proposal.left_out];
  const names = new Map(all.map((rule) => [rule.name, rule]));

  const percent = (share) => {
    const value = share * 100;
    return `${value.toFixed(value >= 10 || value === 0 ? 0 : value >= 0.1 ? 1 : 2)} %`;
  };
  const shareText = (share) => (share.total ? percent(share.hits / share.total) : "no calls");
  const interval = (share) => (share.total ? `${percent(share.low)} to ${percent(share.high)}` : "");
  const perDay = (value) => (value === null ? "" : `${value >= 10 ? Math.round(value) : Number(value.toPrecision(2))} a day`);
  const day = (time) => new Date(time * 1000).toISOString().slice(0, 10);
  const period = (part) => (part.first ? `${day(part.first)} to ${day(part.last)}` : "without times");

  /** A share as a bar of the whole width, with its interval. */
  function bar(share, tone) {
    const drawn = el("div", { class: `meter ${tone}`, role: "img", "aria-label": `${shareText(share)}, between ${interval(share)}` });
    if (!share.total) return drawn;
    const range = el("span", { class: "range" }), value = el("span", { class: "value" });
    range.style.left = `${share.low * 100}%`;
    range.style.width = `${Math.max(0.4, (share.high - share.low) * 100)}%`;
    value.style.width = `${(share.hits / share.total) * 100}%`;
    drawn.append(value, range);
    return drawn;
  }

  // What the rules would have done

  function outcome(name, judged, text) {
    const { interrupted, stopped } = judged, known = (share) => share.total && share.high > 0;
    return el("div", { class: "card outcome" },
      el("div", { class: "label" }, name),
      el("p", {}, text),
      el("div", { class: "measure" },
        el("span", {}, "Interrupted"),
        el("b", {}, shareText(interrupted)),
        el("small", {}, `${number(interrupted.hits)} of ${number(interrupted.total)} calls`, judged.by_day === null ? null : ` · ${perDay(judged.by_day)}`)),
      bar(interrupted, "amber"),
      known(interrupted) ? el("small", {}, `95 %: ${interval(interrupted)}`) : null,
      el("div", { class: "measure" },
        el("span", {}, "Attacks stopped"),
        el("b", {}, hasAttacks ? shareText(stopped) : "unknown"),
        hasAttacks && el("small", {}, `${number(stopped.hits)} of ${number(stopped.total)}`)),
      hasAttacks && bar(stopped, "blue"),
      hasAttacks && known(stopped) ? el("small", {}, `95 %: ${interval(stopped)}`) : null);
  }

  function outcomes() {
    const later = proposal.later;
    const nothing = { interrupted: { hits: 0, total: later.calls, low: 0, high: 0 }, stopped: { hits: 0, total: proposal.judged.stopped.total, low: 0, high: 0 }, by_day: later.first ? 0 : null };
    return el("section", { "aria-label": "What they would have done" },
      el("h2", {}, "What they would have done"),
      el("p", {}, `Judged by ${counted(later.calls, "call")} in the latest ${counted(later.runs, "run")} (${period(later)}), which no rule was learned from or chosen by.`),
      !hasAttacks && el("p", { class: "note amber" }, "No later call is labelled as bad, so what the rules stop is not known. Give records of attacks with --attacks, or label calls with hookline record label."),
      el("div", { class: "three" },
        outcome(counted(proposal.rules.length, "rule"), proposal.judged, "The proposed rules together."),
        outcome("Tool names", proposal.allow_list, "A list of the tools that were called, and nothing else."),
        outcome("Nothing", nothing, "No rule at all.")));
  }

  // The curve

  const WIDTH = 720, HEIGHT = 260, LEFT = 52, RIGHT = 16, TOP = 14, BOTTOM = 40;

  function curve() {
    const points = proposal.curve;
    if (!points.length) return null;
    const cost = (point) => (point.judged.interrupted.total ? point.judged.interrupted.hits / point.judged.interrupted.total : 0);
    const gain = hasAttacks ? (point) => point.judged.stopped.hits / point.judged.stopped.total : (point) => point.rules / points.length;
    const most = Math.max(0.001, ...points.map(cost)) * 1.08;
    const x = (value) => LEFT + (value / most) * (WIDTH - LEFT - RIGHT), y = (value) => HEIGHT - BOTTOM - value * (HEIGHT - TOP - BOTTOM);
    const label = hasAttacks ? "attacks stopped" : "rules";
    const drawn = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "curve", role: "img", "aria-label": `${label} against interrupted calls` });
    for (const part of [0, 0.25, 0.5, 0.75, 1]) {
      const text = hasAttacks ? percent(part) : number(Math.round(part * points.length));
      drawn.append(
        draw("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(part), y2: y(part) }),
        draw("text", { class: "tick end", x: LEFT - 8, y: y(part) + 4 }, text),
        draw("text", { class: "tick middle", x: x(part * most), y: HEIGHT - BOTTOM + 18 }, percent(part * most)));
    }
    drawn.append(
      draw("text", { class: "axis", x: LEFT, y: HEIGHT - 4 }, "interrupted calls"),
      draw("text", { class: "axis end", x: WIDTH - RIGHT, y: HEIGHT - 4 }, `up: ${label}`));
    const path = points.map((point) => `${x(cost(point)).toFixed(1)},${y(gain(point)).toFixed(1)}`);
    drawn.append(draw("polyline", { class: "line", points: [`${x(0)},${y(0)}`, ...path].join(" ") }));
    const dots = points.map((point) => draw("circle", { class: "dot", r: 4, cx: x(cost(point)), cy: y(gain(point)) }));
    drawn.append(...dots);
    const shown = el("div", { class: "picked", role: "status" });
    const slider = el("input", { type: "range", min: 0, max: points.length, step: 1, "aria-label": "Number of rules", oninput: () => pick(Number(slider.value)) });
    dots.forEach((dot, index) => dot.addEventListener("click", () => pick(index + 1)));

    function pick(count) {
      slider.value = String(count);
      dots.forEach((dot, index) => {
        dot.classList.toggle("in", index < count);
        dot.classList.toggle("at", index === count - 1);
      });
      const point = points[count - 1];
      if (!point) {
        shown.replaceChildren(el("b", {}, "No rule"), el("p", {}, "Nothing is interrupted, and nothing is stopped."));
        return;
      }
      const chosen = point.chosen.interrupted, limit = chosen.total ? Math.ceil((chosen.hits / chosen.total) * 10000) / 100 : 0;
      const given = count === proposal.rules.length ? ", as proposed here" : "";
      shown.replaceChildren(
        el("b", {}, `The first ${counted(count, "rule")}${given}`),
        el("p", {}, `${number(point.judged.interrupted.hits)} of ${number(point.judged.interrupted.total)} later calls interrupted, ${shareText(point.judged.interrupted)} (${interval(point.judged.interrupted)})`,
          point.judged.by_day === null ? "" : `, ${perDay(point.judged.by_day)}`,
          hasAttacks ? `; ${number(point.judged.stopped.hits)} of ${counted(point.judged.stopped.total, "attack")} stopped` : "", "."),
        el("p", {}, "The last of them: ", el("code", {}, point.name), names.has(point.name) ? ` – ${names.get(point.name).what}` : ""),
        el("p", {}, "To have these, choose ", el("code", {}, `--at-most ${limit}%`)));
    }
    pick(proposal.rules.length);
    return el("section", { "aria-label": "How much is enough" },
      el("h2", {}, "How much is enough"),
      el("p", {}, hasAttacks
        ? "Each next rule is the one that stops most further attacks for its further interruptions. Choose a point."
        : "Each next rule is the one with the fewest further interruptions. Choose a point."),
      el("div", { class: "card chart" }, drawn, slider, shown));
  }

  // What the agent does

  function use(argument) {
    const most = argument.values.length ? argument.values[0].calls : 1;
    return el("div", { class: "use" },
      el("header", {}, el("code", {}, argument.name),
        el("small", {}, `${counted(argument.calls, "call")}, ${counted(argument.distinct, "value")}`,
          argument.low === null ? "" : `, ${argument.low} to ${argument.high}`)),
      argument.values.map((value) => {
        const fill = el("span", { class: "fill" });
        fill.style.width = `${Math.max(1, (value.calls / most) * 100)}%`;
        return el("div", { class: "count" }, fill, el("span", { class: "text" }, value.text || "(empty)"), el("b", {}, number(value.calls)));
      }));
  }

  function tools() {
    return el("section", { "aria-label": "What the agent does" },
      el("h2", {}, "What the agent does"),
      el("p", {}, `${counted(proposal.calls, "call")} of ${counted(proposal.tools.length, "tool")} in ${counted(proposal.runs, "run")}.`),
      proposal.tools.map((tool, index) => el("details", { class: "card plain", open: index < 2 },
        el("summary", {}, el("code", {}, tool.tool), " ",
          el("small", {}, `${counted(tool.calls, "call")} in ${counted(tool.runs, "run")} · at most ${number(tool.most)} in a conversation`),
          tool.refused ? [" ", pill(`${number(tool.refused)} refused or bad`, "red")] : null),
        el("div", { class: "uses" }, tool.arguments.length ? tool.arguments.map(use) : el("p", { class: "none" }, "It has no arguments.")))));
  }

  // The rules

  function copyButton(text, node) {
    const button = el("button", { class: "quiet", type: "button", onclick: async () => {
      try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(node); }
    } }, "Copy");
    return button;
  }

  function exception(one) {
    const code = el("code", {}, one.command);
    return el("li", {}, el("pre", {}, one.shown), el("div", { class: "copy" }, code, copyButton(one.command, code)));
  }

  function rule(each) {
    const judged = each.judged.interrupted, chosen = each.chosen.interrupted, stopped = each.judged.stopped;
    return el("details", { class: "card rule" },
      el("summary", {},
        el("div", { class: "what" }, each.tool ? el("code", {}, each.tool) : el("b", {}, "every call"), ` ${each.what}`),
        el("div", { class: "numbers" },
          pill(judged.total ? `${number(judged.hits)} of ${number(judged.total)}` : "not judged", judged.hits ? "amber" : "grey"),
          hasAttacks && pill(`stops ${number(stopped.hits)}`, stopped.hits ? "blue" : "grey"))),
      el("div", { class: "body" },
        el("dl", { class: "tall" },
          el("dt", {}, "Name"), el("dd", {}, el("code", {}, each.name)),
          el("dt", {}, "Condition"), el("dd", {}, el("pre", {}, each.rule.when)),
          el("dt", {}, "Then"), el("dd", {}, `${each.rule.then}: ${each.rule.message}`),
          el("dt", {}, "Seen"), el("dd", {}, `${counted(each.calls, "time")} in ${counted(each.runs, "run")}`),
          el("dt", {}, "Chosen by"), el("dd", {}, chosen.total ? `${number(chosen.hits)} of ${counted(chosen.total, "call")} interrupted` : "no call of its tool"),
          el("dt", {}, "Judged by"), el("dd", {}, judged.total ? `${number(judged.hits)} of ${counted(judged.total, "call")} interrupted, ${shareText(judged)} (${interval(judged)})` : "no call of its tool")),
        each.exceptions.length ? el("div", { class: "exceptions" },
          el("div", { class: "label" }, counted(each.exception_count, "exception"), each.exceptions.length < each.exception_count ? `, the first ${each.exceptions.length}` : ""),
          el("ul", {}, each.exceptions.map(exception))) : null));
  }

  function rules() {
    const tools = [...new Set(proposal.rules.map((each) => each.tool || "every call"))].sort();
    const list = el("div", { class: "rules" });
    const show = (tool) => list.replaceChildren(...proposal.rules.filter((each) => !tool || (each.tool || "every call") === tool).map(rule));
    show("");
    return el("section", { "aria-label": "The rules" },
      el("h2", {}, "The rules"),
      proposal.rules.length ? el("p", {}, "All are in shadow mode until you remove shadow = true. A rule opens to show its condition, evidence and exceptions.") : el("p", { class: "none" }, "No rule pays."),
      tools.length > 1 && el("div", { class: "filters" }, el("select", { class: "field", "aria-label": "Tool", onchange: (event) => show(event.target.value) },
        el("option", { value: "" }, "All tools"), tools.map((tool) => el("option", { value: tool }, tool)))),
      list);
  }

  function leftOut() {
    if (!proposal.left_out.length) return null;
    return el("section", { "aria-label": "Left out" },
      el("h2", {}, "Left out"),
      el("p", {}, `${counted(proposal.left_out.length, "rule")} did not pay.`),
      el("div", { class: "card plain" }, el("div", { class: "scroll" }, el("table", {},
        el("thead", {}, el("tr", {}, el("th", {}, "rule"), el("th", {}, "usual"), el("th", { class: "num" }, "interrupts"), el("th", {}, "why it is left out"))),
        el("tbody", {}, proposal.left_out.map((each) => el("tr", {},
          el("td", {}, el("code", {}, each.name)), el("td", {}, each.what),
          el("td", { class: "num" }, each.judged.interrupted.total ? `${number(each.judged.interrupted.hits)} of ${number(each.judged.interrupted.total)}` : ""),
          el("td", {}, each.left_out))))))));
  }

  function file() {
    if (!proposal.rules.length) return null;
    const text = el("pre", { class: "file" }, toml);
    return el("section", { "aria-label": "The file" },
      el("h2", {}, "The file"),
      el("details", { class: "card plain" }, el("summary", {}, el("code", {}, "rules.toml"), ` ${counted(proposal.rules.length, "rule")}`),
        el("div", { class: "copy" }, copyButton(toml, text)), text));
  }

  function computed() {
    const part = (each) => `${counted(each.calls, "call")} in ${counted(each.runs, "run")}, ${period(each)}${each.attacks ? `, ${counted(each.attacks, "attack")}` : ""}`;
    const facts = [
      ...Object.entries(about),
      ["Learned from", part(proposal.learned)], ["Chosen by", part(proposal.chosen)], ["Judged by", part(proposal.later)],
      ["At most", `${proposal.at_most}, where the rules are chosen`],
      ["Read", `${counted(proposal.files, "file")}, ${counted(proposal.moments, "moment")}`],
      ["Intervals", "95 %, Wilson's; calls of one run count as less than calls of different runs"],
      ["Time", duration(proposal.seconds)],
    ];
    return el("section", { "aria-label": "How this was computed" },
      el("h2", {}, "How this was computed"),
      el("dl", { class: "card facts tall" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
      proposal.notes.map((note) => el("p", { class: "note amber" }, note)),
      proposal.skipped.map((each) => el("p", { class: "note red" }, `${each.file}: skipped ${number(each.count)}: ${each.reason}`)));
  }

  document.getElementById("page").append(
    el("div", { class: "bar" }, el("div", { class: "wrap" }, el("b", {}, "Proposed rules"), el("span", { class: "about" }, about.Records || ""), themeButton())),
    el("main", { class: "wrap" },
      el("div", { class: "lead" }, el("h1", {}, headline),
        el("p", {}, `Learned from ${counted(proposal.learned.runs, "run")}, chosen by ${number(proposal.chosen.runs)}, judged by the latest ${number(proposal.later.runs)}. No agent ran, and no tool was called.`)),
      outcomes(), curve(), rules(), tools(), leftOut(), file(), computed()));
})();

// What the pages of Hookline share: building elements, formatting, and the switch between light and dark.
//
// All text goes into the page with `append` and `textContent`: it comes from models and tools, and is never HTML.
"use strict";

const hookline = (() => {
  /** Create an element. Attributes `onclick` and the like are functions; children are elements, texts, or nothing. */
  function el(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "class") made.className = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value === true ? "" : value);
    }
    add(made, children);
    return made;
  }

  /** Create an element of a drawing. */
  function draw(tag, attributes, ...children) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  /** The sign of a gate, around 0,0. */
  const gate = (state, sign) =>
    draw("g", { class: `g ${state}` }, ...sign.shapes.map(([tag, attributes]) => draw(tag, attributes)));

  /** The sign of a gate in a line of text. */
  function mark(state, sign) {
    const drawn = gate(state, sign);
    drawn.setAttribute("transform", "translate(8 8)");
    return draw("svg", { class: "mark", width: 16, height: 16, "aria-hidden": "true" }, drawn);
  }

  function add(parent, children) {
    for (const child of children) {
      if (Array.isArray(child)) add(parent, child);
      else if (child !== null && child !== undefined && child !== false && child !== "") parent.append(child);
    }
  }

  // Not toLocaleString: its first call alone takes 40 ms.
  const number = (value) => String(value ?? 0).replace(/\B(?=(\d{3})+$)/g, ",");
  const counted = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

  /** A duration in seconds, for people. */
  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "";
    if (seconds > 0 && seconds < 0.0009995) return `${Math.round(seconds * 1e6)} µs`;
    if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
    if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
    if (minutes < 60) return `${minutes} min ${whole % 60} s`;
    return `${number(Math.floor(minutes / 60))} h ${minutes % 60} min`;
  }

  const cost = (dollars) =>
    dollars === null || dollars === undefined ? "unknown" : dollars === 0 ? "$0" : `$${dollars.toFixed(4)}`;

  const pill = (text, tone) => el("span", { class: `pill ${tone || ""}` }, text);

  /** The parts of a diff: "=" (the same), "-" (removed), "+" (added) or "~" (a note about a part that is left out). */
  const diffParts = (parts) => parts.map(([op, text]) => {
    if (op === "=") return text;
    return op === "~" ? el("span", { class: "fold" }, ` ⋯ ${text} ⋯ `) : el(op === "+" ? "ins" : "del", {}, text);
  });
  const diff = (parts) => el("pre", { class: "diff" }, diffParts(parts));

  /** The JSON that the page contains. */
  const data = (root) => JSON.parse((root || document).querySelector('script[type="application/json"]').textContent);

  /** A button that switches between light and dark. */
  function themeButton() {
    const root = document.documentElement, key = "hookline-theme", title = "Light or dark";
    try {
      const kept = localStorage.getItem(key);
      if (kept === "light" || kept === "dark") root.dataset.theme = kept;
    } catch {
      // a page without storage
    }
    const onclick = () => {
      const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
      root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
      try {
        localStorage.setItem(key, root.dataset.theme);
      } catch {
        // the same
      }
    };
    return el("button", { class: "quiet theme", type: "button", title, "aria-label": title, onclick }, "◐");
  }

  /** A list that draws its rows in chunks, when they come near the screen: it may have many thousands.
   *
   * `draw` returns the element of a row, `height` is an estimate of its height in pixels, and `drawn` is called after
   * rows were drawn. `reach(row)` draws a row now, so that the page can scroll to it.
   */
  function lazyList(list, { size, height, draw, drawn }) {
    const chunkOf = new Map();
    let turns = 0; // how often other rows were shown
    const near = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) fill(entry.target.chunk);
    }, { rootMargin: "600px" });

    function fill(chunk) {
      if (chunk.filled) return;
      chunk.filled = true;
      near.unobserve(chunk.element);
      chunk.element.style.minHeight = "";
      chunk.element.append(...chunk.rows.map(draw));
      drawn();
    }

    function show(rows) {
      near.disconnect();
      chunkOf.clear();
      const chunks = [], each = Math.max(size, Math.ceil(rows.length / 800)); // thousands of chunks cost time too
      for (let from = 0; from < rows.length; from += each) {
        const chunk = { rows: rows.slice(from, from + each), filled: false, element: el("ol", { class: "chunk" }) };
        for (const row of chunk.rows) chunkOf.set(row, chunk);
        chunk.element.chunk = chunk;
        chunk.element.style.minHeight = `${chunk.rows.length * height}px`;
        chunks.push(chunk);
      }
      const few = rows.length <= 40; // drawn at once, so that the browser's own search finds everything
      const first = few ? chunks.length : Math.ceil(innerHeight / 2 / (each * height)); // as much as is probably visible
      list.replaceChildren(...chunks.map((chunk) => chunk.element));
      for (const chunk of chunks.slice(0, first)) fill(chunk);
      const turn = ++turns;
      requestAnimationFrame(() => setTimeout(() => { // after these rows are on the screen
        if (turn === turns) for (const chunk of chunks) if (!chunk.filled) near.observe(chunk.element);
      }));
    }

    const reach = (row) => { const chunk = chunkOf.get(row); if (chunk) fill(chunk); return chunk !== undefined; };
    return { show, reach };
  }

  /** Mark an element, and scroll to it. */
  function goTo(element) {
    for (const old of document.querySelectorAll(".hit")) old.classList.remove("hit");
    element.classList.add("hit");
    let frames = 10; // rows above may be drawn meanwhile, and move it
    const scroll = () => {
      if (!frames-- || !element.classList.contains("hit")) return;
      element.scrollIntoView({ block: element.offsetHeight < innerHeight / 2 ? "center" : "start" });
      requestAnimationFrame(scroll);
    };
    scroll();
  }

  return { el, draw, gate, mark, lazyList, goTo, number, counted, duration, cost, pill, diff, diffParts, data, themeButton };
})();

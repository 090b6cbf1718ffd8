// Keeps a page of the console up to date. The server renders HTML; this swaps it in, and is the only place that may.
//
// htmx 4 was tried: with the strict policy, every element that it handles needs the nonce of the page, and HTML that
// arrives in a stream does not have it. These lines do what the console needs, in a tenth of the size.
"use strict";

(() => {
  const policy = window.trustedTypes
    ? trustedTypes.createPolicy("hookline", { createHTML: (text) => text })
    : { createHTML: (text) => text };

  /** Sections that came while their element had the focus: they wait, so that nobody loses what they type. */
  const held = new Map();

  /** Sections as the server sent them last: it sends all of them after a connection, and then those that change. */
  const sent = new Map();

  /** Replace the elements with these ids. An empty text removes the element; data-into names where a new one goes. */
  function swap(sections, { force = false } = {}) {
    for (const [id, html] of Object.entries(sections)) {
      const old = document.getElementById(id);
      held.delete(id);
      if (!html) { old?.remove(); continue; }
      const holder = document.createElement("template");
      holder.innerHTML = policy.createHTML(html);
      const fresh = holder.content.firstElementChild;
      if (!fresh) continue;
      if (!old) { document.getElementById(fresh.dataset.into)?.append(fresh); continue; }
      if ("morph" in fresh.dataset) { morph(old, fresh); continue; }
      const active = old.contains(document.activeElement) ? document.activeElement : null;
      if (active && !force && !("refocus" in old.dataset)) { held.set(id, html); continue; }
      const last = sent.get(id);
      sent.set(id, html);
      if (!force && (last === undefined ? plain(old) === plain(fresh) : last === html)) continue;
      for (const each of old.querySelectorAll("details[id]")) { // what the reader opened stays open
        const same = holder.content.getElementById(each.id);
        if (same) same.open = each.open;
      }
      old.replaceWith(fresh);
      if (active?.id) document.getElementById(active.id)?.focus({ preventScroll: true });
    }
    tick();
    const waiting = Number(document.getElementById("waiting")?.dataset.count ?? 0);
    document.title = (waiting ? `(${waiting}) ` : "") + document.title.replace(/^\(\d+\) /, "");
    document.dispatchEvent(new CustomEvent("swapped", { detail: Object.keys(sections) }));
  }

  /** Make a long list like a new one: what is the same stays, with its focus, so that many updates cost little. */
  function morph(old, fresh) {
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    if (old.localName === "time") return; // its text is written here
    const rows = new Map([...old.children].filter((each) => each.id).map((each) => [each.id, each]));
    let at = old.firstChild;
    for (const want of [...fresh.childNodes]) {
      const have = want.id ? rows.get(want.id) : at;
      if (have && have.nodeName === want.nodeName && (have.id ?? "") === (want.id ?? "")) {
        if (have === at) at = at.nextSibling; else old.insertBefore(have, at);
        if (have.nodeType === Node.ELEMENT_NODE) morph(have, want);
        else if (have.data !== want.data) have.data = want.data;
      } else old.insertBefore(want, at);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  /** The HTML of an element as the server sent it: without local times, and with everything folded. */
  function plain(element) {
    const copy = element.cloneNode(true);
    for (const each of copy.querySelectorAll("time")) each.textContent = each.dateTime;
    for (const each of copy.querySelectorAll("details")) each.open = false;
    return copy.outerHTML;
  }

  let loading = 0;

  /** Fetch something of this server. If that takes long, a line at the top of the page says so. */
  async function load(address, options = {}) {
    loading += 1;
    setTimeout(() => document.body.toggleAttribute("data-loading", loading > 0), 200);
    try {
      return await fetch(address, { signal: AbortSignal.timeout(30_000), ...options });
    } finally {
      loading -= 1;
      document.body.toggleAttribute("data-loading", loading > 0 && document.body.hasAttribute("data-loading"));
    }
  }

  window.hookline = { swap, load };

  document.addEventListener("focusout", () => setTimeout(() => {
    for (const [id, html] of [...held]) if (!document.getElementById(id)?.contains(document.activeElement)) swap({ [id]: html });
  }));

  const clock = new Intl.DateTimeFormat([], { timeStyle: "medium" });
  const short = new Intl.DateTimeFormat([], { timeStyle: "short" });
  const dates = { month: "short", day: "numeric", hour: "numeric", minute: "2-digit" };
  const recent = new Intl.DateTimeFormat([], dates);
  const calendar = new Intl.DateTimeFormat([], { ...dates, year: "numeric" });
  const dated = new WeakMap(); // the day on which each time was written, and the time

  /** Durations are counted here, so that the server need not send them again every second. Times are local. */
  function tick() {
    const now = Date.now() / 1000;
    for (const each of document.querySelectorAll("time[data-since]")) {
      each.textContent = duration(Math.max(0, now - Number(each.dataset.since)));
    }
    const today = new Date();
    const day = today.toDateString();
    for (const each of document.querySelectorAll("time[data-at]")) {
      if (dated.get(each) === day + each.dateTime) continue;
      const at = new Date(each.dateTime);
      const date = at.getFullYear() === today.getFullYear() ? recent : calendar;
      each.textContent = (each.dataset.at === "short" ? short : at.toDateString() === day ? clock : date).format(at);
      dated.set(each, day + each.dateTime);
    }
  }

  function duration(seconds) {
    if (seconds < 60) return `${Math.floor(seconds)} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return `${minutes} min`;
    const hours = Math.floor(minutes / 60);
    return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
  }

  // Forms with data-swap are sent without leaving the page. The server answers with the sections that have changed.
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!("swap" in form.dataset)) return;
    event.preventDefault();
    const problem = form.querySelector(".problem");
    const buttons = [...form.querySelectorAll("button")].filter((each) => !each.disabled);
    const body = new URLSearchParams(new FormData(form, event.submitter));
    for (const each of buttons) each.disabled = true;
    if (problem) problem.textContent = "";
    let text = "The server does not answer. Look whether it happened before you try again.";
    try {
      const answer = await load(form.action, { method: "POST", body, headers: { accept: "application/json" } });
      const found = await answer.json();
      text = found.error?.message ?? "";
      if (answer.ok) { document.activeElement?.blur(); form.reset(); swap(found); }
    } catch { /* said below */ }
    for (const each of buttons) each.disabled = false;
    if (problem && text) problem.textContent = text;
  });

  // Forms with data-filter are sent when something is chosen, and leave out what is empty: their addresses are links.
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-filter]");
    if (form && event.target.matches("select, [type=checkbox]")) form.requestSubmit();
  });
  document.addEventListener("submit", (event) => {
    if (!("filter" in event.target.dataset)) return;
    const fields = [...event.target.elements].filter((each) => each.name && !each.value);
    for (const each of fields) each.disabled = true;
    setTimeout(() => { for (const each of fields) each.disabled = false; });
  });

  // Dialogs: the keys of the pages, and a search for runs, agents, hooks and tools.
  function openDialog(name) {
    const dialog = document.getElementById(name);
    if (!dialog?.showModal) return false;
    document.getElementById("more")?.hidePopover?.();
    if (!dialog.open) dialog.showModal();
    return true;
  }
  document.addEventListener("click", (event) => {
    const opener = event.target.closest("[data-open-dialog]");
    if (opener && openDialog(opener.dataset.openDialog)) event.preventDefault();
    else if (event.target.matches("dialog")) event.target.close(); // outside of it
  });
  let going = 0;
  document.addEventListener("keydown", (event) => {
    const field = event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
    const typing = field && !field.closest("dialog:not([open])"); // a field keeps the focus for a moment after its dialog closed
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      if (openDialog("find")) event.preventDefault();
    } else if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      if (event.key === "?") openDialog("keys");
      const target = { n: "Now", a: "Approvals", r: "Runs", b: "Blocked" }[event.key];
      if (event.key === "g") { going = Date.now(); return; }
      if (target && Date.now() - going < 1000) {
        event.stopImmediatePropagation();
        document.querySelector(`.rail a[title="${target}"]`)?.click();
      }
    }
    going = 0;
  });
  const finder = document.querySelector("#find input");
  let asked = 0;
  finder?.addEventListener("input", async () => {
    const number = ++asked;
    const address = `${finder.form.action}?${new URLSearchParams({ text: finder.value })}`;
    await new Promise((done) => setTimeout(done, 120));
    if (number !== asked) return;
    const answer = await load(address, { headers: { accept: "application/json" } }).catch(() => null);
    if (answer?.ok && number === asked) swap(await answer.json());
  });
  document.getElementById("find")?.addEventListener("keydown", (event) => {
    const links = [...event.currentTarget.querySelectorAll(".found a")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter" && event.target === finder && links.length) { event.preventDefault(); links[0].click(); }
    if (!step || !links.length) return;
    event.preventDefault();
    const at = links.indexOf(document.activeElement) + step;
    (at < 0 ? finder : links[Math.min(at, links.length - 1)]).focus();
  });

  // Keys: / goes to the search, j and k go through the rows of a page, other letters press the button or open the part of the chosen row that
  // names them. Without a chosen row they only choose the first one: nothing is decided that nobody has looked at.
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    const dialog = document.querySelector("dialog[open]");
    if (event.key === "Escape" && dialog) { // a search field would only empty itself
      event.preventDefault();
      dialog.close();
      return;
    }
    if (event.key === "Escape") { document.activeElement?.closest("[data-row]")?.focus(); return; }
    if (event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]")) return;
    const search = event.key === "/" && document.querySelector("[data-search]");
    if (search) { event.preventDefault(); search.select(); return; }
    if (dialog) return;
    const rows = [...document.querySelectorAll("[data-row]")].filter((each) => each.checkVisibility());
    const current = rows.indexOf(document.activeElement?.closest("[data-row]"));
    const step = { j: 1, k: -1 }[event.key];
    const target = step ? null : rows[Math.max(current, 0)]?.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (!rows.length || (!step && !target)) return;
    event.preventDefault();
    if (step || current < 0) {
      const next = rows[current < 0 ? 0 : Math.min(Math.max(current + (step ?? 0), 0), rows.length - 1)];
      next.focus();
      next.scrollIntoView({ block: "nearest" });
    } else if (target.matches("details")) {
      target.open = true;
      target.querySelector("textarea, input")?.focus();
    } else if (target.matches("input:not([type=checkbox])")) target.focus();
    else target.click();
  });

  // One stream for the page, and none while nobody looks: browsers allow six connections to a server. A page that
  // gets no news says so. The stream has a beat in every second, because a server that hangs keeps its connections.
  const url = document.body.dataset.live;
  const LOST = "Connection lost. Trying again …", SILENT = "The server does not answer. Trying again …";
  const SILENT_AFTER = 2000, AGAIN_AFTER = 8000;
  let stream = null, heard = 0, late = 0, problem = "", said = "";
  function connect() {
    if (!url || document.hidden || stream) return;
    heard = Date.now();
    stream = new EventSource(url);
    const hear = () => { heard = Date.now(); late = 0; notice(problem); };
    stream.onopen = () => { problem = ""; hear(); };
    stream.onmessage = (event) => {
      problem = "";
      try { swap(JSON.parse(event.data)); } catch (error) {
        problem = "News of this page could not be shown. Reload it.";
        console.error(error);
      }
      hear();
    };
    stream.addEventListener("beat", hear);
    stream.addEventListener("problem", (event) => { problem = JSON.parse(event.data); hear(); }); // it could not be rendered
    stream.onerror = () => {
      notice(LOST);
      if (stream?.readyState === EventSource.CLOSED) { // the server said no
        stream = null;
        refused();
      }
    };
  }
  function disconnect() { stream?.close(); stream = null; late = 0; }
  /** Say that the server hangs, if two looks find no beat: after one, what has come may wait behind this script. */
  setInterval(() => {
    if (!stream) return;
    late = Date.now() - heard > SILENT_AFTER ? late + 1 : 0;
    if (late === 2 && !said) notice(stream.readyState === EventSource.OPEN ? SILENT : LOST);
    if (late && Date.now() - heard > AGAIN_AFTER) { disconnect(); connect(); }
  }, 400);
  /** Show the page to log in if the login has ended: the server sends a page that is loaded there. What is gone stays
   *  as it was shown. Otherwise try again. */
  async function refused() {
    const answer = await load(location.href, { method: "HEAD" }).catch(() => null);
    if (answer?.status === 401) { location.reload(); return; }
    if (answer?.status === 404) { notice("The server no longer has what this page shows."); return; }
    if (answer) notice("The server sends no news of this page. Trying again …");
    setTimeout(connect, answer ? 5000 : 2000);
  }
  /** Say why the page is not up to date, and since when; an empty text means that it is. */
  function notice(text) {
    const mark = document.querySelector(".connection");
    if (!mark || text === said) return;
    said = text;
    mark.dataset.since = text && (mark.dataset.since || clock.format(new Date()));
    mark.textContent = text && `${text} (since ${mark.dataset.since})`;
    mark.hidden = !text;
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) disconnect(); else connect();
  });
  connect();
  tick();
  setInterval(tick, 1000);
})();

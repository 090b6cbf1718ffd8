// Keeps a page of the console up to date. The server renders HTML; this swaps it in, and is the only place that may.
//
// htmx 4 was tried: with the strict policy, every element that it handles needs the nonce of the page, and HTML that
// arrives in a stream does not have it. These lines do what the console needs, in a tenth of the size.
"use strict";

(() => {
  const policy = window.trustedTypes
    ? trustedTypes.createPolicy("hookline", { createHTML: (text) => text })
    : { createHTML: (text) => text };

  /** Replace the elements with these ids. An empty text removes the element; a new one goes into `data-into`. */
  function swap(sections) {
    for (const [id, html] of Object.entries(sections)) {
      const old = document.getElementById(id);
      if (!html) { old?.remove(); continue; }
      const holder = document.createElement("template");
      holder.innerHTML = policy.createHTML(html);
      const fresh = holder.content.firstElementChild;
      if (!fresh) continue;
      if (!old) { document.getElementById(fresh.dataset.into)?.append(fresh); continue; }
      const active = old.contains(document.activeElement) ? document.activeElement : null;
      if (old.outerHTML === fresh.outerHTML || active?.matches("input, textarea, select")) continue;
      for (const each of old.querySelectorAll("details[id]")) { // what the reader opened stays open
        const same = holder.content.getElementById(each.id);
        if (same) same.open = each.open;
      }
      old.replaceWith(fresh);
      if (active?.id) document.getElementById(active.id)?.focus({ preventScroll: true });
    }
    tick();
  }

  /** Durations are counted here, so that the server need not send them again every second. */
  function tick() {
    const now = Date.now() / 1000;
    for (const each of document.querySelectorAll("time[data-since]")) {
      each.textContent = duration(Math.max(0, now - Number(each.dataset.since)));
    }
    for (const each of document.querySelectorAll("time[data-local]")) {
      each.removeAttribute("data-local");
      each.textContent = new Date(each.dateTime).toLocaleString();
    }
  }

  function duration(seconds) {
    if (seconds < 60) return `${Math.floor(seconds)} s`;
    const minutes = Math.floor(seconds / 60);
    if (minutes < 60) return `${minutes} min`;
    const hours = Math.floor(minutes / 60);
    return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
  }

  // One stream for the page, and none while nobody looks: browsers allow six connections to a server.
  const url = document.body.dataset.live;
  let stream = null;
  function connect() {
    if (!url || document.hidden || stream) return;
    stream = new EventSource(url);
    stream.onopen = () => { lost(false); };
    stream.onmessage = (event) => swap(JSON.parse(event.data));
    stream.onerror = () => {
      lost(true);
      if (stream?.readyState === EventSource.CLOSED) { // the server said no: the login may have ended
        stream = null;
        setTimeout(connect, 5000);
      }
    };
  }
  function lost(is) {
    const mark = document.querySelector(".connection");
    if (mark) mark.hidden = !is;
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { stream?.close(); stream = null; } else { connect(); }
  });
  connect();
  tick();
  setInterval(tick, 1000);
})();

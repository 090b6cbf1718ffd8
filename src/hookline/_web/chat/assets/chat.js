// The chat component. Messages that the user writes are kept in local storage until the server has accepted them, under
// an id that stays the same when they are sent again. All other messages come from the server, also after a reload.
// The protocol is described in protocol.py.

const at = (id) => document.getElementById(id);
const settings = JSON.parse(at("chat").dataset.settings);
const { render, visible } = await import(settings.renderer);
const [log, scroll, box, status, note, dock] = ["log", "scroll", "text", "status", "note", "dock"].map(at);
const { title, root, page: pageAddress = "", commands = false, parts: inParts = false, mayWrite = true } = settings;
const maxLength = settings.maxText ?? 32000;
const maxFile = settings.maxFile ?? 0;
const speakers = settings.speakers ?? [];
const storagePrefix = `hookline:${location.pathname}:${settings.owner ? `${settings.owner}:` : ""}`;
const TYPING_MS = 9000;
const SILENT_MS = 2500; // the server sends something every second
const DEAD_MS = 12000;
const POST_MS = 20000;
const MAX_FILES = 20;
const MAX_CHATS = 40;
const UNSENT = "Will be sent when you are online";
const PART_BYTES = 500000;

const memory = new Map();
const store = {
  get(key) {
    if (memory.has(key)) return memory.get(key);
    try { return localStorage.getItem(storagePrefix + key); } catch { return null; }
  },
  set(key, value) { // what the browser does not keep, such as large files, is kept until the page is closed
    memory.delete(key);
    try { localStorage.setItem(storagePrefix + key, value); } catch { memory.set(key, value); }
  },
  remove(key) {
    memory.delete(key);
    try { localStorage.removeItem(storagePrefix + key); } catch { /* nothing is kept */ }
  },
  keys() {
    try { return Object.keys(localStorage).filter((key) => key.startsWith(storagePrefix)).map((key) => key.slice(storagePrefix.length)); }
    catch { return []; }
  },
  json(key, otherwise) {
    try { return JSON.parse(store.get(key)) ?? otherwise; } catch { return otherwise; }
  },
};

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(24));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_");
}

function part(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function button(className, label, press) {
  const made = part("button", className, label);
  made.type = "button";
  made.addEventListener("click", press);
  return made;
}

let chat = settings.chat || (pageAddress ? newId() : store.get("chat"));
if (!chat) store.set("chat", (chat = newId()));
let agent = settings.speaker ?? "";

const outbox = store.keys().filter((key) => key.startsWith("out:")).flatMap((key) => {
  const kept = store.json(key, null);
  return kept ? [{ chat, agent, ...kept, id: key.slice(4) }] : [];
}).sort((a, b) => a.at - b.at);

// Messages

const bySeq = new Map();
const byId = new Map();
const byKey = new Map();
let typingUntil = 0;
let speaker = title;
let answering = "";
let waiting = 0;
let open = [];

function timeElement(seconds) {
  const time = document.createElement("time");
  const date = new Date(seconds * 1000);
  time.dateTime = date.toISOString();
  const today = date.toDateString() === new Date().toDateString();
  time.textContent = date.toLocaleString([], today ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
  return time;
}

function createMessage(side, seconds, name) {
  const who = part("span", "who", side === "in" ? "You" : visible(name || title));
  const text = part("div", "text");
  const item = part("article", `message ${side}`, part("header", "", who, timeElement(seconds)), text);
  item.dataset.side = side;
  item.dataset.who = who.textContent;
  item.dataset.at = seconds;
  return item;
}

function setState(item, state, words = "") {
  item.classList.toggle("waiting", state === "waiting");
  item.classList.toggle("refused", state === "refused");
  item.querySelector(".remark")?.remove();
  if (words) item.append(part("p", "remark", visible(words)));
}

function groupWithPrevious(item) {
  if (!item) return;
  const before = item.previousElementSibling;
  const near = before && !before.hidden && before.dataset.side === item.dataset.side && before.dataset.who === item.dataset.who && item.dataset.at - before.dataset.at < 120;
  item.classList.toggle("follows", Boolean(near));
}

function insertMessage(item, seq) {
  const old = item.nextElementSibling;
  let next = null;
  for (let one = log.lastElementChild; one; one = one.previousElementSibling) {
    if (one === item) continue;
    if (one.dataset.seq && Number(one.dataset.seq) < seq) break;
    next = one;
  }
  item.dataset.seq = seq;
  if (item.parentNode !== log || item.nextElementSibling !== next) log.insertBefore(item, next);
  [item, next, old].forEach(groupWithPrevious);
}

function addLink(item, address) {
  if (!address || item.querySelector(".run-link")) return;
  const link = part("a", "run-link", "the run");
  link.href = address;
  item.querySelector("header").append(link);
}

function showMessage(message) {
  rev = Math.max(rev, message.rev ?? 0);
  if (message.steps) {
    showSteps(message);
    updateView(false);
    return;
  }
  const { side, seq, text: words = "", id = "", to = "", key = "", problem = "", note: remark = "" } = message;
  let item = bySeq.get(seq) ?? (id && byId.get(id));
  const fresh = !item;
  if (!item) item = createMessage(side, message.at, message.speaker);
  const asked = byId.get(to)?.querySelector(".text").textContent ?? "/";
  if (message.speaker || !asked.startsWith("/")) speaker = message.speaker || title; // replies to commands have no speaker
  if (id && side === "in") byId.set(id, item);
  if (key) byKey.set(key, item);
  bySeq.set(seq, item);
  const text = item.querySelector(".text");
  if (to) item.dataset.to = to;
  if (side === "in") text.textContent = visible(words);
  else text.replaceChildren(render(words));
  if (side === "out" || !outbox.some((one) => one.id === id)) setState(item, problem ? "refused" : "sent", problem || remark);
  addLink(item, message.link);
  insertMessage(item, seq);
  if (side === "in" && !pageAddress && fresh) nameChat(words, message.at);
  if (side === "out") {
    if (fresh) typingUntil = 0;
    if (to) takeSteps(item, to);
    showQuote(item);
    if (commands && settings.newText && words.includes(settings.newText)) removeOldConversation(item);
    releaseCards();
    showDock();
    showSpeaker();
  }
  updateView(fresh && side === "out");
}

// A draft stands for a reply that is being written, with the steps of its run. The reply takes its place and its steps.

const drafts = new Map();
const stepsBySeq = new Map();

function draftOf(to, name) {
  let item = drafts.get(to);
  if (!item) {
    item = createMessage("out", Date.now() / 1000, name);
    item.classList.add("draft");
    item.dataset.to = to;
    drafts.set(to, item);
    log.append(item);
    groupWithPrevious(item);
  }
  return item;
}

function removeDraft(item) {
  const next = item.nextElementSibling;
  drafts.delete(item.dataset.to);
  item.remove();
  groupWithPrevious(next);
}

function replyTo(to) {
  return [...log.querySelectorAll(".message.out:not(.draft)")].find((one) => one.dataset.to === to);
}

function showDraft({ to = "", speaker: name = "", text = "", more = false }) {
  for (const item of drafts.values()) if (item.draftText && item.dataset.to !== to) endDraft(item);
  if (to && !(pageAddress && replyTo(to))) {
    const item = draftOf(to, name);
    item.draftText = more ? (item.draftText ?? "") + text : text;
    item.querySelector(".text").replaceChildren(render(item.draftText));
    if (!item.draftText) endDraft(item);
  }
  updateView(false);
}

// Remove the text of a draft, and the draft if it has no steps.
function endDraft(item) {
  item.draftText = "";
  item.querySelector(".text").replaceChildren();
  if (!item.querySelector(".steps")) removeDraft(item);
}

function showSteps(message) {
  let steps = stepsBySeq.get(message.seq);
  if (!steps) {
    steps = part("details", "steps");
    stepsBySeq.set(message.seq, steps);
    const reply = replyTo(message.to);
    const item = reply ?? draftOf(message.to, message.speaker);
    item.append(steps);
    addLink(item, message.link);
    if (!reply && !item.dataset.seq) insertMessage(item, message.seq);
    if (message.speaker) speaker = message.speaker;
  }
  const words = document.createElement("summary");
  const marks = message.steps.filter(({ tone }) => tone === "red" || tone === "violet").map(({ state }) => state);
  const count = message.steps.length === 1 ? "1 step" : `${message.steps.length} steps`;
  words.textContent = [count, ...new Set(marks)].join(", ");
  const opened = [...steps.querySelectorAll(".step")].map((one) => one.querySelector("details")?.open);
  const cards = message.steps.map(stepCard);
  opened.forEach((isOpen, n) => { if (isOpen && cards[n]?.querySelector("details")) cards[n].querySelector("details").open = true; });
  steps.replaceChildren(words, ...cards);
}

// The signs of the hook line: shape and colour both differ.
const GATES = {
  passed: { passed: "M0-3.25a3.25 3.25 0 1 0 .01 0z" },
  changed: { changed: "M0-5 5 0 0 5-5 0z" },
  asked: { disc: "M0-4.5a4.5 4.5 0 1 0 .01 0z", tick: "M-2 .2-.6 1.6 2.1-1.4" },
  waits: { ring: "M0-4a4 4 0 1 0 .01 0z", dot: "M0-1.5a1.5 1.5 0 1 0 .01 0z" },
  unanswered: { dashed: "M0-4a4 4 0 1 0 .01 0z", dash: "M-2 0H2" },
  blocked: { cut: "M0-7V7" },
  denied: { disc: "M-3-3.75a3.75 3.75 0 1 0 .01 0z", cut: "M4-7V7" },
  failed: { cross: "M-3.5-3.5 3.5 3.5M3.5-3.5-3.5 3.5" },
};
const SVG = "http://www.w3.org/2000/svg";

function sign(gate) {
  const made = document.createElementNS(SVG, "svg");
  made.setAttribute("viewBox", "-8 -8 16 16");
  made.setAttribute("class", "gate");
  made.setAttribute("aria-hidden", "true");
  for (const [name, line] of Object.entries(GATES[gate] ?? GATES.changed)) {
    const shape = document.createElementNS(SVG, "path");
    shape.setAttribute("class", name);
    shape.setAttribute("d", line);
    made.append(shape);
  }
  return made;
}

function stepCard({ tool, text = "", arguments: given = "", state, tone, verdicts = [] }) {
  const head = part("p", "", part("code", "", visible(tool)), " ", part("span", `pill ${tone}`, visible(state)));
  const card = part("div", `step ${tone}`, head);
  if (text && text !== tool) card.append(part("p", "what", visible(text)));
  if (given) {
    const whole = part("pre", "arguments", visible(given));
    whole.tabIndex = 0;
    card.append(part("details", "given", part("summary", "", "Arguments"), whole));
  }
  for (const { word, tone: colour, gate, hook = "", reason = "" } of verdicts) {
    const line = part("p", `verdict ${colour}`, sign(gate), part("b", "", visible([hook, word].filter(Boolean).join(" "))));
    if (reason) line.append(hook ? ": " : " ", visible(reason));
    card.append(line);
  }
  return card;
}

function takeSteps(reply, to) {
  const draft = drafts.get(to);
  if (!draft) return;
  reply.append(...draft.querySelectorAll(".steps"));
  removeDraft(draft);
}

function showQuote(item) {
  const asked = byId.get(item.dataset.to);
  if (!asked || item.querySelector(".quote")) return;
  let one = item.previousElementSibling;
  if (one?.dataset.to === item.dataset.to) return;
  while (one && one !== asked && one.dataset.side !== "in") one = one.previousElementSibling;
  if (!one || one === asked) return;
  item.querySelector(".text").before(part("p", "quote", asked.querySelector(".text").textContent));
}

// After "/new", show only the messages since then.
function removeOldConversation(item) {
  const asked = byId.get(item.dataset.to);
  if (asked?.querySelector(".text").textContent.trim().toLowerCase() !== "/new") return;
  const kept = new Set();
  for (let one = asked.nextElementSibling; one && one !== item; one = one.nextElementSibling) {
    if (one.dataset.side === "in" || kept.has(byId.get(one.dataset.to))) kept.add(one);
  }
  const gone = new Set();
  for (let one = item; one; one = one.previousElementSibling) if (!kept.has(one)) gone.add(one);
  for (const known of [bySeq, byId, byKey, drafts]) for (const [key, one] of known) if (gone.has(one)) known.delete(key);
  for (const one of gone) one.remove();
  [...log.children].forEach(groupWithPrevious);
}

function showUnsent(one) {
  const item = createMessage("in", one.at / 1000);
  const names = (one.files ?? []).map(({ name }) => `[${name}]`);
  item.querySelector(".text").textContent = visible([...names, one.text].join(" ").trimEnd());
  byId.set(one.id, item);
  log.append(item);
  groupWithPrevious(item);
  setState(item, "waiting", ready ? "" : UNSENT);
  stickToEnd();
  updateView(false);
}

// The calls that wait for an answer are docked above the composer, one at a time, and stay there while messages arrive.

const cards = new Map();
let shown = 0;

function showDock() {
  for (const [key, item] of byKey) item.hidden = open.some((prompt) => prompt.key === key); // the dock shows it
  const known = new Set(open.map(({ key }) => key));
  const had = dock.contains(document.activeElement);
  for (const [key, card] of cards) if (!known.has(key)) { card.element.remove(); cards.delete(key); }
  for (const prompt of open) {
    const state = JSON.stringify(prompt);
    const card = cards.get(prompt.key);
    if (card?.state === state) continue;
    card?.element.remove();
    cards.set(prompt.key, { state, element: cardOf(prompt) });
    at("say").textContent = visible(`${prompt.agent || "The agent"} wants to call ${prompt.tool}. The call waits for your answer.`);
  }
  shown = Math.max(0, Math.min(shown, open.length - 1));
  const current = open.length ? cards.get(open[shown].key).element : null;
  for (const { element } of cards.values()) if (element !== current) element.remove();
  if (current && current.parentNode !== dock) dock.append(current);
  dock.querySelector(".pager")?.remove();
  if (open.length > 1) dock.prepend(pager());
  if (open.length === 0) at("say").textContent = "";
  dock.hidden = open.length === 0;
  if (had && !dock.contains(document.activeElement)) (current ?? box).focus();
  if (!pageAddress) document.title = (open.length ? `(${open.length}) ` : "") + title;
  [...log.children].forEach(groupWithPrevious);
}

function pager() {
  const move = (step) => { shown = (shown + step + open.length) % open.length; showDock(); };
  const [before, after] = [["‹", "Previous call", -1], ["›", "Next call", 1]].map(([label, words, step]) => {
    const made = button("chat-icon", label, () => move(step));
    made.setAttribute("aria-label", words);
    return made;
  });
  return part("p", "pager", part("span", "", `${shown + 1} of ${open.length} calls wait for your answer`), before, after);
}

// After a reply, a call that still waits can be decided again: the reply says why it still does.
function releaseCards() {
  for (const { element } of cards.values()) for (const each of element.querySelectorAll("button")) each.disabled = false;
}

const SCOPES = { once: "once", session: "in this conversation", always: "always" };

function cardOf(prompt) {
  const { key, agent: name, tool, arguments: given, digest, expires, questions = [], remember = ["once"], pattern = null } = prompt;
  const { objection = "", needed = "", exact = false, readonly = false, link = "" } = prompt;
  const whole = part("pre", "arguments", visible(given));
  whole.tabIndex = 0;
  whole.setAttribute("aria-label", "Arguments");
  const facts = part("p", "facts", "Without an answer by ", timeElement(expires), " it does not run.");
  if (link) {
    const run = part("a", "", "the run");
    run.href = link;
    facts.append(" ", run);
  }
  const card = part("article", "ask", part("h2", "", part("b", "", visible(name || "The agent")), " wants to call ", part("code", "", visible(tool))));
  card.tabIndex = -1;
  card.setAttribute("aria-label", `${name || "The agent"} wants to call ${tool}`);
  const body = part("div", "ask-body", ...questions.map((each) => part("p", "question", visible(each))), whole, facts);
  if (needed) body.append(part("p", "", visible(needed)));
  if (objection) body.append(part("p", "", `You can deny it, but not approve it: ${visible(objection)}.`));
  card.append(body);
  if (readonly) return card;

  const problem = part("p", "problem");
  problem.setAttribute("role", "alert");
  const decide = async (decision, fields = {}) => {
    const buttons = [...card.querySelectorAll("button")];
    for (const each of buttons) each.disabled = true;
    problem.textContent = "";
    const answer = await post("decisions", { id: newId(), key, digest, decision, ...fields });
    if (answer.ok) { if (card.contains(document.activeElement)) card.focus(); return; }
    for (const each of buttons) each.disabled = false;
    problem.textContent = visible(answer.problem);
  };

  const scope = part("select", "field");
  scope.setAttribute("aria-label", "How long the approval holds");
  for (const each of remember) {
    const option = part("option", "", SCOPES[each] ?? each);
    option.value = each;
    scope.append(option);
  }
  const globs = part("div", "pattern");
  globs.hidden = true;
  const inputs = Object.entries(pattern ?? {}).map(([argument, glob]) => {
    const input = part("input", "field");
    input.value = glob;
    input.autocomplete = "off";
    input.spellcheck = false;
    input.dataset.argument = argument;
    globs.append(part("label", "", part("span", "", visible(argument)), input));
    return input;
  });
  globs.prepend(part("p", "", inputs.length ? "It holds for calls of this agent that match. * stands for any text." : "It holds for exactly these arguments of this agent."));
  scope.addEventListener("change", () => { globs.hidden = scope.value === "once"; });
  const approve = button("yes", "Approve", () => {
    const globbed = Object.fromEntries(inputs.map((input) => [input.dataset.argument, input.value]));
    const changed = scope.value !== "once" && inputs.some((input) => input.value !== pattern[input.dataset.argument]);
    decide("approve", { remember: scope.value, pattern: changed ? globbed : null });
  });
  approve.dataset.press = "a";
  const why = part("input", "field why");
  why.maxLength = 4000;
  why.placeholder = "Why not? The model reads it.";
  why.setAttribute("aria-label", "Reason for the model");
  why.autocomplete = "off";
  why.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); decide("deny", { message: why.value.trim() }); } });
  const deny = button("quiet", "Deny", () => decide("deny", { message: why.value.trim() }));
  const first = part("span", "pair", ...(objection ? [] : [approve]), ...(!objection && remember.length > 1 ? [scope] : []));
  const answers = part("div", "answers", first, part("span", "pair grow", deny, why));
  const editor = part("div", "editor");
  editor.hidden = true;
  if (!exact && !objection) {
    const text = part("textarea", "field");
    text.rows = 5;
    text.spellcheck = false;
    text.value = given;
    text.setAttribute("aria-label", "Arguments as JSON. The guards judge them again.");
    const run = button("yes", "Run with these arguments", () => {
      let found = null;
      try { found = JSON.parse(text.value); } catch (error) { problem.textContent = `The arguments are not JSON: ${error.message}`; return; }
      if (typeof found !== "object" || found === null || Array.isArray(found)) { problem.textContent = 'The arguments must be a JSON object, such as {"path": "notes/a.txt"}'; return; }
      decide("edit", { arguments: text.value });
    });
    editor.append(text, run);
    const edit = button("quiet", "Edit", () => {
      editor.hidden = !editor.hidden;
      for (const each of [whole, approve, scope]) each.hidden = !editor.hidden; // what is approved is what is shown
      edit.setAttribute("aria-expanded", String(!editor.hidden));
      problem.textContent = "";
      if (!editor.hidden) text.focus();
    });
    edit.setAttribute("aria-expanded", "false");
    edit.dataset.press = "e";
    first.append(edit);
  }
  body.append(editor, globs);
  card.append(problem, answers);
  card.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { event.preventDefault(); (event.target === card ? box : card).focus(); return; }
    if (event.target !== card || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    if (event.key === "d") { event.preventDefault(); why.focus(); return; }
    const press = card.querySelector(`[data-press="${CSS.escape(event.key)}"]`);
    if (press) { event.preventDefault(); press.click(); }
  });
  return card;
}

// The end of the conversation stays in view unless the reader has scrolled up. What grows, also the dock, moves it.

let pinned = true;
let lastTop = 0;
const isLow = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;

function stickToEnd() {
  pinned = true;
  scroll.scrollTop = scroll.scrollHeight;
  lastTop = scroll.scrollTop;
  at("latest").hidden = true;
}

scroll.addEventListener("scroll", () => {
  if (isLow()) { pinned = true; at("latest").hidden = true; } else if (scroll.scrollTop < lastTop - 2) pinned = false;
  lastTop = scroll.scrollTop;
});
const grown = new ResizeObserver(() => { if (pinned) stickToEnd(); });
for (const each of [log, scroll, at("working")]) grown.observe(each);

function updateView(news) {
  const isEmpty = log.childElementCount === 0;
  at("empty").hidden = !isEmpty || !ready || !mayWrite;
  at("loading").hidden = !isEmpty || ready || refused;
  updateActivity();
  if (pinned) stickToEnd();
  else if (news) at("latest").hidden = false;
}

let typingTimer;
function updateActivity() {
  const left = typingUntil - Date.now();
  const busy = answering !== "" || left > 0;
  const queue = waiting === 1 ? "1 message waiting" : waiting ? `${waiting} messages waiting` : "";
  at("working").hidden = !busy && !queue;
  at("working-text").textContent = [!busy ? "" : open.length ? "Waiting for your answer" : `${visible(speaker)} is working`, queue].filter(Boolean).join(" · ");
  at("stop").hidden = !busy || !mayWrite;
  for (const steps of log.querySelectorAll(".steps")) {
    const live = answering !== "" && steps.parentNode.dataset.to === answering;
    if (live !== steps.classList.contains("live")) steps.open = live;
    steps.classList.toggle("live", live);
  }
  clearTimeout(typingTimer);
  if (left > 0) typingTimer = setTimeout(updateActivity, left);
}

function showNote(text = "") {
  note.textContent = visible(text);
  note.hidden = !text;
}

function setStatus(state, words) {
  if (status.dataset.state !== state) status.dataset.state = state;
  if (status.textContent !== words) status.textContent = words;
}

/** Say why the conversation is not up to date, or cannot be shown; an empty text means that all is well. */
function setBanner(text = "", kind = "lost") {
  const banner = at("banner");
  if (banner.textContent !== text) banner.textContent = text;
  banner.dataset.kind = kind;
  banner.hidden = !text;
}

// Connection

let stream = null;
let ready = false;
let refused = false;
let sending = false;
let rev = 0;
let heardAt = 0;
let reconnectDelay = 500;
let reconnectTimer;

const headers = (id = chat) => ({ "X-Chat": encodeURIComponent(id), accept: "application/json" });

async function connect() {
  clearTimeout(reconnectTimer);
  if (stream || document.hidden || locked()) return;
  const mine = (stream = new AbortController());
  heardAt = Date.now();
  try {
    const query = new URLSearchParams({ agent, after: rev });
    const answer = await fetch(`${root}stream?${query}`, { headers: headers(), cache: "no-store", signal: mine.signal });
    if (stream !== mine) return;
    if (!answer.ok && answer.status !== 429 && answer.status < 500) {
      stream = null;
      await refuse(answer);
      return;
    }
    const reader = answer.ok ? answer.body.pipeThrough(new TextDecoderStream()).getReader() : null;
    let rest = "";
    while (reader) {
      const { done, value } = await reader.read();
      if (done || stream !== mine) break;
      heardAt = Date.now();
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      events.forEach(handleEvent);
    }
  } catch (error) {
    if (error.name !== "AbortError" && !(error instanceof TypeError)) console.error(error);
  }
  if (stream === mine) disconnected();
}

function handleEvent(event) {
  const lines = event.split("\n");
  const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
  if (!data) return;
  if (lines.includes("event: problem")) setBanner(JSON.parse(data));
  else takeParts(JSON.parse(data));
}

/** The login has ended, or the person may not see this, or it does not exist: say so. */
async function refuse(answer) {
  if (answer.status === 401) { askLogin(); return; }
  refused = true;
  const found = await answer.json().catch(() => ({}));
  setStatus("offline", answer.status === 403 ? "Not allowed" : "Not available");
  setBanner(visible(problemOf(found)) || "This conversation cannot be shown.", "refused");
  updateView(false);
}

function problemOf(found) {
  return found.error?.message ?? found.error ?? "";
}

function disconnected() {
  stream?.abort();
  stream = null;
  ready = false;
  typingUntil = waiting = 0;
  answering = "";
  showDraft({});
  sayLost();
  clearTimeout(reconnectTimer);
  reconnectTimer = setTimeout(connect, reconnectDelay * (0.75 + Math.random() / 2));
  reconnectDelay = Math.min(reconnectDelay * 1.7, 15000);
}

function sayLost() {
  const words = navigator.onLine === false ? "Offline" : "Reconnecting";
  setStatus("offline", words);
  setBanner(`${words === "Offline" ? "You are offline." : "The connection is lost. Trying again."} What you write is sent when it is back.`);
  updateView(false);
}

setInterval(() => {
  if (!stream || document.hidden) return;
  const silent = Date.now() - heardAt;
  if (silent > DEAD_MS) disconnected();
  else if (silent > SILENT_MS) sayLost();
  else if (ready && status.dataset.state === "offline" && navigator.onLine !== false) online();
}, 500);

function online() {
  setStatus("online", "Connected");
  setBanner();
}

function reconnectNow() {
  if (stream || refused) return;
  reconnectDelay = 500;
  connect();
}

const TAKE = {
  ready({ reset = false }) {
    ready = true;
    refused = false;
    reconnectDelay = 500;
    online();
    if (reset) clearMessages();
    for (const one of outbox) if (one.chat === chat && byId.has(one.id)) setState(byId.get(one.id), "waiting");
    updateView(false);
    sendNext();
  },
  draft: showDraft,
  typing() {
    typingUntil = Date.now() + TYPING_MS;
    updateView(false);
  },
  work(part) {
    ({ answering = "", waiting = 0 } = part);
    if (!answering) typingUntil = 0;
    updateView(false);
  },
  asked(part) {
    ({ open = [] } = part);
    releaseCards();
    showDock();
    updateView(false);
  },
  chats({ chats = [], problem = "" }) {
    if (problem) setBanner(visible(problem), "stale");
    showChats(chats);
  },
};

function takeParts(parts) {
  if (parts.ready) TAKE.ready(parts.ready);
  const rest = {};
  for (const [name, value] of Object.entries(parts)) {
    if (name === "ready") continue;
    if (name.startsWith("message:")) { if (value) showMessage(value); }
    else if (name in TAKE) TAKE[name](value || {});
    else rest[name] = value;
  }
  if (Object.keys(rest).length) window.hookline?.swap(rest); // what is around the chat on the page of the console
}

function clearMessages() {
  for (const item of new Set([...bySeq.values(), ...drafts.values()])) item.remove();
  for (const known of [bySeq, drafts, stepsBySeq, byKey]) known.clear();
  rev = 0;
}

/** Send something to the server. ``again`` means that it did not take it now, and may later. */
async function post(path, body, chatId = chat, agentId = agent) {
  const address = `${root}${path}?${new URLSearchParams({ agent: agentId })}`;
  const sent = { method: "POST", headers: { ...headers(chatId), "content-type": "application/json" }, body: JSON.stringify(body), signal: AbortSignal.timeout(POST_MS) };
  try {
    const answer = await fetch(address, sent);
    if (answer.ok) return { ok: true };
    if (answer.status === 401) askLogin();
    const again = answer.status === 401 || answer.status === 429 || answer.status >= 500;
    const problem = problemOf(await answer.json().catch(() => ({})));
    return { ok: false, again, problem: problem || "The server did not accept it." };
  } catch {
    return { ok: false, again: true, lost: true, problem: "The server does not answer. Try again." };
  }
}

let laterTimer;
async function sendNext() {
  clearTimeout(laterTimer);
  if (!ready || sending || outbox.length === 0) return;
  sending = true;
  const one = outbox[0];
  const { id, text, files = [] } = one;
  const answer = await post("messages", { id, text, files }, one.chat, one.agent);
  sending = false;
  if (answer.again) {
    const item = one.chat === chat && byId.get(id);
    if (item) setState(item, "waiting", answer.lost ? UNSENT : `Not sent yet: ${answer.problem}`);
    laterTimer = setTimeout(sendNext, 2000);
    return;
  }
  const index = outbox.indexOf(one);
  if (index >= 0) outbox.splice(index, 1);
  store.remove(`out:${id}`);
  const item = one.chat === chat && byId.get(id);
  if (item) setState(item, answer.ok ? "sent" : "refused", answer.ok ? "" : `Not sent: ${answer.problem}`);
  sendNext();
}

// Conversations: those of this browser, or the list of the server

function showChats(list) {
  at("chat").classList.toggle("has-chats", list.length > (pageAddress ? 0 : 1));
  at("chat-list").replaceChildren(...list.map((each) => {
    const words = part("b", "", visible(each.title || "New conversation"));
    words.dir = "auto";
    const name = each.agent && speakers.length > 1 ? `${visible(each.agent)} · ` : "";
    const facts = part("span", "", name, timeElement(each.at));
    let made;
    if (pageAddress) {
      made = part("a", "", words, facts);
      made.href = addressOf(each.agent, each.id);
    } else made = button("", words, () => openChat(each.id));
    if (!pageAddress) made.append(facts);
    if (each.id === chat && (!each.agent || !agent || each.agent === agent)) made.setAttribute("aria-current", "page");
    return part("li", "", made);
  }));
}

function addressOf(name, id = "") {
  return `${pageAddress}?${new URLSearchParams(id ? { agent: name, session: id } : { agent: name })}`;
}

function nameChat(words, seconds) {
  const list = store.json("chats", []);
  const known = list.find((each) => each.id === chat);
  if (known?.title && known.at >= seconds) return;
  const kept = { id: chat, title: known?.title || (words.startsWith("/") ? "" : words.slice(0, 80)), at: seconds, agent: "" };
  const rest = list.filter((each) => each.id !== chat);
  store.set("chats", JSON.stringify([kept, ...rest].sort((a, b) => b.at - a.at).slice(0, MAX_CHATS)));
  showChats(store.json("chats", []));
}

function openChat(id) {
  at("chats").hidePopover?.();
  if (id !== chat) {
    chat = id;
    if (!pageAddress) store.set("chat", chat);
    stream?.abort();
    stream = null;
    ready = refused = false;
    clearMessages();
    log.replaceChildren();
    byId.clear();
    ({ answering, waiting, open } = { answering: "", waiting: 0, open: [] });
    speaker = title;
    showDock();
    if (!pageAddress) showChats(store.json("chats", []));
    for (const one of outbox) if (one.chat === chat) showUnsent(one);
    setStatus("connecting", "Connecting");
    stickToEnd();
    updateView(false);
    reconnectDelay = 500;
    connect();
  }
  if (mayWrite) box.focus();
}

function showOpening() {
  const { description = settings.about ?? "", suggestions = settings.suggestions ?? [] } = speakers.find(({ id }) => id === agent) ?? {};
  const about = part("span", "", visible(description || ""));
  at("about").replaceChildren(...(description ? [about, document.createElement("br")] : []));
  if (commands) at("about").append(part("code", "", "/help"), "shows what else you can type.");
  const offered = suggestions.length ? suggestions : settings.suggestions ?? [];
  at("suggestions").replaceChildren(...offered.map((words) => {
    const made = button("quiet", visible(words), () => { sendText(words); box.focus(); });
    made.dir = "auto";
    return part("li", "", made);
  }));
}

function showSpeaker() {
  const choice = at("speaker");
  choice.hidden = speakers.length < 2;
  if (!pageAddress) agent = speakers.find(({ name }) => name === speaker)?.id ?? agent;
  choice.value = agent;
  const name = speakers.find(({ id }) => id === agent)?.name ?? title;
  at("chat-title").textContent = pageAddress ? visible(name) : title;
  at("chat-title").classList.toggle("unseen", Boolean(pageAddress) && !choice.hidden);
  box.placeholder = pageAddress ? `Write to ${visible(name)}` : "Write a message";
}

for (const { id, name, description = "" } of speakers) {
  const option = part("option", "", visible(name));
  option.value = id;
  option.title = description;
  at("speaker").append(option);
}
at("speaker").addEventListener("change", () => {
  const wanted = at("speaker").value;
  if (pageAddress) { location.href = addressOf(wanted); return; }
  agent = wanted;
  sendText(`/personality ${wanted}`);
  showOpening();
  box.focus();
});

// Input

function withoutLoneSurrogates(text) {
  return new TextDecoder().decode(new TextEncoder().encode(text)); // the server rejects lone surrogates
}

function sendText(text, files = []) {
  const one = { id: newId(), chat, agent, text: withoutLoneSurrogates(text), at: Date.now(), files };
  outbox.push(one);
  store.set(`out:${one.id}`, JSON.stringify({ chat, agent, text: one.text, at: one.at, files }));
  if (pageAddress) history.replaceState(null, "", addressOf(agent, chat));
  else nameChat(one.text, one.at / 1000);
  showUnsent(one);
  sendNext();
}

function resizeInput() {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
  at("send").disabled = !canSend();
}

// Files are uploaded in parts when they are chosen, or sent with the message. A message names the files that belong to it.

let files = [];

const canSend = () => files.every((one) => one.done) && (files.length > 0 || box.value.trim() !== "");

function sizeText(bytes) {
  if (bytes >= 1e6) return `${(bytes / 1e6).toPrecision(3)} MB`;
  return bytes >= 1e3 ? `${Math.round(bytes / 1e3)} kB` : `${bytes} bytes`;
}

function removeFile(one) {
  one.removed = true;
  files = files.filter((each) => each !== one);
  showFiles();
}

function showFiles() {
  at("files").replaceChildren(...files.map((one) => {
    const state = part("span", "", one.done ? sizeText(one.size) : `${Math.floor((100 * one.sent) / one.size)} %`);
    const remove = button("", "×", () => removeFile(one));
    remove.setAttribute("aria-label", `Remove ${one.name}`);
    return part("li", "", part("span", "name", visible(one.name)), state, remove);
  }));
  at("files").hidden = files.length === 0;
  resizeInput();
}

async function upload(one, file) {
  while (one.sent < file.size && !one.removed) {
    const answer = await fetch(`${root}files`, {
      method: "POST",
      headers: { ...headers(), "X-File": one.id, "X-Offset": String(one.sent) },
      body: file.slice(one.sent, one.sent + PART_BYTES),
    });
    const found = await answer.json();
    if (!answer.ok) throw new Error(problemOf(found));
    one.sent = found.size;
    showFiles();
  }
}

async function read(one, file) {
  const reader = new FileReader();
  await new Promise((done, failed) => { reader.onload = done; reader.onerror = () => failed(reader.error); reader.readAsDataURL(file); });
  one.data = reader.result.slice(reader.result.indexOf(",") + 1);
}

function addFile(file) {
  const name = withoutLoneSurrogates(file.name);
  const size = inParts ? file.size : files.reduce((sum, one) => sum + one.size, file.size); // all in one request
  if (files.length >= MAX_FILES) showNote(`A message may have ${MAX_FILES} files.`);
  else if (file.size === 0) showNote(`${name} is empty.`);
  else if (size > maxFile) showNote(`${name} has ${sizeText(file.size)}. ${inParts ? "A file" : "The files of a message"} may have at most ${sizeText(maxFile)}.`);
  else {
    const one = { id: newId(), name, size: file.size, sent: 0, done: false };
    files.push(one);
    showFiles();
    (inParts ? upload(one, file) : read(one, file)).then(() => { one.done = true; showFiles(); }).catch((error) => {
      removeFile(one);
      showNote(`${name} was not attached: ${error.message}`);
    });
  }
}

at("attach").hidden = maxFile === 0;
at("attach").addEventListener("click", () => at("picker").click());
at("picker").addEventListener("change", () => {
  showNote();
  for (const file of at("picker").files) addFile(file);
  at("picker").value = "";
  box.focus();
});
box.addEventListener("paste", (event) => {
  if (maxFile === 0 || event.clipboardData.files.length === 0) return;
  event.preventDefault();
  for (const file of event.clipboardData.files) addFile(file);
});

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = box.value;
  if (!canSend()) return;
  if ([...text].length > maxLength) {
    showNote(`Messages can have at most ${maxLength} characters; this one has ${[...text].length}.`);
    return;
  }
  showNote();
  box.value = "";
  const attached = files.map(({ id, name, data }) => (data ? { id, name, data } : { id, name }));
  files = [];
  showFiles();
  sendText(text, attached);
  box.focus();
});
box.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("composer").requestSubmit();
});
box.addEventListener("input", () => { showNote(); resizeInput(); });
at("stop").addEventListener("click", async () => {
  box.focus();
  const answer = await post("stop", { id: newId() });
  if (!answer.ok) showNote(answer.problem);
});
at("fresh").addEventListener("click", () => {
  if (pageAddress) location.href = addressOf(agent);
  else openChat(newId());
});
at("latest").addEventListener("click", stickToEnd);

// Login: the page around the chat has a form for it, or the page of the server is loaded, which asks for it

const locked = () => Boolean(at("login") && !at("login").hidden);

function askLogin() {
  stream?.abort();
  stream = null;
  ready = false;
  clearTimeout(reconnectTimer);
  setStatus("offline", "Locked");
  setBanner();
  if (!at("login")) { location.reload(); return; }
  at("login").hidden = false;
  at("token").focus();
}

at("key")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const wrong = at("wrong");
  wrong.hidden = true;
  let problem = "The server does not respond.";
  try {
    const answer = await fetch(`${root}login`, { method: "POST", body: JSON.stringify({ token: at("token").value }) });
    problem = answer.ok ? "" : problemOf(await answer.json());
  } catch { /* reported below */ }
  if (problem) {
    wrong.textContent = problem;
    wrong.hidden = false;
    at("token").select();
    return;
  }
  at("token").value = "";
  at("login").hidden = true;
  box.focus();
  reconnectNow();
});

addEventListener("online", reconnectNow);
addEventListener("offline", sayLost);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) { reconnectNow(); return; }
  stream?.abort(); // browsers allow six connections to a server, and one is enough for the page that is in view
  stream = null;
});

at("composer").hidden = !mayWrite;
showSpeaker();
showOpening();
if (!pageAddress) showChats(store.json("chats", []));
if (settings.partsNow) takeParts({ ...settings.partsNow });
for (const one of outbox) if (one.chat === chat && !byId.has(one.id)) showUnsent(one);
resizeInput();
updateView(false);
connect();
if (matchMedia("(hover: hover)").matches && mayWrite) box.focus();

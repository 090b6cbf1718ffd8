// The chat page. Messages that the user writes are kept in local storage until the server has accepted them, under an id
// that stays the same when they are sent again. All other messages come from the server, also after a reload.

import { render } from "./text.js";

const at = (id) => document.getElementById(id);
const [log, scroll, box, status, note] = ["log", "scroll", "text", "status", "note"].map(at);
const title = document.body.dataset.title;
const maxLength = Number(document.body.dataset.max);
const maxFile = Number(document.body.dataset.maxFile);
const newConversationText = document.body.dataset.new;
const storagePrefix = `hookline:${location.pathname}:`;
const TYPING_MS = 9000;
const PING_MS = 25000;
const PONG_MS = 12000;
const MAX_FILES = 20;
const PART_BYTES = 500000;

const memory = new Map();
const store = {
  get(key) {
    try { return localStorage.getItem(storagePrefix + key); } catch { return memory.get(key) ?? null; }
  },
  set(key, value) {
    try { localStorage.setItem(storagePrefix + key, value); } catch { memory.set(key, value); }
  },
  remove(key) {
    try { localStorage.removeItem(storagePrefix + key); } catch { memory.delete(key); }
  },
  keys() {
    try { return Object.keys(localStorage).filter((key) => key.startsWith(storagePrefix)).map((key) => key.slice(storagePrefix.length)); }
    catch { return [...memory.keys()]; }
  },
};

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(24));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_");
}

let chat = store.get("chat");
if (!chat) store.set("chat", (chat = newId()));

const outbox = store.keys().filter((key) => key.startsWith("out:")).flatMap((key) => {
  try { return [{ id: key.slice(4), ...JSON.parse(store.get(key)) }]; } catch { return []; }
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

function createMessage(side, seconds, speaker) {
  const item = document.createElement("li");
  item.className = `message ${side}`;
  const head = document.createElement("header");
  const who = document.createElement("span");
  who.className = "who";
  who.textContent = side === "in" ? "You" : speaker || title;
  head.append(who, timeElement(seconds));
  const text = document.createElement("div");
  text.className = "text";
  item.append(head, text);
  item.dataset.side = side;
  item.dataset.who = who.textContent;
  item.dataset.at = seconds;
  return item;
}

function setState(item, state, words = "") {
  item.classList.toggle("waiting", state === "waiting");
  item.classList.toggle("refused", state === "refused");
  item.querySelector(".state")?.remove();
  if (words) {
    const line = document.createElement("p");
    line.className = "state";
    line.textContent = words;
    item.append(line);
  }
}

function groupWithPrevious(item) {
  const before = item?.previousElementSibling;
  if (!item) return;
  const near = before && before.dataset.side === item.dataset.side && before.dataset.who === item.dataset.who && item.dataset.at - before.dataset.at < 120;
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

function showMessage(message) {
  const low = isLow();
  if (message.steps) {
    showSteps(message);
    updateView(low, false);
    return;
  }
  let item = bySeq.get(message.seq) ?? (message.id && byId.get(message.id));
  const fresh = !item;
  if (!item) item = createMessage(message.side, message.at, message.speaker);
  const asked = byId.get(message.to)?.querySelector(".text").textContent ?? "/";
  if (message.speaker || !asked.startsWith("/")) speaker = message.speaker || title; // replies to commands have no speaker
  if (message.id) byId.set(message.id, item);
  if (message.key) byKey.set(message.key, item);
  bySeq.set(message.seq, item);
  const text = item.querySelector(".text");
  if (message.to) item.dataset.to = message.to;
  if (message.side === "in") text.textContent = message.text;
  else text.replaceChildren(render(message.text));
  if (!outbox.some((one) => one.id === message.id)) setState(item, "sent");
  insertMessage(item, message.seq);
  if (message.side === "out") {
    if (fresh) typingUntil = 0;
    if (message.to) takeSteps(item, message.to);
    showQuote(item);
    if (message.text.includes(newConversationText)) removeOldConversation(item);
    showApprovalButtons();
  }
  updateView(low, fresh && message.side === "out");
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

function showDraft({ to, speaker: name, text }, more = false) {
  const low = isLow();
  for (const item of drafts.values()) if (item.draftText && item.dataset.to !== to) endDraft(item);
  if (to) {
    const item = draftOf(to, name);
    item.draftText = more ? (item.draftText ?? "") + text : text;
    item.querySelector(".text").replaceChildren(render(item.draftText));
    if (!item.draftText) endDraft(item);
  }
  updateView(low, false);
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
    steps = document.createElement("details");
    steps.className = "steps";
    stepsBySeq.set(message.seq, steps);
    const reply = [...log.querySelectorAll(".message.out:not(.draft)")].find((one) => one.dataset.to === message.to);
    const item = reply ?? draftOf(message.to, message.speaker);
    item.append(steps);
    if (!reply && !item.dataset.seq) insertMessage(item, message.seq);
    if (message.speaker) speaker = message.speaker;
  }
  const words = document.createElement("summary");
  const marks = message.steps.filter(({ tone }) => tone === "red" || tone === "violet").map(({ state }) => state);
  const count = message.steps.length === 1 ? "1 step" : `${message.steps.length} steps`;
  words.textContent = [count, ...new Set(marks)].join(", ");
  steps.replaceChildren(words, ...message.steps.map(stepCard));
}

function part(name, className, ...children) {
  const made = document.createElement(name);
  made.className = className;
  made.append(...children);
  return made;
}

function stepCard({ tool, text, state, tone, verdicts }) {
  const head = part("p", "", part("code", "", tool), " ", part("span", `pill ${tone}`, state));
  const card = part("div", `step ${tone}`, head);
  if (text && text !== tool) card.append(part("p", "what", text));
  for (const { word, tone: colour, hook, reason } of verdicts) {
    const line = part("p", "verdict", part("b", colour, [hook, word].filter(Boolean).join(" ")));
    if (reason) line.append(hook ? ": " : " ", reason);
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
  const line = document.createElement("p");
  line.className = "quote";
  line.textContent = asked.querySelector(".text").textContent;
  item.querySelector(".text").before(line);
}

const DECISIONS = [["Approve", "approve"], ["Approve for this conversation", "session"], ["Deny", "deny"]];

// Show buttons below each call that the user may approve or deny.
function showApprovalButtons() {
  const wanted = new Map(open.map((prompt) => [byKey.get(prompt.key), prompt]));
  for (const old of log.querySelectorAll(".choice")) if (!wanted.has(old.parentNode)) old.remove();
  for (const [item, { key, expires }] of wanted) {
    if (!item) continue;
    item.querySelector(".choice")?.remove();
    const choice = part("div", "choice");
    choice.setAttribute("role", "group");
    choice.setAttribute("aria-label", "Decide about this call");
    for (const [words, decision] of DECISIONS) {
      const button = part("button", decision === "approve" ? "yes" : "quiet", words);
      button.type = "button";
      button.addEventListener("click", () => {
        if (!ready) return;
        for (const one of choice.querySelectorAll("button")) one.disabled = true;
        socket.send(JSON.stringify({ type: "decision", id: newId(), key, decision }));
      });
      choice.append(button);
    }
    choice.append(part("p", "until", "Without an answer by ", timeElement(expires), " it does not run."));
    item.append(choice);
    item.classList.add("question");
  }
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
  item.querySelector(".text").textContent = [...(one.files ?? []).map(({ name }) => `[${name}]`), one.text].join(" ").trimEnd();
  byId.set(one.id, item);
  log.append(item);
  groupWithPrevious(item);
  if (!ready) setState(item, "waiting", "Will be sent when you are online");
  else setState(item, "waiting");
  updateView(true, false);
}

const isLow = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;

function updateView(low, news) {
  at("empty").hidden = log.childElementCount > 0;
  updateActivity();
  if (low) scroll.scrollTop = scroll.scrollHeight;
  else if (news) at("latest").hidden = false;
}

let typingTimer;
function updateActivity() {
  const left = typingUntil - Date.now();
  const busy = answering !== "" || left > 0;
  const queue = waiting === 1 ? "1 message waiting" : waiting ? `${waiting} messages waiting` : "";
  at("working").hidden = !busy && !queue;
  at("working-text").textContent = [!busy ? "" : open.length ? "Waiting for your answer" : `${speaker} is working`, queue].filter(Boolean).join(" · ");
  at("stop").hidden = !busy;
  for (const steps of log.querySelectorAll(".steps")) {
    const live = answering !== "" && steps.parentNode.dataset.to === answering;
    if (live !== steps.classList.contains("live")) steps.open = live;
    steps.classList.toggle("live", live);
  }
  clearTimeout(typingTimer);
  if (left > 0) typingTimer = setTimeout(updateActivity, left);
}

function showNote(text = "") {
  note.textContent = text;
  note.hidden = !text;
}

function setStatus(state, words) {
  status.dataset.state = state;
  status.textContent = words;
}

// Connection

let socket = null;
let ready = false;
let sending = false;
let rev = 0;
let reconnectDelay = 500;
let reconnectTimer;
let pongTimer;

function connect() {
  clearTimeout(reconnectTimer);
  if (socket) return;
  const address = new URL("socket", location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  const mine = (socket = new WebSocket(address));
  let isReady = false;
  mine.onopen = () => mine.send(JSON.stringify({ type: "hello", chat, after: rev }));
  mine.onmessage = ({ data }) => {
    const frame = JSON.parse(data);
    if (frame.type === "ready") isReady = true;
    handleFrame(frame);
  };
  mine.onclose = () => {
    if (socket !== mine) return;
    handleDisconnect();
    if (!isReady) checkLogin();
  };
}

function handleDisconnect() {
  socket = null;
  ready = sending = false;
  clearTimeout(pongTimer);
  typingUntil = waiting = 0;
  answering = "";
  open = [];
  showDraft({ to: "" });
  showApprovalButtons();
  updateActivity();
  setStatus("offline", navigator.onLine === false ? "Offline" : "Reconnecting");
  reconnectTimer = setTimeout(connect, reconnectDelay * (0.75 + Math.random() / 2));
  reconnectDelay = Math.min(reconnectDelay * 1.7, 15000);
}

function reconnectNow() {
  if (!at("login").hidden) return;
  if (socket) { ping(); return; }
  reconnectDelay = 500;
  connect();
}

function ping() {
  if (!ready) return;
  socket.send('{"type":"ping"}');
  clearTimeout(pongTimer);
  const mine = socket;
  pongTimer = setTimeout(() => {
    if (socket !== mine) return;
    mine.close();
    handleDisconnect();
  }, PONG_MS);
}

function handleFrame(frame) {
  if (frame.type === "ready") {
    ready = true;
    reconnectDelay = 500;
    setStatus("online", "Connected");
    if (frame.reset) clearMessages();
    for (const one of outbox) setState(byId.get(one.id), "waiting");
    updateView(isLow(), false);
    sendNext();
  } else if (frame.type === "message") {
    rev = Math.max(rev, frame.rev);
    showMessage(frame);
  } else if (frame.type === "draft" || frame.type === "draft_more") {
    showDraft(frame, frame.type === "draft_more");
  } else if (frame.type === "typing") {
    const low = isLow();
    typingUntil = Date.now() + TYPING_MS;
    updateView(low, false);
  } else if (frame.type === "work") {
    const low = isLow();
    ({ answering, waiting } = frame);
    if (!answering) typingUntil = 0;
    updateView(low, false);
  } else if (frame.type === "asked") {
    const low = isLow();
    ({ open } = frame);
    showApprovalButtons();
    updateView(low, false);
  } else if (frame.type === "pong") {
    clearTimeout(pongTimer);
  } else if (frame.type === "taken" || frame.type === "refused") {
    markDelivered(frame.id, frame.type === "refused" ? frame.why : "");
    sending = false;
    sendNext();
  } else if (frame.type === "later") {
    setTimeout(() => { sending = false; sendNext(); }, 2000);
  }
}

function clearMessages() {
  for (const item of new Set([...bySeq.values(), ...drafts.values()])) item.remove();
  for (const known of [bySeq, drafts, stepsBySeq]) known.clear();
  byKey.clear();
  rev = 0;
}

function sendNext() {
  if (!ready || sending || outbox.length === 0) return;
  sending = true;
  const { id, text, files } = outbox[0];
  socket.send(JSON.stringify({ type: "message", id, text, files }));
}

function markDelivered(id, problem) {
  const index = outbox.findIndex((one) => one.id === id);
  if (index >= 0) outbox.splice(index, 1);
  store.remove(`out:${id}`);
  const item = byId.get(id);
  if (item) setState(item, problem ? "refused" : "sent", problem ? `Not sent: ${problem}` : "");
}

// Input

function withoutLoneSurrogates(text) {
  return new TextDecoder().decode(new TextEncoder().encode(text)); // the server rejects lone surrogates
}

function sendText(text, files = []) {
  const one = { id: newId(), text: withoutLoneSurrogates(text), at: Date.now(), files };
  outbox.push(one);
  store.set(`out:${one.id}`, JSON.stringify({ text: one.text, at: one.at, files }));
  showUnsent(one);
  sendNext();
}

function resizeInput() {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
  at("send").disabled = !canSend();
}

// Files are uploaded in parts when they are chosen. A message names the files that belong to it.

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
    const item = document.createElement("li");
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = one.name;
    const state = document.createElement("span");
    state.textContent = one.done ? sizeText(one.size) : `${Math.floor((100 * one.sent) / one.size)} %`;
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "×";
    remove.setAttribute("aria-label", `Remove ${one.name}`);
    remove.addEventListener("click", () => removeFile(one));
    item.append(name, state, remove);
    return item;
  }));
  at("files").hidden = files.length === 0;
  resizeInput();
}

async function upload(one, file) {
  while (one.sent < file.size && !one.removed) {
    const headers = { "X-Chat": chat, "X-File": one.id, "X-Offset": String(one.sent) };
    const answer = await fetch("files", { method: "POST", headers, body: file.slice(one.sent, one.sent + PART_BYTES) });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error?.message ?? found.error);
    one.sent = found.size;
    showFiles();
  }
  one.done = true;
  showFiles();
}

function addFile(file) {
  const name = withoutLoneSurrogates(file.name);
  if (files.length >= MAX_FILES) showNote(`A message may have ${MAX_FILES} files.`);
  else if (file.size === 0) showNote(`${name} is empty.`);
  else if (file.size > maxFile) showNote(`${name} has ${sizeText(file.size)}. A file may have at most ${sizeText(maxFile)}.`);
  else {
    const one = { id: newId(), name, size: file.size, sent: 0, done: false };
    files.push(one);
    showFiles();
    upload(one, file).catch((error) => {
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
  const attached = files.map(({ id, name }) => ({ id, name }));
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
at("stop").addEventListener("click", () => { sendText("/stop"); box.focus(); });
at("fresh").addEventListener("click", () => { sendText("/new"); box.focus(); });
at("latest").addEventListener("click", () => { scroll.scrollTop = scroll.scrollHeight; });
scroll.addEventListener("scroll", () => { if (isLow()) at("latest").hidden = true; });

// Login, if the channel has a token

async function checkLogin() {
  try {
    const answer = await fetch("login", { cache: "no-store" });
    if (answer.status !== 401) return;
  } catch { return; }
  clearTimeout(reconnectTimer);
  setStatus("offline", "Locked");
  at("login").hidden = false;
  at("token").focus();
}

at("key").addEventListener("submit", async (event) => {
  event.preventDefault();
  const wrong = at("wrong");
  wrong.hidden = true;
  let problem = "The server does not respond.";
  try {
    const answer = await fetch("login", { method: "POST", body: JSON.stringify({ token: at("token").value }) });
    problem = answer.ok ? "" : (await answer.json()).error;
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
addEventListener("offline", () => setStatus("offline", "Offline"));
document.addEventListener("visibilitychange", () => { if (!document.hidden) reconnectNow(); });
setInterval(ping, PING_MS);

for (const one of outbox) showUnsent(one);
resizeInput();
connect();

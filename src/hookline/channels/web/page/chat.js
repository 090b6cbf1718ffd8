// The page's side of a conversation. What is typed is kept here until the server has it, under an id that is the same
// when it is sent again; what the server has comes from there, also after a reload.

import { shown } from "./text.js";

const at = (id) => document.getElementById(id);
const [log, scroll, box, status, note] = ["log", "scroll", "text", "status", "note"].map(at);
const title = document.body.dataset.title;
const longest = Number(document.body.dataset.max);
const anew = document.body.dataset.new;
const place = `hookline:${location.pathname}:`;
const TYPING = 9000;
const PING = 25000;
const PONG = 12000;

const memory = new Map();
const store = {
  get(key) {
    try { return localStorage.getItem(place + key); } catch { return memory.get(key) ?? null; }
  },
  set(key, value) {
    try { localStorage.setItem(place + key, value); } catch { memory.set(key, value); }
  },
  remove(key) {
    try { localStorage.removeItem(place + key); } catch { memory.delete(key); }
  },
  keys() {
    try { return Object.keys(localStorage).filter((key) => key.startsWith(place)).map((key) => key.slice(place.length)); }
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

// What is shown

const bySeq = new Map();
const byId = new Map();
const byKey = new Map();
let typingUntil = 0;
let speaker = title;
let answering = "";
let waiting = 0;
let open = [];

function clock(seconds) {
  const time = document.createElement("time");
  const date = new Date(seconds * 1000);
  time.dateTime = date.toISOString();
  const today = date.toDateString() === new Date().toDateString();
  time.textContent = date.toLocaleString([], today ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
  return time;
}

function made(side, seconds, speaker) {
  const item = document.createElement("li");
  item.className = `message ${side}`;
  const head = document.createElement("header");
  const who = document.createElement("span");
  who.className = "who";
  who.textContent = side === "in" ? "You" : speaker || title;
  head.append(who, clock(seconds));
  const text = document.createElement("div");
  text.className = "text";
  item.append(head, text);
  item.dataset.side = side;
  item.dataset.who = who.textContent;
  item.dataset.at = seconds;
  return item;
}

function mark(item, state, words = "") {
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

function group(item) {
  const before = item?.previousElementSibling;
  if (!item) return;
  const near = before && before.dataset.side === item.dataset.side && before.dataset.who === item.dataset.who && item.dataset.at - before.dataset.at < 120;
  item.classList.toggle("follows", Boolean(near));
}

function placed(item, seq) {
  const old = item.nextElementSibling;
  let next = null;
  for (let one = log.lastElementChild; one; one = one.previousElementSibling) {
    if (one === item) continue;
    if (one.dataset.seq && Number(one.dataset.seq) < seq) break;
    next = one;
  }
  item.dataset.seq = seq;
  if (item.parentNode !== log || item.nextElementSibling !== next) log.insertBefore(item, next);
  [item, next, old].forEach(group);
}

function show(message) {
  const low = isLow();
  let item = bySeq.get(message.seq) ?? (message.id && byId.get(message.id));
  const fresh = !item;
  if (!item) item = made(message.side, message.at, message.speaker);
  const asked = byId.get(message.to)?.querySelector(".text").textContent ?? "/";
  if (message.speaker || !asked.startsWith("/")) speaker = message.speaker || title; // a command has no speaker
  if (message.id) byId.set(message.id, item);
  if (message.key) byKey.set(message.key, item);
  bySeq.set(message.seq, item);
  const text = item.querySelector(".text");
  const progress = message.side === "out" && message.text.split("\n").every((line) => line.startsWith("· "));
  item.classList.toggle("progress", progress);
  if (message.to) item.dataset.to = message.to;
  if (progress) text.replaceChildren(steps(message.text, item.classList.contains("live")));
  else if (message.side === "in") text.textContent = message.text;
  else text.replaceChildren(shown(message.text));
  if (!outbox.some((one) => one.id === message.id)) mark(item, "sent");
  placed(item, message.seq);
  if (message.side === "out" && !progress) {
    if (fresh) typingUntil = 0;
    quote(item);
    if (message.text.includes(anew)) begin(item);
    offer();
  }
  settle(low, fresh && message.side === "out");
}

function steps(text, open) {
  const all = document.createElement("details");
  const word = document.createElement("summary");
  word.textContent = "Steps";
  all.append(word, text);
  all.open = open;
  return all;
}

function quote(item) {
  const asked = byId.get(item.dataset.to);
  if (!asked || item.querySelector(".quote")) return;
  let one = item.previousElementSibling;
  if (one?.dataset.to === item.dataset.to && !one.classList.contains("progress")) return;
  while (one && one !== asked && one.dataset.side !== "in") one = one.previousElementSibling;
  if (!one || one === asked) return;
  const line = document.createElement("p");
  line.className = "quote";
  line.textContent = asked.querySelector(".text").textContent;
  item.querySelector(".text").before(line);
}

// Below each call that waits for approval, and that somebody here may decide about: the buttons to do so.
function offer() {
  const wanted = new Map(open.map(({ code, key }) => [byKey.get(key), code]));
  for (const old of log.querySelectorAll(".choice")) if (wanted.get(old.parentNode) !== old.dataset.code) old.remove();
  for (const [item, code] of wanted) {
    if (!item || item.querySelector(".choice")) continue;
    const choice = document.createElement("div");
    choice.className = "choice";
    choice.dataset.code = code;
    choice.setAttribute("role", "group");
    choice.setAttribute("aria-label", `Decide about ${code}`);
    for (const [words, command] of [["Approve", "/approve"], ["Deny", "/deny"]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = command === "/approve" ? "yes" : "quiet";
      button.textContent = words;
      button.addEventListener("click", () => {
        for (const one of choice.children) one.disabled = true;
        speak(`${command} ${code}`);
      });
      choice.append(button);
    }
    item.append(choice);
    item.classList.add("question");
  }
}

// After "/new" only what was said since is shown.
function begin(item) {
  const asked = byId.get(item.dataset.to);
  if (asked?.querySelector(".text").textContent.trim().toLowerCase() !== "/new") return;
  const kept = new Set();
  for (let one = asked.nextElementSibling; one && one !== item; one = one.nextElementSibling) {
    if (one.dataset.side === "in" || kept.has(byId.get(one.dataset.to))) kept.add(one);
  }
  const gone = new Set();
  for (let one = item; one; one = one.previousElementSibling) if (!kept.has(one)) gone.add(one);
  for (const known of [bySeq, byId, byKey]) for (const [key, one] of known) if (gone.has(one)) known.delete(key);
  for (const one of gone) one.remove();
  [...log.children].forEach(group);
}

function showWaiting(one) {
  const item = made("in", one.at / 1000);
  item.querySelector(".text").textContent = one.text;
  byId.set(one.id, item);
  log.append(item);
  group(item);
  if (!ready) mark(item, "waiting", "Will be sent when you are connected");
  else mark(item, "waiting");
  settle(true, false);
}

const isLow = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 80;

function settle(low, news) {
  at("empty").hidden = log.childElementCount > 0;
  work();
  if (low) scroll.scrollTop = scroll.scrollHeight;
  else if (news) at("latest").hidden = false;
}

let quiet;
function work() {
  const left = typingUntil - Date.now();
  const busy = answering !== "" || left > 0;
  const queue = waiting === 1 ? "1 message waits" : waiting ? `${waiting} messages wait` : "";
  at("working").hidden = !busy && !queue;
  at("working-text").textContent = [!busy ? "" : open.length ? "Waiting for your answer" : `${speaker} is working`, queue].filter(Boolean).join(" · ");
  at("stop").hidden = !busy;
  for (const item of log.querySelectorAll(".progress")) {
    const live = answering ? item.dataset.to === answering : left > 0;
    if (live !== item.classList.contains("live")) item.querySelector("details").open = live;
    item.classList.toggle("live", live);
  }
  clearTimeout(quiet);
  if (left > 0) quiet = setTimeout(work, left);
}

function say(text = "") {
  note.textContent = text;
  note.hidden = !text;
}

function setStatus(state, words) {
  status.dataset.state = state;
  status.textContent = words;
}

// The connection

let socket = null;
let ready = false;
let sending = false;
let rev = 0;
let pause = 500;
let again;
let awaited;

function connect() {
  clearTimeout(again);
  if (socket) return;
  const address = new URL("socket", location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  const mine = (socket = new WebSocket(address));
  let met = false;
  mine.onopen = () => mine.send(JSON.stringify({ type: "hello", chat, after: rev }));
  mine.onmessage = ({ data }) => {
    const frame = JSON.parse(data);
    if (frame.type === "ready") met = true;
    receive(frame);
  };
  mine.onclose = () => {
    if (socket !== mine) return;
    lost();
    if (!met) checkLogin();
  };
}

function lost() {
  socket = null;
  ready = sending = false;
  clearTimeout(awaited);
  typingUntil = waiting = 0;
  answering = "";
  open = [];
  offer();
  work();
  setStatus("offline", navigator.onLine === false ? "Offline" : "Reconnecting");
  again = setTimeout(connect, pause * (0.75 + Math.random() / 2));
  pause = Math.min(pause * 1.7, 15000);
}

function hurry() {
  if (!at("login").hidden) return;
  if (socket) { ping(); return; }
  pause = 500;
  connect();
}

function ping() {
  if (!ready) return;
  socket.send('{"type":"ping"}');
  clearTimeout(awaited);
  const mine = socket;
  awaited = setTimeout(() => {
    if (socket !== mine) return;
    mine.close();
    lost();
  }, PONG);
}

function receive(frame) {
  if (frame.type === "ready") {
    ready = true;
    pause = 500;
    setStatus("online", "Connected");
    if (frame.reset) forget();
    for (const one of outbox) mark(byId.get(one.id), "waiting");
    settle(isLow(), false);
    pump();
  } else if (frame.type === "message") {
    rev = Math.max(rev, frame.rev);
    show(frame);
  } else if (frame.type === "typing") {
    const low = isLow();
    typingUntil = Date.now() + TYPING;
    settle(low, false);
  } else if (frame.type === "work") {
    const low = isLow();
    ({ answering, waiting } = frame);
    if (!answering) typingUntil = 0;
    settle(low, false);
  } else if (frame.type === "asked") {
    const low = isLow();
    ({ open } = frame);
    offer();
    settle(low, false);
  } else if (frame.type === "pong") {
    clearTimeout(awaited);
  } else if (frame.type === "taken" || frame.type === "refused") {
    done(frame.id, frame.type === "refused" ? frame.why : "");
    sending = false;
    pump();
  } else if (frame.type === "later") {
    setTimeout(() => { sending = false; pump(); }, 2000);
  }
}

function forget() {
  for (const item of new Set(bySeq.values())) item.remove();
  bySeq.clear();
  byKey.clear();
  rev = 0;
}

function pump() {
  if (!ready || sending || outbox.length === 0) return;
  sending = true;
  const { id, text } = outbox[0];
  socket.send(JSON.stringify({ type: "message", id, text }));
}

function done(id, problem) {
  const index = outbox.findIndex((one) => one.id === id);
  if (index >= 0) outbox.splice(index, 1);
  store.remove(`out:${id}`);
  const item = byId.get(id);
  if (item) mark(item, problem ? "refused" : "sent", problem ? `Not sent: ${problem}` : "");
}

// Where somebody writes

function whole(text) {
  return new TextDecoder().decode(new TextEncoder().encode(text)); // no halves of characters
}

function speak(text) {
  const one = { id: newId(), text: whole(text), at: Date.now() };
  outbox.push(one);
  store.set(`out:${one.id}`, JSON.stringify({ text: one.text, at: one.at }));
  showWaiting(one);
  pump();
}

function fit() {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
  at("send").disabled = box.value.trim() === "";
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = box.value;
  if (text.trim() === "") return;
  if ([...text].length > longest) {
    say(`A message has at most ${longest} characters; this one has ${[...text].length}.`);
    return;
  }
  say();
  box.value = "";
  fit();
  speak(text);
  box.focus();
});
box.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("composer").requestSubmit();
});
box.addEventListener("input", () => { say(); fit(); });
at("stop").addEventListener("click", () => { speak("/stop"); box.focus(); });
at("fresh").addEventListener("click", () => { speak("/new"); box.focus(); });
at("latest").addEventListener("click", () => { scroll.scrollTop = scroll.scrollHeight; });
scroll.addEventListener("scroll", () => { if (isLow()) at("latest").hidden = true; });

// Login, if the channel has a token

async function checkLogin() {
  try {
    const answer = await fetch("login", { cache: "no-store" });
    if (answer.status !== 401) return;
  } catch { return; }
  clearTimeout(again);
  setStatus("offline", "Locked");
  at("login").hidden = false;
  at("token").focus();
}

at("key").addEventListener("submit", async (event) => {
  event.preventDefault();
  const wrong = at("wrong");
  wrong.hidden = true;
  let problem = "The server does not answer.";
  try {
    const answer = await fetch("login", { method: "POST", body: JSON.stringify({ token: at("token").value }) });
    problem = answer.ok ? "" : (await answer.json()).error;
  } catch { /* said below */ }
  if (problem) {
    wrong.textContent = problem;
    wrong.hidden = false;
    at("token").select();
    return;
  }
  at("token").value = "";
  at("login").hidden = true;
  box.focus();
  hurry();
});

addEventListener("online", hurry);
addEventListener("offline", () => setStatus("offline", "Offline"));
document.addEventListener("visibilitychange", () => { if (!document.hidden) hurry(); });
setInterval(ping, PING);

for (const one of outbox) showWaiting(one);
fit();
connect();

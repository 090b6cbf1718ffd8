// The page Chat: Markdown in replies, files as fields of the form, Enter sends, and the newest words stay in view.

const log = document.getElementById("chat-log");
const form = document.querySelector(".composer");
const { render } = await import(log.dataset.renderer);
const MAX_FILES = 10;

function show() {
  const low = innerHeight + scrollY > document.body.scrollHeight - 160;
  for (const each of log.querySelectorAll(".markdown:not(.done)")) {
    each.replaceChildren(render(each.textContent));
    each.classList.add("done");
  }
  if (low) scrollTo(0, document.body.scrollHeight);
}
new MutationObserver(show).observe(document.querySelector(".talk"), { childList: true, subtree: true });
show();
scrollTo(0, document.body.scrollHeight);

if (form) {
  const box = form.querySelector("textarea");
  const attach = form.querySelector(".attach");
  const picker = attach.querySelector("input");
  const chosen = form.querySelector(".files");
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (box.value.trim() || chosen.childElementCount) form.requestSubmit();
  });
  form.addEventListener("reset", () => { chosen.replaceChildren(); setTimeout(() => box.focus()); });
  attach.hidden = false;
  picker.addEventListener("change", async () => {
    for (const file of picker.files) if (chosen.childElementCount < MAX_FILES) chosen.append(await field(file));
    [...chosen.children].forEach((each, n) => {
      each.querySelector(".name").name = `file_name.${n}`;
      each.querySelector(".data").name = `file.${n}`;
    });
    picker.value = "";
    box.focus();
  });
}

/** A file as two fields of the form: its name, and its content in Base64. */
async function field(file) {
  const reader = new FileReader();
  await new Promise((done) => { reader.onload = done; reader.readAsDataURL(file); });
  const made = document.createElement("span");
  made.className = "pill";
  const [name, data] = ["name", "data"].map((kind) => {
    const input = document.createElement("input");
    input.type = "hidden";
    input.className = kind;
    return input;
  });
  name.value = file.name;
  data.value = reader.result.slice(reader.result.indexOf(",") + 1);
  const remove = document.createElement("button");
  remove.type = "button";
  remove.textContent = "×";
  remove.setAttribute("aria-label", `Remove ${file.name}`);
  remove.addEventListener("click", () => made.remove());
  made.append(file.name, " ", remove, name, data);
  return made;
}

// A button at each block of code that copies it; of a console block only the commands.
for (const block of document.querySelectorAll("div.highlight")) {
  const pre = block.querySelector("pre");
  if (!pre) continue;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    let text = pre.innerText.trimEnd();
    const commands = text.split("\n").filter((line) => line.startsWith("$ "));
    if (commands.length) text = commands.map((line) => line.slice(2)).join("\n");
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(pre);
      button.textContent = "Press Ctrl-C";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  block.append(button);
}

// The page that is open is in sight in the list of all pages.
const here = document.querySelector(".sidebar-tree .current-page");
const list = document.querySelector(".sidebar-scroll");
if (here && list) list.scrollTop = here.offsetTop - list.clientHeight / 3;

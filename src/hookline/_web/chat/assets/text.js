// Render a subset of Markdown with text nodes only, so that nothing in a reply can become markup of the page.

const INLINE =
  /`([^`\n]{1,2000})`|\*\*([^*\n]{1,2000})\*\*|\*([^*\s\n][^*\n]{0,2000})\*|\[([^[\]\n]{1,500})\]\((https?:\/\/[^\s()]{1,2000})\)|(https?:\/\/[^\s<>"')\]]{1,2000})/g;

const UNSEEN = /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}]/gu;

/** Return a text in which no character is invisible or turns the others around: those are escaped. */
export function visible(text) {
  return text.replace(/\r\n?/g, "\n").replace(UNSEEN, (each) => {
    const code = each.codePointAt(0);
    return code > 0xffff ? `\\U${code.toString(16).padStart(8, "0")}` : code > 0xff ? `\\u${code.toString(16).padStart(4, "0")}` : `\\x${code.toString(16).padStart(2, "0")}`;
  });
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

const HOST = /(?:[\p{L}\p{N}_-]{1,63}\.){1,10}\p{L}[\p{L}\p{N}-]{1,62}|\d{1,3}(?:\.\d{1,3}){3}|localhost/gu;

// The name of the host in ASCII, as the browser uses it; empty if the address is invalid.
function hostOf(address) {
  return URL.canParse(address) ? new URL(address).hostname : "";
}

function withoutWww(host) {
  return host.replace(/^www\./, "");
}

// Whether a reader of the label could take the link for one to another host: the label names another host, also before
// an @ or in characters that look like ASCII, or the host itself is not in ASCII.
function misleads(host, label) {
  const plain = label.normalize("NFKC").replace(/\p{Cf}/gu, "").replace(/\u3002/g, ".");
  const names = plain.replace(/https?:\/\/([^\s/?#\\]*)\S*/gi, " $1 ").match(HOST) ?? [];
  return /(^|\.)xn--/.test(host) || names.some((name) => withoutWww(hostOf(`http://${name}`)) !== withoutWww(host));
}

function link(address, label) {
  const host = hostOf(address);
  if (!host) return [label];
  const made = element("a", label);
  made.href = address;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  if (!misleads(host, label)) return [made];
  const shown = element("span", `(${host})`);
  shown.className = "host";
  return [made, " ", shown];
}

function inline(text, depth = 0) {
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, code, strong, soft, label, address, bare] = match;
    parts.push(text.slice(end, match.index));
    end = match.index + whole.length;
    if (code !== undefined) parts.push(element("code", code));
    else if (strong !== undefined) parts.push(element("strong", ...(depth ? [strong] : inline(strong, 1))));
    else if (soft !== undefined) parts.push(element("em", ...(depth ? [soft] : inline(soft, 1))));
    else if (address !== undefined) parts.push(...link(address, label));
    else {
      const clean = bare.replace(/[.,;:!?]+$/, "");
      parts.push(...link(clean, clean), bare.slice(clean.length));
    }
  }
  parts.push(text.slice(end));
  return parts.filter((part) => part !== "");
}

function lines(rows) {
  return rows.flatMap((row, index) => (index ? [element("br"), ...inline(row)] : inline(row)));
}

const KINDS = [
  ["ul", /^\s{0,8}[-*•]\s+(.*)$/],
  ["ol", /^\s{0,8}\d{1,9}[.)]\s+(.*)$/],
  ["blockquote", /^>\s?(.*)$/],
];

function kindOf(row) {
  for (const [name, pattern] of KINDS) {
    const match = row.match(pattern);
    if (match) return [name, match[1]];
  }
  return null;
}

/** An element whose text is read from right to left if it begins so. */
function written(name, ...children) {
  const made = element(name, ...children);
  made.dir = "auto";
  return made;
}

function block(name, rows, first) {
  if (name === "blockquote") return written(name, ...lines(rows));
  const made = written(name, ...rows.map((row) => element("li", ...inline(row))));
  if (name === "ol" && first > 1) made.start = first;
  return made;
}

const MAX_COLUMNS = 50;

/** The cells of a row of a table; a pipe in a cell is escaped, or inside code. */
function cells(row) {
  const found = row.trim().replace(/^\|/, "").replace(/\|$/, "").match(/(?:\\\||`[^`]*`|[^|])+|(?<=\|)(?=\|)/g) ?? [];
  return found.slice(0, MAX_COLUMNS).map((each) => each.trim().replaceAll("\\|", "|"));
}

/** How the columns of a table are aligned; nothing if these rows do not begin a table. */
function columns(head, rule) {
  if (!head?.includes("|") || !/^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(rule ?? "")) return null;
  const found = cells(rule).map((each) => (/:$/.test(each) ? (/^:/.test(each) ? "center" : "end") : ""));
  return found.length === cells(head).length ? found : null;
}

function table(aligned, rows) {
  const row = (name, texts) => element("tr", ...aligned.map((side, n) => {
    const cell = written(name, ...inline(texts[n] ?? ""));
    if (side) cell.className = side;
    return cell;
  }));
  const [head, ...body] = rows.map(cells);
  const made = element("div", element("table", element("thead", row("th", head)), element("tbody", ...body.map((each) => row("td", each)))));
  made.className = "table";
  made.tabIndex = 0;
  return made;
}

export function render(text) {
  const made = document.createDocumentFragment();
  const rows = visible(text).split("\n");
  const special = (row) => /^\s{0,3}```/.test(row) || /^#{1,6}\s/.test(row) || /^\s{0,3}([-*_])\1{2,}\s*$/.test(row) || kindOf(row);
  for (let at = 0; at < rows.length; ) {
    const row = rows[at];
    const heading = row.match(/^(#{1,6})\s+(.*)$/);
    const kind = kindOf(row);
    const aligned = columns(row, rows[at + 1]);
    if (aligned) {
      const start = at;
      for (at += 2; at < rows.length && rows[at].includes("|") && !special(rows[at]); at += 1);
      made.append(table(aligned, [row, ...rows.slice(start + 2, at)]));
    } else if (/^\s{0,3}```/.test(row)) {
      const code = [];
      for (at += 1; at < rows.length && !/^\s{0,3}```\s*$/.test(rows[at]); at += 1) code.push(rows[at]);
      at += 1;
      const pre = element("pre", element("code", code.join("\n")));
      pre.tabIndex = 0;
      made.append(pre);
    } else if (/^\s{0,3}([-*_])\1{2,}\s*$/.test(row)) {
      made.append(element("hr"));
      at += 1;
    } else if (heading) {
      made.append(written(heading[1].length < 3 ? "h3" : "h4", ...inline(heading[2])));
      at += 1;
    } else if (kind) {
      const items = [];
      const first = Number.parseInt(row, 10);
      for (let next = kind; next && next[0] === kind[0]; next = at < rows.length ? kindOf(rows[at]) : null) {
        items.push(next[1]);
        at += 1;
      }
      made.append(block(kind[0], items, first));
    } else if (row.trim() === "") {
      at += 1;
    } else {
      const start = at;
      for (at += 1; at < rows.length && rows[at].trim() !== "" && !special(rows[at]) && !columns(rows[at], rows[at + 1]); at += 1);
      made.append(written("p", ...lines(rows.slice(start, at))));
    }
  }
  return made;
}

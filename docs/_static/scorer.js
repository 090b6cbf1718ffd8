// How results of a search are ordered: pages that explain a task come before those that list everything, and those that
// have the words of docs/search_words.py come first. WORDS is that table.
const FOLDERS = [
  [/^docs\/guides\//, 12],
  [/^docs\/concepts\//, 8],
  [/^docs\/reference\/hooks\//, 8],
  [/^docs\/coming-from\//, 8],
  [/^docs\/reference\/(modules|configuration|database)/, -8],
  [/^(CHANGELOG|CONTRIBUTING|bench)/, -20],
];
const ASKED = (new URLSearchParams(location.search).get("q") || "").toLowerCase().split(/[^a-z0-9]+/);

var Scorer = {
  score: ([page, , anchor, , score]) => {
    const name = page.split("/").pop();
    const named = ASKED.filter((word) => word.length > 2 && name.includes(word.replace(/s$/, ""))).length;
    const [, rank] = FOLDERS.find(([pattern]) => pattern.test(page)) || [null, 0];
    const words = WORDS[page] || [];
    const wanted = ASKED.every((word) => words.some((known) => known.startsWith(word))) ? 25 : 0;
    return (anchor ? Math.min(score, 20) : score) + rank + 15 * named + wanted;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// The theme, and tables that are sorted by a click on a column's head.
"use strict";

const root = document.documentElement;
let kept = null;
try { kept = localStorage.getItem("theme"); } catch { /* a page from disk may have no storage */ }
if (kept) root.dataset.theme = kept;

document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* then it holds until the page is closed */ }
});

// What isn't there (no time, no ratio) comes last in either direction.
function compareCells(one, two, numeric, sign) {
  const [a, b] = [one.dataset.value ?? one.textContent, two.dataset.value ?? two.textContent];
  if (!numeric) return sign * a.localeCompare(b);
  if (a === "" || b === "") return (a === "") - (b === "");
  return sign * (Number(a) - Number(b));
}

function sortBy(head) {
  const table = head.closest("table");
  const column = head.cellIndex;
  const descending = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => compareCells(a.cells[column], b.cells[column], "numeric" in head.dataset, descending ? -1 : 1));
  table.tBodies[0].append(...rows);
}

for (const head of document.querySelectorAll("th")) {
  head.querySelector("button").addEventListener("click", () => sortBy(head));
}

for (const input of document.querySelectorAll("input[data-filters]")) {
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of document.getElementById(input.dataset.filters).tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}

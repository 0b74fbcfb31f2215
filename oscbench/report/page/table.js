// Tables: a click on a heading sorts, a text and choices filter, and what is shown can be taken along as CSV.

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const cellText = (cell) => cell.textContent.trim();
const cellValue = (cell) => (cell.dataset.value === undefined ? cellText(cell) : Number(cell.dataset.value));

/** Orders two rows by one column; blanks stand last in either direction, and a number before a word. */
function compareRows(column, direction) {
  return (one, other) => {
    const [a, b] = [one, other].map((row) => cellValue(row.cells[column]));
    if (a === "" || b === "") return (a === "") - (b === "");
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return direction * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
  };
}

function sortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = make("button", { type: "button" }, ...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const first = heading.classList.contains("number") ? "descending" : "ascending";
      const second = first === "ascending" ? "descending" : "ascending";
      const order = heading.getAttribute("aria-sort") === first ? second : first;
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", order);
      const rows = [...table.tBodies[0].rows];
      rows.sort(compareRows(column, order === "ascending" ? 1 : -1));
      table.tBodies[0].append(...rows);
    });
  });
}

/** A field for text, a choice for each column marked so, and the number of rows that are left. */
function filters(table) {
  const rows = [...table.tBodies[0].rows];
  const search = make("input", { type: "search", placeholder: "filter", ariaLabel: "filter rows" });
  const count = make("span", { className: "count" });
  count.setAttribute("aria-live", "polite");
  const choices = [...table.tHead.rows[0].cells].flatMap((heading, column) => {
    if (!heading.dataset.choice) return [];
    const values = [...new Set(rows.map((row) => cellText(row.cells[column])))];
    const options = values.map((value) => make("option", { value }, value || "(blank)"));
    const name = heading.textContent.trim();
    const select = make("select", { ariaLabel: name }, make("option", { value: "*" }, `${name}: all`), ...options);
    return [{ column, select }];
  });
  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const chosen = choices.every((c) => c.select.value === "*" || cellText(row.cells[c.column]) === c.select.value);
      row.hidden = !(chosen && words.every((word) => text.includes(word)));
    }
    const left = rows.filter((row) => !row.hidden).length;
    count.textContent = left === rows.length ? `${left} rows` : `${left} of ${rows.length} rows`;
  };
  for (const control of [search, ...choices.map((choice) => choice.select)]) control.addEventListener("input", apply);
  apply();
  return [search, ...choices.map((choice) => choice.select), count];
}

/** The rows that are shown, in the order shown; numbers with all their digits. */
function csvOf(table) {
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const isNumber = (cell) => cell.dataset.value !== undefined && !Number.isNaN(Number(cellText(cell)));
  const plain = (cell) => (isNumber(cell) ? cell.dataset.value : cellText(cell));
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
  return [table.tHead.rows[0], ...rows].map((row) => [...row.cells].map(plain).map(quoted).join(",") + "\n").join("");
}

function takeAlong(table) {
  const copy = make("button", { type: "button" }, "Copy CSV");
  copy.addEventListener("click", async () => {
    const done = await navigator.clipboard.writeText(csvOf(table)).then(() => "Copied", () => "Not allowed");
    copy.textContent = done;
    setTimeout(() => { copy.textContent = "Copy CSV"; }, 2000);
  });
  const save = make("button", { type: "button" }, "Save CSV");
  save.addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([csvOf(table)], { type: "text/csv" }));
    make("a", { href: address, download: `${table.dataset.name}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  });
  return [copy, save];
}

function enhanceTable(table) {
  const tools = make("div", { className: "tools" }, ...filters(table), ...takeAlong(table));
  table.closest(".scroll").before(tools);
  sortable(table);
}

// Every case: problems down, candidates across. A cell opens its samples, interval, environment and command.

const PAGE_ROWS = 40;
const PRINT_ROWS = 400;

function drawCells(records) {
  if (!records.length) return [el("p", { class: "empty" }, "No case is in this selection.")];
  const problems = ordered([...groupBy(records, (r) => r.problem).values()]);
  const whos = CANDIDATES.filter((who) => records.some((r) => r.who === who));
  const extra = cellColumns(records);
  const body = el("tbody");
  const box = table(`Median time and ${UNIT.name} of ${counted(records.length, "case")}. A cell opens its samples, interval, environment and command.`,
    ["mask", "tokens", "direction", ...extra.map(([title]) => title), headNumber("visible"), ...whos.map((who) => el("th", { scope: "col", class: "number" }, named(who)))], [], "cells");
  box.querySelector("tbody").replaceWith(body);
  const more = el("button", { type: "button", class: "screen" });
  const rest = el("p", { class: "only-print quiet" });
  let count = 0;
  const addRows = (until) => {
    body.append(...problems.slice(count, until).map((of) => cellRow(of, whos, extra)));
    count = Math.max(count, Math.min(until, problems.length));
    more.hidden = count >= problems.length;
    more.textContent = `Show ${Math.min(5 * PAGE_ROWS, problems.length - count)} more of ${counted(problems.length - count, "problem")}`;
    rest.textContent = count < problems.length ? `${counted(problems.length - count, "further problem")} not printed; narrow the filters to print them.` : "";
  };
  more.addEventListener("click", () => {
    const next = count;
    addRows(count + 5 * PAGE_ROWS);
    body.children[next].querySelector("button")?.focus();
  });
  addRows(PAGE_ROWS);
  box.openFold = () => addRows(PRINT_ROWS);
  box.setAttribute("data-fold", "");
  return [box, el("p", {}, more), rest];
}

// Problems by mask, direction and length.
function ordered(problems) {
  const masks = new Map(distinct(RECORDS, "mask").map((mask, place) => [mask, place]));
  const directions = distinct(RECORDS, "direction");
  const place = ([some]) => [masks.get(some.mask), directions.indexOf(some.direction), some.seqlen];
  return problems.map((of) => [place(of), of]).sort(([a], [b]) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]).map(([, of]) => of);
}

// The columns that tell this selection's problems apart, beside mask, length and direction.
function cellColumns(records) {
  const columns = [["shape", (r) => r.shape], ["seed", (r) => String(r.seed)], ["device", (r) => r.device], ["run", runName]];
  return columns.filter(([, show]) => new Set(records.map(show)).size > 1);
}

function cellRow(records, whos, extra) {
  const [some] = records;
  const by = new Map(records.map((record) => [record.who, record]));
  const best = Math.min(...records.filter((r) => r.ok).map((r) => r.median));
  return el("tr", {}, el("th", { scope: "row" }, some.mask), el("td", { class: "nowrap" }, tokens(some.seqlen)), el("td", {}, some.direction),
    extra.map(([, show]) => el("td", {}, el("bdi", {}, show(some)))), number(percent(some.density)),
    whos.map((who) => cell(by.get(who), best)));
}

function cell(record, best) {
  if (!record) return number("");
  const fastest = record.ok && record.median === best;
  return number(caseButton(record, cellWords(record, fastest)), { class: fastest ? "best" : "" });
}

function cellWords(record, fastest) {
  if (record.median === null) return record.status === "unsupported" ? "refused" : el("span", { class: "bad" }, record.status.toUpperCase());
  return [fastest ? "★ " : "", milliseconds(record.median), record.status === "suspect" ? "?" : "", el("br"), el("span", { class: "unit" }, `${throughput(record)} ${UNIT.name}`)];
}

function caseButton(record, label) {
  return el("button", { type: "button", class: "plain", "aria-haspopup": "dialog", onclick: () => openCase(record) }, label,
    el("span", { class: "hidden-text" }, `, ${record.who}, ${record.mask}, ${tokens(record.seqlen)}, ${record.direction}`));
}

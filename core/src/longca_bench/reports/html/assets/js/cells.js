// Every case: problems down, candidates across. A cell opens its samples, interval, environment and command.

const PAGE_ROWS = 40;
const PRINT_ROWS = 1000;

function drawCells(records) {
  if (!records.length) return [el("p", { class: "empty" }, "No case is in this selection.")];
  const problems = ordered([...groupBy(records, (r) => r.problem).values()]);
  const whos = CANDIDATES.filter((who) => records.some((r) => r.who === who));
  const extra = cellColumns(records);
  const body = el("tbody");
  const box = table(
    `Median time and ${UNIT.name} of ${counted(records.length, "case")}. ` +
      "A cell opens its samples, interval, environment and command.",
    [
      "mask",
      "tokens",
      "direction",
      ...extra.map(([title]) => title),
      headNumber("visible"),
      ...whos.map((who) => el("th", { scope: "col", class: "number" }, named(who))),
    ],
    [],
    "cells",
  );
  box.querySelector("tbody").replaceWith(body);
  const more = el("button", { type: "button", class: "screen" });
  let count = 0;
  const addRows = (until) => {
    body.append(...problems.slice(count, until).map((of) => cellRow(of, whos, extra)));
    count = Math.max(count, Math.min(until, problems.length));
    more.hidden = count >= problems.length;
    const left = problems.length - count;
    more.textContent = `Show ${Math.min(5 * PAGE_ROWS, left)} more of ${counted(left, "problem")}`;
  };
  more.addEventListener("click", () => {
    const next = count;
    addRows(count + 5 * PAGE_ROWS);
    body.children[next].querySelector("button")?.focus();
  });
  addRows(PAGE_ROWS);
  return [
    el("div", { class: "screen" }, box, el("p", {}, more)),
    el("div", { id: "print-cells", class: "only-print" }),
  ];
}

// For print: a row for each case, because many candidates do not fit beside each other. The commands of the fastest
// follow.
function printedCells(records) {
  const extra = cellColumns(records);
  const cases = ordered([...groupBy(records, (r) => r.problem).values()]).flatMap((of) =>
    [...of].sort((a, b) => (a.ok ? a.median : Infinity) - (b.ok ? b.median : Infinity)),
  );
  const rows = cases.slice(0, PRINT_ROWS).map((r, place) =>
    el(
      "tr",
      { class: cases[place - 1]?.problem === r.problem ? "" : "first" },
      el("td", {}, r.mask),
      el("td", { class: "nowrap" }, tokens(r.seqlen)),
      el("td", {}, r.direction),
      extra.map(([, show]) => el("td", {}, el("bdi", {}, show(r)))),
      el("td", {}, named(r.who)),
      number(r.median === null ? r.status : duration(r.median)),
      number(r.low === null ? "" : `${three(r.low * 1e3)}–${three(r.high * 1e3)} ms`, { class: "range" }),
      number(String(r.count || "")),
      number(r.tflops === null ? "" : throughput(r)),
      number(r.peak === null ? "" : memory(r.peak)),
    ),
  );
  const heads = [
    "mask",
    "tokens",
    "direction",
    ...extra.map(([title]) => title),
    "kernel or strategy",
    headNumber("time"),
    headNumber("interval"),
    headNumber("samples"),
    headNumber(UNIT.name),
    headNumber("peak"),
  ];
  const fastest = [
    ...groupBy(
      records.filter((r) => r.ok),
      (r) => r.problem,
    ).values(),
  ].map((of) => of.reduce((a, b) => (b.median < a.median ? b : a)));
  const commands = [...new Set(fastest.slice(0, PRINT_ROWS).map((r) => r.command))];
  const left =
    cases.length > PRINT_ROWS
      ? el(
          "p",
          {},
          `The first ${PRINT_ROWS} of ${counted(cases.length, "case")} are printed. `,
          "Narrow the filters to print the others.",
        )
      : "";
  return [
    left,
    table(counted(Math.min(cases.length, PRINT_ROWS), "case"), heads, rows),
    el("h3", {}, "Commands that measure the fastest again"),
    el("pre", {}, commands.join("\n")),
  ];
}

// Problems by mask, direction and length.
function ordered(problems) {
  const masks = new Map(distinct(RECORDS, "mask").map((mask, place) => [mask, place]));
  const directions = distinct(RECORDS, "direction");
  const place = ([some]) => [masks.get(some.mask), directions.indexOf(some.direction), some.seqlen];
  return problems
    .map((of) => [place(of), of])
    .sort(([a], [b]) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2])
    .map(([, of]) => of);
}

// The columns that tell this selection's problems apart, beside mask, length and direction.
function cellColumns(records) {
  const columns = [
    ["shape", (r) => r.shape],
    ["seed", (r) => String(r.seed)],
    ["device", (r) => r.device],
    ["run", runName],
  ];
  return columns.filter(([, show]) => new Set(records.map(show)).size > 1);
}

function cellRow(records, whos, extra) {
  const [some] = records;
  const by = new Map(records.map((record) => [record.who, record]));
  const timed = records.filter((r) => r.ok).map((r) => r.median);
  const best = timed.length > 1 ? Math.min(...timed) : null;
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, some.mask),
    el("td", { class: "nowrap" }, tokens(some.seqlen)),
    el("td", {}, some.direction),
    extra.map(([, show]) => el("td", { class: "nowrap" }, el("bdi", {}, show(some)))),
    number(percent(some.density)),
    whos.map((who) => cell(by.get(who), best)),
  );
}

function cell(record, best) {
  if (!record) return number("");
  const fastest = record.ok && record.median === best;
  return number(caseButton(record, cellWords(record, fastest)), { class: fastest ? "best" : "" });
}

function cellWords(record, fastest) {
  if (record.median === null)
    return record.status === "unsupported"
      ? el("span", { class: "quiet" }, "refused")
      : el("span", { class: "bad" }, record.status.toUpperCase());
  return [
    fastest ? "★ " : "",
    duration(record.median),
    record.status === "suspect" ? "?" : "",
    el("br"),
    el("span", { class: "unit" }, `${throughput(record)} ${UNIT.name}`),
  ];
}

function caseButton(record, label) {
  return el(
    "button",
    { type: "button", class: "plain", "aria-haspopup": "dialog", onclick: () => openCase(record) },
    label,
    el(
      "span",
      { class: "hidden-text" },
      `, ${record.who}, ${record.mask}, ${tokens(record.seqlen)}, ${record.direction}`,
    ),
  );
}

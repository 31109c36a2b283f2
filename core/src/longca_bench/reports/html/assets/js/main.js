// The page: sections are drawn again when a filter changes.

const SECTIONS = [
  ["answer", "The fastest", drawAnswer],
  ["throughput", "Throughput", drawThroughput],
  ["profile", "Profile", drawProfile],
  ["memory", "Memory", drawMemory],
  ["compare", "Two runs", drawCompare],
  ["cells", "Every case", drawCells],
  ["failures", "Failed", drawFailures],
  ["runs", "Runs", drawRuns],
];

function drawSections() {
  const records = selected();
  for (const [section, , make] of SECTIONS) content(section).replaceChildren(...make(records).filter(Boolean));
  document.getElementById("print-filters").textContent = filterWords() ? `Shown: ${filterWords()}` : "";
  sweep();
  drawWhenIdle();
  return records.length;
}

function drawHead() {
  const statuses = [...groupBy(RECORDS, (r) => r.status)]
    .map(([status, of]) => `${of.length.toLocaleString("en")} ${status}`)
    .join(", ");
  const devices = distinct(RECORDS, "device");
  const dates = distinct(RECORDS, "finished")
    .filter(Boolean)
    .map((text) => text.slice(0, 10))
    .sort();
  document.getElementById("title").replaceChildren(
    RUNS.length === 1 ? "Attention benchmark: " : `Attention benchmark of ${RUNS.length} runs: `,
    el(
      "bdi",
      {},
      RUNS.length < 4
        ? listed(RUNS.map((run) => run.name))
        : `${RUNS.slice(0, 3)
            .map((run) => run.name)
            .join(", ")} and more`,
    ),
  );
  document.getElementById("about").textContent = [
    listed(devices.slice(0, 3)),
    `${counted(RECORDS.length, "case")}: ${statuses}`,
    `masks: ${distinct(RECORDS, "mask").length}`,
    `kernels: ${distinct(RECORDS, "kernel").length}`,
    dates.length ? range2(dates) : "",
  ]
    .filter(Boolean)
    .join(" · ");
  document.getElementById("about").after(el("p", { id: "print-filters", class: "only-print" }));
  if (DATA.leftOut.length)
    document.getElementById("left-out").append(el("p", { class: "notice" }, DATA.leftOut.join(" ")));
  document
    .getElementById("sections")
    .append(
      ...SECTIONS.filter(([section]) => section !== "compare" || RUNS.length > 1).map(([section, title]) =>
        el("li", {}, el("a", { href: `#${section}` }, title)),
      ),
    );
  show("compare", RUNS.length > 1);
}

function range2(dates) {
  return dates[0] === dates.at(-1) ? dates[0] : `${dates[0]} to ${dates.at(-1)}`;
}

// For print every fold is open and every chart is drawn. Afterwards the folds are as they were. Rankings of the answer
// stay closed, because the list of cases has them.
function openForPrint() {
  const folds = [...document.querySelectorAll("main details:not([open])")];
  folds.forEach((one) => {
    one.open = true;
  });
  const cells = document.getElementById("print-cells");
  cells?.replaceChildren(...printedCells(selected()).filter(Boolean));
  addEventListener(
    "afterprint",
    () => {
      folds.forEach((one) => {
        one.open = false;
      });
      cells?.replaceChildren();
    },
    { once: true },
  );
  return drawAll();
}

addEventListener("beforeprint", openForPrint);
drawHead();
buildFilters(drawSections)();
document.documentElement.dataset.ready = String(Math.round(performance.now()));

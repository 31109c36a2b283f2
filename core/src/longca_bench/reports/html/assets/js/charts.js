// Charts: Vega-Lite specifications as figures. A chart is drawn when it comes into view, when the browser is idle, or
// before printing.

const STYLE = {
  background: null,
  aria: false,
  font: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
  view: { stroke: null },
  axis: {
    labelColor: "var(--quiet)",
    titleColor: "var(--quiet)",
    gridColor: "var(--grid)",
    domainColor: "var(--rule)",
    tickColor: "var(--rule)",
    labelFontSize: 11,
    titleFontSize: 11,
    titleFontWeight: "normal",
    labelLimit: 150,
  },
};
const WAITING = new Map();
const DRAWN = new Map();
const observer = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
  },
  { rootMargin: "300px" },
);

function figure(title, note, label, spec) {
  const box = el("div", { class: "chart", role: "img", "aria-label": label });
  box.style.minHeight = `${spec.height + 50}px`;
  WAITING.set(box, spec);
  observer.observe(box);
  return el("figure", {}, el("figcaption", {}, title, note ? el("span", { class: "quiet" }, ` ${note}`) : null), box);
}

function draw(box) {
  const spec = WAITING.get(box);
  if (!spec) return null;
  WAITING.delete(box);
  observer.unobserve(box);
  const full = { width: "container", autosize: { type: "fit-x", contains: "padding" }, ...spec };
  const options = { actions: false, renderer: "svg", ast: true, config: STYLE, tooltip: tip, defaultStyle: false };
  // Vega-Embed gives its element a role; the box keeps its own.
  const inner = el("div");
  box.append(inner);
  return vegaEmbed(inner, full, options).then((made) => {
    made.view.addEventListener("click", (_, item) => {
      if (item?.datum?.index !== undefined) openCase(RECORDS[item.datum.index]);
    });
    if (box.isConnected) DRAWN.set(box, made);
    else made.finalize();
  });
}

// Forgets the charts that a section no longer has.
function sweep() {
  for (const box of WAITING.keys())
    if (!box.isConnected) {
      observer.unobserve(box);
      WAITING.delete(box);
    }
  for (const [box, made] of DRAWN)
    if (!box.isConnected) {
      made.finalize();
      DRAWN.delete(box);
    }
}

function drawAll() {
  return Promise.all([...WAITING.keys()].map(draw));
}

// Draws the waiting charts one by one while the browser has nothing else to do.
function drawWhenIdle() {
  const idle = window.requestIdleCallback ?? ((next) => setTimeout(next, 50));
  idle(() => {
    const [box] = WAITING.keys();
    if (box) Promise.resolve(draw(box)).then(drawWhenIdle);
  });
}

function tip(_, event, item, value) {
  const box = document.getElementById("tip");
  box.hidden = !value;
  if (!value) return;
  box.textContent = String(value);
  const [width, height] = [box.offsetWidth, box.offsetHeight];
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4))}px`;
  box.style.top = `${event.clientY + height + 24 > innerHeight ? event.clientY - height - 10 : event.clientY + 16}px`;
}

// An axis of lengths. Many lengths get ticks at powers of two.
function lengthAxis(lengths) {
  const [first, last] = [Math.min(...lengths), Math.max(...lengths)];
  const powers = [];
  for (let power = 2 ** Math.ceil(Math.log2(first)); power <= last; power *= 2) powers.push(power);
  const margin = (last / first) ** 0.05;
  return {
    field: "seqlen",
    type: "quantitative",
    scale: { type: "log", base: 2, domain: [first / margin, last * margin], nice: false },
    axis: {
      title: "tokens",
      values: lengths.length > 6 ? powers : lengths,
      grid: false,
      labelOverlap: "greedy",
      labelSeparation: 6,
      labelExpr:
        "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~g') + ' M' " +
        ": datum.value % 512 == 0 ? format(datum.value / 1024, '.4~g') + ' K' : format(datum.value, ',')",
    },
  };
}

const ROW = 25; // height of a row in a chart of rows
const POINT = { type: "point", filled: true, size: 30, strokeWidth: 0.5, opacity: 1, cursor: "pointer" };

// The layer of intervals along an axis; none if no value has one.
function intervals(values, axis, strokeWidth) {
  if (!values.some((value) => value.low)) return [];
  return [
    {
      transform: [{ filter: "isValid(datum.low)" }],
      mark: { type: "rule", strokeWidth, opacity: 0.65 },
      encoding: { [axis]: { field: "low", type: "quantitative" }, [`${axis}2`]: { field: "high" } },
    },
  ];
}

// The dashes of a run's lines.
function dashes(run) {
  return [
    [1, 0],
    [6, 3],
    [2, 2],
    [8, 2, 2, 2],
    [1, 4],
    [12, 3],
  ][run % 6];
}

// A chart of lines over lengths. Values: who, run, seqlen, y, low, high, tip, index.
function lineChart(values, title, top) {
  const scales = whoScales(values);
  const y = {
    field: "y",
    type: "quantitative",
    title,
    scale: { domainMin: 0, ...(top ? { domainMax: top } : {}), nice: true },
    axis: { tickCount: 5 },
  };
  const runs = distinct(values, "run");
  const dash = { field: "run", type: "nominal", legend: null, scale: { domain: runs, range: runs.map(dashes) } };
  return {
    height: 190,
    data: { values },
    encoding: { x: lengthAxis(distinct(values, "seqlen").sort((a, b) => a - b)), y, color: scales.color },
    layer: [
      { mark: { type: "line", strokeWidth: 1.6 }, encoding: { strokeDash: dash, detail: [{ field: "run" }] } },
      ...intervals(values, "y", 1.2),
      { mark: POINT, encoding: { shape: scales.shape, tooltip: { field: "tip" } } },
    ],
  };
}

// A chart of one row for each text of `row`, with a mark for each candidate.
function dotChart(values, title, rows, narrow) {
  const scales = whoScales(values);
  return {
    height: rows.length * ROW,
    data: { values },
    encoding: {
      y: {
        field: "row",
        type: "nominal",
        sort: rows,
        title: null,
        axis: {
          grid: true,
          ticks: false,
          domain: false,
          labelColor: "var(--ink)",
          labelFontSize: 12,
          labelLimit: narrow ? 120 : 340,
        },
      },
      x: {
        field: "y",
        type: "quantitative",
        title,
        scale: { domainMin: 0, nice: true },
        axis: { tickCount: narrow ? 4 : 8, orient: "bottom" },
      },
      color: scales.color,
    },
    layer: [
      ...intervals(values, "x", 1.5),
      { mark: { ...POINT, size: 60 }, encoding: { shape: scales.shape, tooltip: { field: "tip" } } },
    ],
  };
}

function isNarrow() {
  return innerWidth < 640;
}

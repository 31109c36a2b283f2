// Performance profiles: Dolan and Moré, "Benchmarking optimization software with performance profiles", Mathematical
// Programming 91, 2002. A case without a time is within no factor.

const MOST_STEPS = 200; // steps of a curve that a chart draws
const FACTORS = [1, 1.05, 1.1, 1.25, 1.5, 2, 4];

function drawProfile(records) {
  const groups = [...groupBy(records, (r) => [r.direction, r.device].join("\n")).values()]
    .map(profileOf)
    .filter(Boolean);
  if (!groups.length)
    return [
      el(
        "p",
        { class: "empty" },
        "A profile needs problems that at least two kernels or strategies were asked to solve.",
      ),
    ];
  const shown = groups.flatMap(({ records: of }) => of);
  return [
    el(
      "p",
      {},
      "A line shows the share of problems that a kernel or strategy solves within a factor of the fastest time. ",
      "The share at 1 is the share of wins. A failed or refused case is within no factor. ",
      "The table has the factors beyond the chart.",
    ),
    key(shown),
    el(
      "div",
      { class: "charts" },
      groups.map(({ title, problems, curves, records: of }) => {
        const name = title + (about(of[0], records, ["device"]) ? `, ${of[0].device}` : "");
        return figure(
          name,
          counted(problems, "problem"),
          `${name}: performance profile. The table below has the numbers.`,
          profileChart(curves),
        );
      }),
    ),
    fold("The profile as a table", groups.map(profileTable)),
  ];
}

function profileOf(records) {
  const problems = [...groupBy(records, (r) => r.problem).values()].filter(
    (of) => of.length > 1 && of.some((r) => r.ok),
  );
  if (!problems.length) return null;
  const factors = new Map();
  for (const of of problems) {
    const best = Math.min(...of.filter((r) => r.ok).map((r) => r.median));
    for (const r of of) groupInto(factors, r.who, [], (list) => list.push(r.ok ? r.median / best : Infinity));
  }
  const curves = [...factors]
    .map(([who, list]) => ({ who, list: list.sort((a, b) => a - b) }))
    .sort((a, b) => within(b.list, 1) - within(a.list, 1) || within(b.list, 2) - within(a.list, 2));
  return { title: titled(records[0].direction), problems: problems.length, curves, records: problems.flat() };
}

// The share of an ascending list that is at most a factor.
function within(list, factor) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= factor) low = middle + 1;
    else high = middle;
  }
  return low / list.length;
}

function profileChart(curves) {
  const finite = curves.flatMap(({ list }) => list.filter(Number.isFinite)).sort((a, b) => a - b);
  const last = Math.min(Math.max(finite[Math.floor((finite.length - 1) * 0.8)] * 1.1, 1.25), 8);
  const values = curves.flatMap(({ who, list }) => profilePoints(who, list, last));
  const ticks = [1, 1.05, 1.1, 1.2, 1.5, 2, 3, 4, 8, 16, 32].filter(
    (tick) => tick <= last && (last < 2 || ![1.05, 1.1].includes(tick)) && (last < 5 || ![1.2, 3].includes(tick)),
  );
  const scales = whoScales(values);
  return {
    height: 240,
    data: { values },
    encoding: {
      x: {
        field: "factor",
        type: "quantitative",
        title: "time over the fastest",
        scale: { type: "log", domain: [1, last], nice: false },
        axis: { values: ticks, labelExpr: "format(datum.value, '.3~g') + '×'", labelOverlap: "greedy" },
      },
      y: {
        field: "share",
        type: "quantitative",
        title: "share of problems",
        scale: { domain: [0, 1] },
        axis: { format: ".0%", tickCount: 5 },
      },
      color: scales.color,
    },
    layer: [
      { mark: { type: "line", interpolate: "step-after", strokeWidth: 1.8, clip: true } },
      {
        transform: [{ filter: "datum.mark" }],
        mark: { ...POINT, cursor: "default" },
        encoding: { shape: scales.shape, tooltip: { field: "tip" } },
      },
    ],
  };
}

// The steps of a curve, with marks at both ends and at steps that are well apart.
function profilePoints(who, list, last) {
  const factors = [...new Set(list.filter((factor) => factor <= last))];
  const every = Math.ceil(factors.length / MOST_STEPS);
  const steps = factors
    .filter((_, place) => place % every === 0)
    .map((factor) => ({ factor, share: within(list, factor) }));
  if (steps[0]?.factor !== 1) steps.unshift({ factor: 1, share: 0 });
  steps.push({ factor: last, share: steps.at(-1).share });
  let marked = 0;
  return steps.map((step, place) => {
    const mark = place === 0 || place === steps.length - 1 || Math.log(step.factor / marked) > Math.log(last) / 6;
    if (mark) marked = step.factor;
    return { who, ...step, mark, tip: `${who}\n${percent(step.share)} within ${times(step.factor)} of the fastest` };
  });
}

function profileTable({ title, curves, records }) {
  const heads = [
    "kernel or strategy",
    ...FACTORS.map((factor) => headNumber(factor === 1 ? "fastest" : `within ${factor}×`)),
    headNumber("any time"),
    headNumber("asked"),
  ];
  const rows = curves.map(({ who, list }) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, named(who)),
      FACTORS.map((factor) => number(percent(within(list, factor)))),
      number(percent(within(list, Number.MAX_VALUE))),
      number(String(list.length)),
    ),
  );
  return table(`${title}, ${records[0].device}: share of problems within a factor of the fastest`, heads, rows);
}

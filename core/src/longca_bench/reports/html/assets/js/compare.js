// Two runs compared: the ratio of each case that is in both, and the facts in which the environments differ.

const COMPARED = { a: 0, b: 1 };
// Facts that must agree, or times are not comparable.
const MUST_AGREE = new Set(["device.name", "packages.torch", "python", "suite", "driver"]);
const SHOWN_PAIRS = 30;

function drawCompare(records) {
  if (RUNS.length < 2) return [];
  const chosen = el("div");
  const redraw = () => {
    chosen.replaceChildren(...comparison(records).filter(Boolean));
    sweep();
    drawWhenIdle();
  };
  const choose = (side) =>
    el(
      "select",
      {
        onchange: (event) => {
          COMPARED[side] = Number(event.target.value);
          redraw();
        },
      },
      RUNS.map((run, i) => el("option", { value: i, selected: COMPARED[side] === i }, run.name)),
    );
  chosen.append(...comparison(records).filter(Boolean));
  return [
    el("p", { class: "screen" }, el("label", {}, "A: ", choose("a")), "  ", el("label", {}, "B: ", choose("b"))),
    chosen,
  ];
}

function comparison(records) {
  const [a, b] = [COMPARED.a, COMPARED.b];
  const pairs = pairsOf(records, a, b);
  const timed = pairs.filter(([x, y]) => x.ok && y.ok).map(([x, y]) => ({ a: x, b: y, ratio: ratio([[x, y]]) }));
  const parts = [differences(a, b)];
  if (!pairs.length)
    return [el("p", {}, `${RUNS[a].name} and ${RUNS[b].name} have no case in common in this selection.`), ...parts];
  if (timed.length) parts.unshift(...ratios(timed, a, b));
  const changed = pairs.filter(([x, y]) => x.status !== y.status);
  if (changed.length) parts.push(changedTable(changed));
  return parts;
}

function pairsOf(records, a, b) {
  const ofB = new Map(records.filter((r) => r.run === b).map((r) => [r.pair, r]));
  return records.filter((r) => r.run === a && ofB.has(r.pair)).map((r) => [r, ofB.get(r.pair)]);
}

function verdict(found) {
  const faster = found.value > 1 ? "B faster" : "A faster";
  const words = { unknown: "too few samples", tie: "no difference shown", few: `${faster}, few samples`, sure: faster };
  return words[sureness(found)];
}

function ratios(timed, a, b) {
  const all = ratio(timed.map((pair) => [pair.a, pair.b]));
  const counts = groupBy(timed, (pair) => verdict(pair.ratio));
  const words = [...counts].map(([word, of]) => `${word} in ${of.length}`).join("; ");
  const rows = [...groupBy(timed, (pair) => `${pair.a.who}\n${pair.a.direction}`).values()].map((of) => {
    const found = ratio(of.map((pair) => [pair.a, pair.b]));
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, named(of[0].a.who)),
      el("td", {}, of[0].a.direction),
      ratioCell(found),
      el("td", {}, verdict(found)),
      number(String(of.length)),
    );
  });
  const far = [...timed].sort((x, y) => Math.abs(Math.log(y.ratio.value)) - Math.abs(Math.log(x.ratio.value)));
  return [
    el(
      "p",
      { class: "lead" },
      "A is ",
      el("strong", {}, RUNS[a].name),
      ", B is ",
      el("strong", {}, RUNS[b].name),
      ". B is ",
      el("strong", {}, times(all.value)),
      ` as fast as A ${rangeText(all)} in the geometric mean over ${counted(timed.length, "case")}: ${words}.`,
    ),
    key(timed.map((pair) => pair.a)),
    el(
      "div",
      { class: "charts wide" },
      figure(
        "Time of A over time of B",
        "right of 1: B is faster",
        `Ratios of ${counted(timed.length, "case")}. The tables below have the numbers.`,
        ratioChart(timed),
      ),
    ),
    table(
      "Geometric mean of the ratios",
      ["kernel or strategy", "direction", headNumber("A / B"), "shown", headNumber("cases")],
      rows,
    ),
    fold(
      far.length > SHOWN_PAIRS ? `The ${SHOWN_PAIRS} largest changes of ${far.length} cases` : "All cases",
      pairTable(far.slice(0, SHOWN_PAIRS)),
    ),
  ];
}

function ratioCell(found) {
  return number([el("strong", {}, times(found.value)), " ", el("span", { class: "range" }, rangeText(found))]);
}

function pairTable(pairs) {
  const rows = pairs.map(({ a, b, ratio: found }) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, a.mask),
      el("td", { class: "nowrap" }, tokens(a.seqlen)),
      el("td", {}, a.direction),
      el("td", {}, named(a.who)),
      number(caseButton(a, duration(a.median))),
      number(caseButton(b, duration(b.median))),
      ratioCell(found),
      el("td", {}, verdict(found)),
    ),
  );
  return table(
    "Cases of both runs, the largest changes first",
    [
      "mask",
      "tokens",
      "direction",
      "kernel or strategy",
      headNumber("A"),
      headNumber("B"),
      headNumber("A / B"),
      "shown",
    ],
    rows,
  );
}

function changedTable(pairs) {
  const rows = pairs
    .slice(0, 200)
    .map(([a, b]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, a.mask),
        el("td", {}, tokens(a.seqlen)),
        el("td", {}, a.direction),
        el("td", {}, named(a.who)),
        el("td", {}, caseButton(a, a.status)),
        el("td", {}, caseButton(b, b.status)),
      ),
    );
  return table(
    `${counted(pairs.length, "case")} with another status`,
    ["mask", "tokens", "direction", "kernel or strategy", "A", "B"],
    rows,
  );
}

function ratioChart(pairs) {
  const rows = distinct(
    pairs.map((pair) => pair.a),
    "who",
  );
  const values = pairs.map(({ a, ratio: found }) => ({
    who: a.who,
    row: a.who,
    y: found.value,
    index: a.index,
    ...(found.known ? { low: found.low, high: found.high } : {}),
    tip: [
      `${a.who} on ${a.mask}`,
      `${tokens(a.seqlen)} tokens, ${a.direction}`,
      `${times(found.value)} ${rangeText(found)}: ${verdict(found)}`,
    ].join("\n"),
  }));
  const ends = values.map((value) => Math.abs(Math.log(value.y))).sort((x, y) => x - y);
  const reach = Math.exp(Math.max(ends.at(-1), Math.log(1.05)) * 1.08);
  const steps =
    reach > 1.6 ? [0.01, 0.1, 0.2, 0.5, 1, 2, 5, 10, 100] : [0.7, 0.8, 0.9, 0.95, 0.98, 1, 1.02, 1.05, 1.1, 1.25, 1.5];
  const ticks = steps.filter((tick) => tick >= 1 / reach && tick <= reach);
  const chart = dotChart(values, "A / B", rows, isNarrow());
  chart.height = Math.max(rows.length * 34, 90);
  chart.encoding.x = {
    field: "y",
    type: "quantitative",
    title: "time of A / time of B",
    scale: { type: "log", domain: [1 / reach, reach], nice: false, clamp: true },
    axis: { values: ticks, labelExpr: "format(datum.value, '.3~g') + '×'", labelOverlap: "greedy" },
  };
  chart.encoding.yOffset = { field: "jitter", type: "quantitative", scale: { domain: [0, 1] } };
  values.forEach((value, i) => {
    value.jitter = 0.15 + 0.7 * ((i * 0.618034) % 1);
  });
  chart.layer.unshift({
    data: { values: [{ one: 1 }] },
    mark: { type: "rule", color: "var(--quiet)", strokeDash: [4, 3] },
    encoding: {
      x: { field: "one", type: "quantitative" },
      y: { value: 0 },
      y2: { value: "height" },
      color: { value: "var(--quiet)" },
      yOffset: null,
    },
  });
  return chart;
}

function differences(a, b) {
  const [ofA, ofB] = [new Map(RUNS[a].facts), new Map(RUNS[b].facts)];
  const names = [...new Set([...ofA.keys(), ...ofB.keys()])].filter(
    (name) => !name.startsWith("gpu.") && ofA.get(name) !== ofB.get(name),
  );
  if (!names.length) return el("p", {}, "The environments of both runs do not differ.");
  const against = names.filter(
    (name) => MUST_AGREE.has(name) && !(name === "driver" && !(ofA.has(name) && ofB.has(name))),
  );
  const rows = [...against, ...names.filter((name) => !against.includes(name))].map((name) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      el("td", {}, el("bdi", {}, ofA.get(name) ?? NOTHING)),
      el("td", {}, el("bdi", {}, ofB.get(name) ?? NOTHING)),
      el("td", { class: "bad" }, against.includes(name) ? "not comparable" : ""),
    ),
  );
  return el(
    "div",
    {},
    against.length
      ? el(
          "p",
          { class: "notice" },
          `The runs were not made alike: ${listed(against)} differ. Ratios between them compare more than the kernels.`,
        )
      : null,
    table(`Facts in which the environments differ: ${names.length}`, ["fact", "A", "B", ""], rows),
  );
}

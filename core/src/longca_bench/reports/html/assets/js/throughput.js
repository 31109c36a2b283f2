// Throughput against length: a chart for each mask with several lengths, and one chart of all masks with one length.

function drawThroughput(records) {
  const timed = records.filter((record) => record.ok && record.tflops > 0);
  if (!timed.length) return [el("p", { class: "empty" }, "No case of this selection has a time.")];
  return throughputGroups(timed).flatMap((group) => {
    const where = distinct(group, "device").length > 1 ? "" : about(group[0], timed, ["device"]);
    return [
      el("h3", {}, `${titled(group[0].direction)}${where ? `, ${where}` : ""}`),
      key(group),
      runKey(group),
      ...throughputCharts(group, titled(group[0].direction)),
    ];
  });
}

// Groups by direction and device. Devices share charts where runs of one device each have cases in common, so that the
// lines of the runs tell the devices apart.
function throughputGroups(records) {
  const oneEach = [...groupBy(records, (r) => r.run).values()].every((of) => distinct(of, "device").length === 1);
  return [...groupBy(records, (r) => r.direction).values()].flatMap((group) =>
    oneEach && overlays(group) ? [group] : [...groupBy(group, (r) => r.device).values()],
  );
}

function throughputCharts(group, title) {
  const shapes = distinct(group, "shape").length > 1;
  const masks = [...groupBy(byMask(group), (r) => `${r.mask}\n${r.shape}`).values()];
  const overlay = overlays(group);
  const points = (of) => throughputPoints(of, overlay);
  const top = Math.max(...group.map((r) => r.tflops * UNIT.factor));
  const long = masks.filter((of) => distinct(of, "seqlen").length > 1);
  const short = masks.filter((of) => distinct(of, "seqlen").length === 1);
  const unit = UNIT.name + (group[0].strategy ? " per rank" : "");
  const charts = [];
  if (short.length) {
    const lengths = distinct(short.flat(), "seqlen");
    const row = (record) => rowName(record, { length: lengths.length > 1, shape: shapes, run: overlay });
    const rows = distinct(
      short.flatMap((of) => of.map((record) => ({ row: row(record) }))),
      "row",
    );
    const values = short.flatMap((of) => points(of).map((value) => ({ ...value, row: row(RECORDS[value.index]) })));
    const note = lengths.length === 1 ? `at ${tokens(lengths[0])} tokens` : "masks with one length";
    charts.push(
      el(
        "div",
        { class: "charts wide" },
        figure(
          "All masks",
          note,
          `${title}: ${unit} of ${counted(rows.length, "row")}. ${IN_TABLE}`,
          dotChart(values, unit, rows, isNarrow()),
        ),
      ),
    );
  }
  if (long.length) {
    charts.push(
      el(
        "div",
        { class: "charts" },
        long.map((of) =>
          figure(
            of[0].mask,
            shapes ? of[0].shape : "",
            `${title}, ${of[0].mask}: ${unit} from ${range(distinct(of, "seqlen"), tokens)} tokens. ${IN_TABLE}`,
            lineChart(points(of), unit, top),
          ),
        ),
      ),
    );
  }
  return charts;
}

const IN_TABLE = "The section “Every case” has the numbers.";

// The name of a row: its mask, and the length, shape and run where rows differ in them.
function rowName(record, { length, shape, run }) {
  const parts = [record.mask, shape && record.shape, length && tokens(record.seqlen), run && runName(record)];
  return parts.filter(Boolean).join(", ");
}

// One point for each candidate, length and run: the geometric mean over seeds.
function throughputPoints(records, overlay) {
  return [...groupBy(records, (r) => [r.who, r.seqlen, r.run].join("\n")).values()].map((of) => {
    const [first] = of;
    const alone = of.length === 1 && first.low > 0;
    const y = geometricMean(of.map((r) => r.tflops)) * UNIT.factor;
    const ends = alone
      ? {
          low: ((first.tflops * first.median) / first.high) * UNIT.factor,
          high: ((first.tflops * first.median) / first.low) * UNIT.factor,
        }
      : {};
    const tipText = [
      first.who,
      first.mask,
      `${tokens(first.seqlen)} tokens, ${three(y)} ${UNIT.name}`,
      of.length > 1 ? `geometric mean of ${of.length} problems` : duration(first.median),
      ...(RUNS.length > 1 ? [runName(first)] : []),
    ].join("\n");
    return {
      who: first.who,
      run: overlay ? first.run : 0,
      seqlen: first.seqlen,
      y,
      ...ends,
      tip: tipText,
      index: first.index,
    };
  });
}

// Whether runs have cases in common, so that each has a line of its own.
function overlays(group) {
  return [...groupBy(group, (r) => [r.who, r.mask, r.shape, r.seqlen].join("\n")).values()].some(
    (of) => distinct(of, "run").length > 1,
  );
}

// The dashes of runs, where one chart has lines of several.
function runKey(group) {
  const runs = distinct(group, "run");
  if (!overlays(group) || distinct(group, "seqlen").length < 2) return null;
  return el(
    "ul",
    { class: "key", "aria-label": "Lines of runs" },
    runs.map((run) =>
      el(
        "li",
        {},
        svg(
          "svg",
          { class: "swatch", viewBox: "0 0 24 14", "aria-hidden": "true" },
          svg("path", { d: "M0,7H24", stroke: "currentColor", "stroke-width": 2, "stroke-dasharray": dashes(run) }),
        ),
        RUNS[run].name,
      ),
    ),
  );
}

// Memory: the highest peak of each candidate at each length, over masks.

const GIB = 1024 ** 3;

function drawMemory(records) {
  const known = records.filter((r) => r.ok && r.peak !== null);
  const timed = records.filter((r) => r.ok);
  if (!known.length) {
    return [
      el(
        "p",
        {},
        timed.length
          ? "No record has a peak of memory. A CPU does not count it."
          : "No case of this selection has a time.",
      ),
      timed.some((r) => r.planBytes) ? fold("Memory as a table", memoryTable(timed)) : null,
    ];
  }
  const groups = [...groupBy(known, (r) => [r.direction, r.device, r.shape].join("\n")).values()];
  return [
    el("p", {}, "The highest peak above the inputs, over the masks of the selection. Filter by mask to see one mask."),
    key(known),
    el(
      "div",
      {
        class:
          groups.every((g) => distinct(g, "seqlen").length === 1) && groups.length === 1 ? "charts wide" : "charts",
      },
      groups.map((group) => memoryFigure(group, known)),
    ),
    fold("Memory as a table", memoryTable(timed)),
  ];
}

function memoryFigure(group, known) {
  const where = about(group[0], known);
  const title = titled(group[0].direction) + (where ? `, ${where}` : "");
  const lengths = distinct(group, "seqlen");
  const highest = [...groupBy(group, (r) => `${r.who}\n${r.seqlen}`).values()].map((of) =>
    of.reduce((a, b) => (b.peak > a.peak ? b : a)),
  );
  const values = highest.map((r) => ({
    who: r.who,
    run: 0,
    seqlen: r.seqlen,
    row: r.who,
    y: r.peak / GIB,
    index: r.index,
    tip: `${r.who}\n${tokens(r.seqlen)} tokens, ${memory(r.peak)}\non ${r.mask}`,
  }));
  const rows = [...values].sort((a, b) => a.y - b.y).map((value) => value.who);
  const spec = lengths.length > 1 ? lineChart(values, "peak GiB") : dotChart(values, "peak GiB", rows, true);
  return figure(
    title,
    lengths.length === 1 ? `at ${tokens(lengths[0])} tokens` : "",
    `${title}: highest peak of memory. The table below has the numbers.`,
    spec,
  );
}

function memoryTable(records) {
  const groups = [...groupBy(records, (r) => [r.who, r.direction, r.device].join("\n")).values()];
  const highest = (of, field) =>
    of
      .map((r) => r[field])
      .filter((value) => value !== null)
      .reduce((a, b) => Math.max(a, b), -1);
  const rows = groups.map((of) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, named(of[0].who)),
      el("td", {}, of[0].direction),
      el("td", {}, of[0].device),
      number(
        range(
          of.map((r) => r.seqlen),
          tokens,
        ),
      ),
      number(memoryOr(highest(of, "peak"))),
      number(memoryOr(highest(of, "planBytes"))),
      number(String(of.length)),
    ),
  );
  return table(
    "Highest memory of each kernel or strategy",
    [
      "kernel or strategy",
      "direction",
      "device",
      headNumber("tokens"),
      headNumber("peak"),
      headNumber("plan of the mask"),
      headNumber("cases"),
    ],
    rows,
  );
}

function memoryOr(bytes) {
  return bytes < 0 ? NOTHING : memory(bytes);
}

// One case in a dialog: samples, interval, what else was measured, environment and command.

function openCase(record) {
  const dialog = document.getElementById("case");
  const close = el("button", { type: "button", onclick: () => dialog.close() }, "Close");
  dialog.replaceChildren(
    el(
      "div",
      { class: "head" },
      el("h2", { id: "case-title" }, el("bdi", {}, record.who), " on ", el("bdi", {}, record.mask)),
      close,
    ),
    el(
      "p",
      { class: "quiet" },
      `${tokens(record.seqlen)} tokens, ${record.direction}, ${record.heads} heads × ${record.dim}, ${record.dtype}, `,
      record.device,
    ),
    record.message ? el("p", { class: "notice" }, record.message, record.advice ? ` ${record.advice}` : "") : "",
    facts(caseFacts(record)),
    ...caseSamples(record),
    el("h3", {}, "Measure it again"),
    el("pre", { tabindex: "0" }, record.command),
    copyButton(record.command),
    fold("Environment of the run", facts(RUNS[record.run].facts)),
  );
  dialog.showModal();
  sweep();
  for (const box of dialog.querySelectorAll(".chart")) draw(box);
}

function caseFacts(record) {
  const shares =
    record.alone !== null && record.median
      ? [
          ["of one device alone", percent(record.alone / record.median)],
          ["of all devices abreast", record.abreast === null ? "" : percent(record.abreast / record.median)],
          ["communication hidden", record.hidden === null ? "" : percent(record.hidden)],
        ]
      : [];
  return [
    ["status", record.status],
    ["kernel", record.strategy ? record.kernel : ""],
    ["median", medianWords(record)],
    [
      "throughput",
      record.tflops === null ? "" : `${throughput(record)} ${UNIT.name}${record.strategy ? " per rank" : ""}`,
    ],
    ...shares,
    ["visible pairs", `${percent(record.density)}; 128 × 128 tiles ${percent(record.tiles)} full`],
    ["planning", record.plan === null ? "" : duration(record.plan)],
    ["first call", record.first === null ? "" : duration(record.first)],
    ["peak memory", record.peak === null ? "" : memory(record.peak)],
    ["plan of the mask", record.planBytes === null ? "" : memory(record.planBytes)],
    ["largest error", record.error === null ? "" : `${percent(record.error)} of its limit`],
    [
      "placement",
      record.strategy
        ? [record.placement, record.placed].filter((word, i, all) => word && all.indexOf(word) === i).join(": ")
        : "",
    ],
    ["mesh", record.mesh],
    ["form of the mask", record.form],
    ["backend", record.backend],
    ["package", record.version],
    ["seed", String(record.seed)],
    ["GPU after timing", record.gpu],
    ["suite", record.suite],
    ["run", RUNS[record.run].folder],
    ["finished", record.finished],
  ].filter(([, value]) => value);
}

function medianWords(record) {
  if (record.median === null) return "";
  if (record.low === null) return `${duration(record.median)}, too few samples for an interval`;
  const ends = `(${three(record.low * 1e3)}–${three(record.high * 1e3)} ms)`;
  return `${duration(record.median)} ${ends}, ${counted(record.count, "sample")}`;
}

function facts(pairs) {
  return el(
    "dl",
    { class: "facts" },
    pairs.map(([name, value]) => [el("dt", {}, name), el("dd", {}, el("bdi", {}, value))]),
  );
}

function caseSamples(record) {
  if (!record.count) return [];
  if (!record.samples)
    return [el("p", { class: "quiet" }, `The ${counted(record.count, "sample")} are left out of this page.`)];
  return [
    figure(
      "Samples",
      "in the order of the calls",
      `${counted(record.samples.length, "sample")} in milliseconds. The list below has the numbers.`,
      sampleChart(record),
    ),
    fold("The samples as a list", el("p", {}, `${record.samples.map((value) => three(value * 1e3)).join(", ")} ms`)),
  ];
}

function sampleChart(record) {
  const values = record.samples.map((value, i) => ({
    call: i + 1,
    ms: value * 1e3,
    tip: `call ${i + 1}: ${duration(value)}`,
  }));
  const y = { type: "quantitative", title: "ms", scale: { zero: false, nice: true }, axis: { tickCount: 4 } };
  const line = (seconds, dash) => ({
    data: { values: [{ ms: seconds * 1e3 }] },
    mark: { type: "rule", color: "var(--quiet)", strokeDash: dash },
    encoding: { y: { field: "ms", ...y } },
  });
  return {
    height: 130,
    layer: [
      ...(record.low === null ? [] : [line(record.low, [2, 3]), line(record.high, [2, 3])]),
      line(record.median, [1, 0]),
      {
        data: { values },
        mark: { type: "point", filled: true, size: 34, color: colour(record.who), opacity: 1 },
        encoding: {
          x: {
            field: "call",
            type: "quantitative",
            title: "call",
            scale: { domain: [0.5, record.samples.length + 0.5], nice: false, zero: false },
            axis: { grid: false, tickMinStep: 1, tickCount: 8, format: "d" },
          },
          y: { field: "ms", ...y },
          tooltip: { field: "tip" },
        },
      },
    ],
  };
}

function copyButton(text) {
  const button = el("button", { type: "button" }, "Copy the command");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = "Selected: copy it with the keyboard";
    }
  });
  return button;
}

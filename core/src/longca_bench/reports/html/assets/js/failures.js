// Cases without a time: status, message and advice, each once, with the cases that they are of.

function drawFailures(records) {
  const failed = records.filter((r) => !["ok", "unsupported"].includes(r.status));
  const refused = records.filter((r) => r.status === "unsupported");
  return [
    failed.length
      ? failureTable(failed, `${counted(failed.length, "case")} failed`)
      : el("p", {}, "No case of this selection failed."),
    refused.length
      ? fold(
          `${counted(refused.length, "case")} refused: no offer of the kernel covers the problem`,
          failureTable(refused, `${counted(refused.length, "case")} refused`),
        )
      : null,
  ];
}

function failureTable(records, caption) {
  const groups = [...groupBy(records, (r) => [r.status, r.who, r.message, r.advice].join("\n")).values()];
  const rows = groups
    .sort((a, b) => b.length - a.length)
    .slice(0, 500)
    .map((of) =>
      el(
        "tr",
        {},
        el("td", {}, el("strong", { class: of[0].status === "unsupported" ? "" : "bad" }, of[0].status)),
        el("th", { scope: "row" }, named(of[0].who)),
        el("td", { class: "message" }, el("bdi", {}, of[0].message || NOTHING)),
        el("td", { class: "message" }, el("bdi", {}, of[0].advice || NOTHING)),
        el("td", {}, failureCases(of)),
      ),
    );
  const note = groups.length > 500 ? `, the 500 most frequent of ${groups.length} reasons` : "";
  return table(caption + note, ["status", "kernel or strategy", "message", "advice", "cases"], rows);
}

function failureCases(records) {
  const names = records
    .slice(0, 60)
    .map((r) => el("li", {}, caseButton(r, `${r.mask}, ${tokens(r.seqlen)}, ${r.direction}`)));
  if (records.length === 1)
    return caseButton(records[0], `${records[0].mask}, ${tokens(records[0].seqlen)}, ${records[0].direction}`);
  return fold(
    counted(records.length, "case"),
    el("ul", {}, names),
    records.length > 60 ? el("p", {}, `and ${records.length - 60} more`) : null,
  );
}

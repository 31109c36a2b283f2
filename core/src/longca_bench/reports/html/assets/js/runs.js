// Runs and their environments: facts down, runs across, the differing ones first.

const MOST_RUNS = 12;

function drawRuns() {
  const runs = RUNS.slice(0, MOST_RUNS);
  const facts = runs.map((run) => new Map(run.facts));
  const names = [...new Set(runs.flatMap((run) => run.facts.map(([name]) => name)))];
  const differs = (name) => new Set(facts.map((of) => of.get(name))).size > 1;
  const row = (name) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      facts.map((of) => el("td", {}, el("bdi", {}, of.get(name) ?? NOTHING))),
    );
  const heads = ["", ...runs.map((run) => el("th", { scope: "col" }, el("bdi", {}, run.name)))];
  const first = [
    ["folder", (run) => run.folder],
    ["records", (run) => run.records.toLocaleString("en")],
  ].map(([title, word]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, title),
      runs.map((run) => el("td", {}, el("bdi", {}, word(run)))),
    ),
  );
  const main = ["suite", "device.name", "driver", "cuda", "packages.torch", "python"].filter((name) =>
    names.includes(name),
  );
  const opening = [...main, ...names.filter((name) => runs.length > 1 && differs(name) && !main.includes(name))];
  const rest = names.filter((name) => !opening.includes(name));
  return [
    RUNS.length > MOST_RUNS
      ? el("p", { class: "notice" }, `The first ${MOST_RUNS} of ${RUNS.length} runs are listed.`)
      : null,
    table(runs.length > 1 ? "The main facts, and those in which the runs differ" : "The main facts", heads, [
      ...first,
      ...opening.map(row),
    ]),
    rest.length
      ? fold(
          `${counted(rest.length, "further fact")}${runs.length > 1 ? ", the same in all runs" : ""}`,
          table("Further facts", heads, rest.map(row)),
        )
      : null,
  ];
}

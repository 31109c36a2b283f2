// The answer: for each mask the fastest candidate, by how much, and how sure. Lengths in a row with the same fastest
// candidate share a line.

function drawAnswer(records) {
  const groups = [...groupBy(records, (r) => [r.device, r.direction].join("\n")).values()];
  const parts = groups
    .map((group) => ({
      group,
      lines: [...groupBy(byMask(group), (r) => `${r.mask}\n${r.shape}`).values()].flatMap(answerLines),
    }))
    .filter(({ lines }) => lines.length);
  if (!parts.length)
    return [el("p", { class: "notice" }, "No case of this selection has a time. See “Failed and refused”.")];
  return parts.flatMap(({ group, lines }) => answerTable(group, lines, records));
}

// The lines of one mask: stretches of lengths.
function answerLines(records) {
  const lines = [];
  for (const [seqlen, group] of [...groupBy(records, (r) => r.seqlen)].sort(([a], [b]) => a - b)) {
    const problems = solved(group);
    if (!problems.length) continue;
    const last = lines.at(-1);
    const ranking = rank(problems);
    if (last && leads(last.who, ranking, problems)) {
      last.lengths.push(seqlen);
      last.problems.push(...problems);
    } else {
      lines.push({ mask: records[0].mask, shape: records[0].shape, who: ranking[0].who, lengths: [seqlen], problems });
    }
  }
  return lines.map(judged);
}

// Whether a candidate is the first of a ranking, or ties with the first.
function leads(who, ranking, problems) {
  if (ranking[0].who === who) return true;
  const pairs = common(problems, who, ranking[0].who);
  return pairs.length === problems.length && sureness(ratio(pairs)) === "tie";
}

function judged(line) {
  const found = compared(line);
  // Of two that tie over all lengths, the faster one goes first.
  return found.sure === "tie" && found.next.ratio.value < 1 ? compared({ ...line, who: found.next.who }) : found;
}

function compared(line) {
  const rivals = rank(line.problems)
    .filter(({ who }) => who !== line.who)
    .map(({ who, solved: cases }) => {
      const pairs = common(line.problems, who, line.who);
      return { who, cases, ratio: pairs.length ? ratio(pairs) : null };
    });
  const timed = rivals
    .filter((rival) => rival.ratio)
    .sort((a, b) => b.ratio.count - a.ratio.count || a.ratio.value - b.ratio.value);
  const next = timed[0] ?? null;
  const firsts = line.problems.filter((p) => p.has(line.who)).map((p) => p.get(line.who));
  const tied = timed.filter((rival) => sureness(rival.ratio) === "tie").map((rival) => rival.who);
  return { ...line, rivals, next, firsts, tied, sure: next ? sureness(next.ratio) : "alone" };
}

function answerTable(group, lines, records) {
  const direction = group[0].direction;
  const where = about(group[0], records, ["device"]);
  const shapes = distinct(records, "shape").length > 1;
  const title = titled(direction) + (where ? `, ${where}` : "");
  const shared = group.some((r) => r.alone !== null);
  const heads = [
    "mask",
    ...(shapes ? ["shape"] : []),
    "tokens",
    "fastest",
    headNumber(UNIT.name),
    headNumber("time"),
    ...(shared ? [headNumber("of one device alone")] : []),
    "over the next",
    "how sure",
    el("th", { scope: "col" }, el("span", { class: "hidden-text" }, "ranking")),
  ];
  const rows = lines.flatMap((line, place) =>
    answerRow(line, { shared, shapes, repeats: repeats(line, lines[place - 1]) }),
  );
  return [
    el("h3", {}, title),
    el("p", { class: "lead" }, answerSentence(lines)),
    table(`${title}: the fastest ${group[0].strategy ? "strategy" : "kernel"} for each mask`, heads, rows, "answer"),
  ];
}

// Who is fastest in how many rows.
function answerSentence(lines) {
  const rivals = lines.filter((line) => line.next);
  if (!rivals.length) return ["No two have a time for the same problem in the same run, so that nothing is compared."];
  const wins = groupBy(
    rivals.filter((line) => line.sure !== "tie"),
    (line) => line.who,
  );
  const ties = rivals.filter((line) => line.sure === "tie").length;
  const first = [...wins].sort((a, b) => b[1].length - a[1].length).slice(0, 4);
  const parts = first.map(([who, won], place) => [
    place ? ", " : "",
    el("strong", {}, el("bdi", {}, who)),
    place ? ` in ${won.length}` : ` is fastest in ${won.length} of ${counted(rivals.length, "row")}`,
  ]);
  const others = wins.size > 4 ? `, ${counted(wins.size - 4, "other")} in the rest` : "";
  return [
    ...parts,
    others,
    ties ? `${wins.size ? "; " : ""}${counted(ties, "row")} ${ties === 1 ? "is a tie" : "are ties"}` : "",
    ".",
  ];
}

const SURE = {
  sure: ["sure", "good", "The interval does not contain 1."],
  tie: ["tie", "tie", "The interval contains 1."],
  few: ["few samples", "few", "The interval does not contain 1, and a median has fewer than 5 samples."],
  unknown: ["not known", "few", "There are too few samples for an interval."],
  alone: ["no rival", "none", "No other kernel has a time for this problem in the same run."],
};

function tag(sure) {
  const [word, kind, title] = SURE[sure];
  return el("span", { class: `tag ${kind}`, title }, word);
}

function repeats(line, before) {
  return before?.mask === line.mask && before.shape === line.shape;
}

function answerRow(line, { shared, shapes, repeats: again }) {
  const more = el("tr", { class: "more", id: newId("ranking") });
  const label = el(
    "span",
    {},
    "ranking",
    el("span", { class: "hidden-text" }, ` of ${line.mask}, ${range(line.lengths, tokens)}`),
  );
  const button = toggle(label, more, () => el("td", { colspan: 8 + shared + shapes }, ranking(line)));
  const kernels = distinct(line.firsts, "kernel").filter((kernel) => kernel !== line.who);
  const who = [
    named(line.who),
    kernels.length ? el("span", { class: "quiet" }, ` with ${listed(kernels, "or")}`) : null,
  ];
  const alone = line.firsts.filter((r) => r.alone !== null);
  return [
    el(
      "tr",
      {},
      el("th", { scope: "row" }, again ? el("span", { class: "quiet" }, line.mask) : line.mask),
      shapes ? el("td", { class: "nowrap" }, line.shape) : null,
      el("td", { class: "nowrap", "data-label": "tokens" }, range(line.lengths, tokens)),
      el("td", { class: "fastest" }, who),
      number(
        range(
          line.firsts.map((r) => r.tflops * UNIT.factor),
          three,
        ),
        { "data-label": UNIT.name },
      ),
      number(durations(line.firsts.map((r) => r.median)), { "data-label": "time" }),
      shared
        ? number(alone.length ? percent(geometricMean(alone.map((r) => r.alone / r.median))) : NOTHING, {
            "data-label": "of one device alone",
          })
        : null,
      el("td", { class: "over", "data-label": "over the next" }, lead(line)),
      el("td", { class: "beside" }, tag(line.sure)),
      el("td", { class: "beside screen" }, button),
    ),
    more,
  ];
}

// The lead of a line with its interval, and the candidates behind.
function lead(line) {
  if (!line.next) return NOTHING;
  const { ratio: found, who } = line.next;
  const some = line.tied.length > 2 ? [line.tied[0], `${line.tied.length - 1} others`] : line.tied;
  return [
    el(
      "span",
      { class: "nowrap" },
      el("strong", {}, times(found.value)),
      " ",
      el("span", { class: "range" }, rangeText(found)),
    ),
    el("span", { class: "quiet" }, line.sure === "tie" ? " ties with " : " over "),
    el("bdi", {}, line.sure === "tie" ? listed(some) : who),
  ];
}

// Every candidate of a line at each length, and the command that measures the fastest again.
function ranking(line) {
  const rows = line.problems.flatMap((problem) => {
    const ordered = [...problem.values()].sort((a, b) => a.median - b.median);
    return ordered.map((record) => {
      const found = ratio([[record, ordered[0]]]);
      return el(
        "tr",
        {},
        el("td", { class: "nowrap" }, tokens(record.seqlen)),
        el("td", {}, named(record.who)),
        number(duration(record.median)),
        number(throughput(record)),
        number(
          record === ordered[0]
            ? "fastest"
            : [times(found.value), " ", el("span", { class: "range" }, rangeText(found))],
        ),
        number(memory(record.peak)),
        el("td", { class: "screen" }, caseButton(record, "samples and command")),
      );
    });
  });
  const commands = line.firsts.map((record) => record.command);
  return [
    table(
      `All that have a time on ${line.mask}`,
      [
        "tokens",
        "kernel",
        headNumber("time"),
        headNumber(UNIT.name),
        headNumber("time over the fastest"),
        headNumber("peak memory"),
        "",
      ],
      rows,
    ),
    el("p", {}, "Measure the fastest again:"),
    el("pre", { tabindex: "0" }, commands.join("\n")),
  ];
}

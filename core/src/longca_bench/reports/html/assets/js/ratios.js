// Ratios of medians with their intervals, and the ranking of a problem's candidates.
//
// The interval of a ratio combines the intervals of both medians: Zou and Donner, "Construction of confidence limits
// about effect measures: a general approach", Statistics in Medicine 27, 2008, on a logarithmic scale.

const ENOUGH = 5; // samples from which an interval is as wide as it says

// The geometric mean of slow.median / fast.median over pairs of records.
function ratio(pairs) {
  let [total, below, above, known, few] = [0, 0, 0, true, false];
  for (const [slow, fast] of pairs) {
    total += Math.log(slow.median / fast.median);
    known &&= slow.low > 0 && fast.low > 0;
    few ||= Math.min(slow.count, fast.count) < ENOUGH;
    below += Math.log(slow.median / slow.low) ** 2 + Math.log(fast.high / fast.median) ** 2;
    above += Math.log(slow.high / slow.median) ** 2 + Math.log(fast.median / fast.low) ** 2;
  }
  const count = pairs.length;
  const [low, high] = [total - Math.sqrt(below), total + Math.sqrt(above)];
  return {
    value: Math.exp(total / count),
    low: Math.exp(low / count),
    high: Math.exp(high / count),
    known,
    few,
    count,
  };
}

// How sure it is that a ratio is not 1: `sure`, `tie`, `few` or `unknown`.
function sureness(found) {
  if (!found.known) return "unknown";
  if (found.low <= 1 && found.high >= 1) return "tie";
  return found.few ? "few" : "sure";
}

function rangeText(found) {
  const digits = ratioDigits(found.value);
  return found.known ? `(${found.low.toFixed(digits)}–${found.high.toFixed(digits)})` : "";
}

// The pairs of two candidates over problems: records of the same problem.
function common(problems, slow, fast) {
  return problems.filter((p) => p.has(slow) && p.has(fast)).map((p) => [p.get(slow), p.get(fast)]);
}

// Candidates of problems, the fastest first. Candidates with a time for more of the problems go before others.
function rank(problems) {
  const scores = new Map();
  for (const problem of problems) {
    const best = Math.min(...[...problem.values()].map((record) => record.median));
    for (const [who, record] of problem) {
      groupInto(scores, who, { solved: 0, loss: 0 }, (score) => {
        score.solved += 1;
        score.loss += Math.log(record.median / best);
      });
    }
  }
  return [...scores]
    .map(([who, score]) => ({ who, solved: score.solved, loss: score.loss / score.solved }))
    .sort((a, b) => b.solved - a.solved || a.loss - b.loss);
}

// Each problem's timed records by candidate.
function solved(records) {
  return [
    ...groupBy(
      records.filter((record) => record.ok),
      (record) => record.problem,
    ).values(),
  ].map((group) => new Map(group.map((record) => [record.who, record])));
}

function geometricMean(values) {
  return Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);
}

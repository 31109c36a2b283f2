// Numbers in words: three digits, in the units of the field.

const NOTHING = "–";

function three(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  if (value === 0) return "0";
  const digits = 2 - Math.floor(Math.log10(Math.abs(value)) + 1e-9);
  return value.toFixed(Math.min(Math.max(digits, 0), 8));
}

function tokens(count) {
  if (count >= 1048576 && (count * 2) % 1048576 === 0) return `${count / 1048576} M`;
  return count >= 1024 && (count * 2) % 1024 === 0 ? `${count / 1024} K` : count.toLocaleString("en");
}

function range(values, word) {
  const [first, last] = [Math.min(...values), Math.max(...values)];
  return first === last ? word(first) : `${word(first)} to ${word(last)}`;
}

// A time in ms, from one second on in s.
function duration(seconds) {
  if (seconds === null) return NOTHING;
  return seconds < 1 ? `${three(seconds * 1e3)} ms` : `${three(seconds)} s`;
}

// The range of times, with the unit once where both ends have the same.
function durations(values) {
  const [first, last] = [duration(Math.min(...values)), duration(Math.max(...values))];
  if (first === last) return first;
  return first.endsWith(" ms") === last.endsWith(" ms") ? `${first.split(" ")[0]} to ${last}` : `${first} to ${last}`;
}

function memory(bytes) {
  if (bytes === null) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB"];
  const step = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), 3);
  return step ? `${three(bytes / 1024 ** step)} ${units[step]}` : `${bytes} B`;
}

function percent(share) {
  return share === null ? NOTHING : `${(share * 100).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

// Ratios near 1 have a third decimal, for all numbers that stand together.
function ratioDigits(value) {
  if (Math.abs(value - 1) < 0.02) return 3;
  return value < 10 ? 2 : value < 100 ? 1 : 0;
}

function times(value) {
  return `${value.toFixed(ratioDigits(value))}×`;
}

function counted(count, one, several = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : several}`;
}

function listed(words, last = "and") {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} ${last} ${words.at(-1)}`;
}

function titled(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

// The records of the page, decoded from columns.

const DATA = JSON.parse(document.getElementById("data").textContent);
const RECORDS = decode(DATA);
const RUNS = DATA.runs;
// Throughput below 1 TFLOP/s everywhere is shown in GFLOP/s.
const UNIT = RECORDS.some((record) => record.tflops >= 1)
  ? { name: "TFLOP/s", factor: 1 }
  : { name: "GFLOP/s", factor: 1e3 };

function decode({ texts, textColumns, columns }) {
  const records = columns.run.map((_, index) => ({ index }));
  for (const [name, column] of Object.entries(columns))
    records.forEach((record, i) => {
      record[name] = column[i];
    });
  for (const [name, column] of Object.entries(textColumns)) {
    records.forEach((record, i) => {
      record[name] = column[i] === null ? "" : texts[column[i]];
    });
  }
  nameCandidates(records);
  const alike = ["dim", "dtype"].every((field) => distinct(records, field).length === 1);
  for (const record of records) {
    record.shape = `${record.heads} heads${alike ? "" : ` × ${record.dim} ${record.dtype}`}`;
    record.ok = record.status === "ok" && record.median > 0;
  }
  return records;
}

// Names candidates: by their kernel on one device, else by strategy and placement. The mesh and the kernel are part of
// the name where they tell candidates apart.
function nameCandidates(records) {
  const ranks = records.filter((record) => record.strategy);
  const way = (record) => `${record.strategy} ${record.placement}`;
  const meshes = groupBy(ranks, way);
  const severalMeshes = (record) => distinct(meshes.get(way(record)), "mesh").length > 1;
  const kernels = [...groupBy(ranks, (r) => `${r.problem}\n${way(r)}\n${r.mesh}`).values()].some(
    (of) => distinct(of, "kernel").length > 1,
  );
  for (const record of records) {
    record.who = record.strategy
      ? way(record) + (severalMeshes(record) ? ` ${record.mesh}` : "") + (kernels ? ` · ${record.kernel}` : "")
      : record.kernel;
  }
}

function groupInto(map, key, empty, add) {
  if (!map.has(key)) map.set(key, empty);
  add(map.get(key));
}

function groupBy(records, key) {
  const found = new Map();
  for (const record of records) groupInto(found, key(record), [], (list) => list.push(record));
  return found;
}

function distinct(records, field) {
  return [...new Set(records.map((record) => record[field]))];
}

// What the shown records of a section do not share, as words for its titles.
function about(record, records, fields = ["device", "shape"]) {
  return fields
    .filter((field) => distinct(records, field).length > 1)
    .map((field) => record[field])
    .join(", ");
}

function runName(record) {
  return RUNS[record.run].name;
}

function throughput(record) {
  return three(record.tflops * UNIT.factor);
}

// Records in the order in which their masks appear first.
function byMask(records) {
  return [...groupBy(records, (record) => record.mask).values()].flat();
}

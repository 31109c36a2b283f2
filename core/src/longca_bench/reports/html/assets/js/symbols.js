// Colours and shapes of candidates. 8 colours after Okabe and Ito and 7 shapes give 56 pairs.

const SHAPES = [
  "M0,-1A1,1,0,1,1,0,1A1,1,0,1,1,0,-1Z", // disc
  "M-.88,-.88H.88V.88H-.88Z", // square
  "M0,-1.15L1.1,.85H-1.1Z", // triangle
  "M0,-1.25L1.05,0L0,1.25L-1.05,0Z", // diamond
  "M-.35,-1.1H.35V-.35H1.1V.35H.35V1.1H-.35V.35H-1.1V-.35H-.35Z", // cross
  "M0,1.15L1.1,-.85H-1.1Z", // triangle that points down
  "M0,-1.25L.35,-.4L1.2,-.39L.55,.2L.74,1.05L0,.6L-.74,1.05L-.55,.2L-1.2,-.39L-.35,-.4Z", // star
];
const COLOURS = 8;
const CANDIDATES = distinct(RECORDS, "who");
const PLACES = new Map(CANDIDATES.map((who, place) => [who, place]));

function isCandidate(who) {
  return PLACES.has(who);
}

function colour(who) {
  return `var(--c${PLACES.get(who) % COLOURS})`;
}

function shape(who) {
  return SHAPES[PLACES.get(who) % SHAPES.length];
}

function swatch(who) {
  return svg(
    "svg",
    { class: "swatch", viewBox: "-2.2 -1.4 4.4 2.8", "aria-hidden": "true" },
    svg("path", { d: "M-2.2,0H2.2", stroke: colour(who), "stroke-width": ".35" }),
    svg("path", { d: shape(who), fill: colour(who) }),
  );
}

function named(who) {
  return el("span", { class: "who" }, swatch(who), el("bdi", {}, who));
}

function key(records) {
  return el(
    "ul",
    { class: "key", "aria-label": "Key" },
    CANDIDATES.filter((who) => records.some((record) => record.who === who)).map((who) =>
      el("li", {}, swatch(who), el("bdi", {}, who)),
    ),
  );
}

// The scales of a chart for the candidates of its values.
function whoScales(values) {
  const domain = CANDIDATES.filter((who) => values.some((value) => value.who === who));
  return {
    color: { field: "who", type: "nominal", legend: null, scale: { domain, range: domain.map(colour) } },
    shape: { field: "who", type: "nominal", legend: null, scale: { domain, range: domain.map(shape) } },
  };
}

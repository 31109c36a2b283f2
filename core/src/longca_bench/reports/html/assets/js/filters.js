// Filters: each field with a set of values that are switched off.

const FIELDS = [
  ["mask", "Mask", String],
  ["kernel", "Kernel", String],
  ["strategy", "Strategy", (value) => value || "one device"],
  ["seqlen", "Length", tokens],
  ["heads", "Heads", String],
  ["direction", "Direction", String],
  ["device", "Device", String],
  ["run", "Run", (value) => RUNS[value].name],
];
const OFF = new Map(FIELDS.map(([field]) => [field, new Set()]));

function selected() {
  const active = [...OFF].filter(([, values]) => values.size);
  return RECORDS.filter((record) => active.every(([field, values]) => !values.has(record[field])));
}

function buildFilters(onChange) {
  const form = document.getElementById("filters");
  const row = el("div", { class: "row" });
  const status = el("span", { class: "status", role: "status", "aria-live": "polite" });
  const panels = [];
  const update = () => {
    panels.forEach((panel) => panel.update());
    reset.disabled = [...OFF.values()].every((values) => !values.size);
    status.textContent = `${counted(onChange(), "case")} of ${RECORDS.length.toLocaleString("en")}`;
  };
  for (const [field, title, word] of FIELDS) {
    const values = distinct(RECORDS, field).sort((a, b) => (typeof a === "number" ? a - b : 0));
    if (values.length > 1) panels.push(filterPanel(field, title, values, word, update, panels));
  }
  const reset = el(
    "button",
    {
      type: "button",
      class: "screen",
      onclick: () => {
        OFF.forEach((values) => values.clear());
        update();
      },
    },
    "Reset",
  );
  row.append(...panels.flatMap((panel) => [panel.button, panel.fieldset]), reset, status);
  form.append(row);
  form.addEventListener("submit", (event) => event.preventDefault());
  return update;
}

function filterPanel(field, title, values, word, update, panels) {
  const off = OFF.get(field);
  const id = `filter-${field}`;
  const state = el("span");
  const button = el("button", { type: "button", "aria-expanded": "false", "aria-controls": id }, `${title} `, state);
  const boxes = values.map((value) =>
    el("input", {
      type: "checkbox",
      onchange: (event) => {
        off[event.target.checked ? "delete" : "add"](value);
        update();
      },
    }),
  );
  const set = (on) => {
    values.forEach((value) => off[on ? "delete" : "add"](value));
    update();
  };
  const fieldset = el(
    "fieldset",
    { id, hidden: true },
    el("legend", {}, title),
    el("button", { type: "button", onclick: () => set(true) }, "All"),
    " ",
    el("button", { type: "button", onclick: () => set(false) }, "None"),
    el(
      "div",
      { class: "choices" },
      boxes.map((box, i) =>
        el(
          "label",
          {},
          box,
          el(
            "span",
            { class: "who" },
            field === "kernel" && isCandidate(values[i]) ? swatch(values[i]) : null,
            word(values[i]),
          ),
        ),
      ),
    ),
  );
  const panel = { button, fieldset };
  panel.open = (open) => {
    fieldset.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
  };
  panel.update = () => {
    boxes.forEach((box, i) => {
      box.checked = !off.has(values[i]);
    });
    state.textContent = off.size ? `${values.length - off.size} of ${values.length}` : `all ${values.length}`;
    state.className = off.size ? "narrowed" : "quiet";
  };
  button.addEventListener("click", () => {
    const open = fieldset.hidden;
    panels.forEach((other) => other.open(other === panel && open));
  });
  fieldset.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      panel.open(false);
      button.focus();
    }
  });
  return panel;
}

// The filters in words, for print.
function filterWords() {
  return FIELDS.filter(([field]) => OFF.get(field).size)
    .map(([field, title, word]) => {
      const on = distinct(RECORDS, field).filter((value) => !OFF.get(field).has(value));
      return `${title}: ${on.length ? on.map(word).join(", ") : "none"}`;
    })
    .join("; ");
}

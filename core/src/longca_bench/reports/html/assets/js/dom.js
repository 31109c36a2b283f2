// Elements of the page. A text of a record becomes a text node and never markup.

const SVG = "http://www.w3.org/2000/svg";

function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// The place of a section's content.
function content(section) {
  return document.querySelector(`#${section} .content`);
}

function show(section, shown) {
  document.getElementById(section).hidden = !shown;
}

// A table in a box of its own that scrolls, reachable by keyboard.
function table(caption, heads, rows, kind = "") {
  const head = el(
    "tr",
    {},
    heads.map((cell) => (cell instanceof Node ? cell : el("th", { scope: "col" }, cell))),
  );
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { class: kind }, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, rows)),
  );
}

function number(text, attributes = {}) {
  return el("td", { ...attributes, class: `number ${attributes.class ?? ""}` }, text);
}

function headNumber(text) {
  return el("th", { scope: "col", class: "number" }, text);
}

function fold(title, ...children) {
  return el("details", {}, el("summary", {}, title), ...children);
}

// A button that shows and hides rows or a box. `make` gives them when they are shown first.
function toggle(label, target, make) {
  const button = el(
    "button",
    { type: "button", class: "plain", "aria-expanded": "false", "aria-controls": target.id },
    label,
  );
  const turn = (open) => {
    if (open && !target.hasChildNodes()) target.append(make());
    target.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
  };
  button.addEventListener("click", () => turn(target.hidden));
  target.hidden = true;
  return button;
}

let lastId = 0;
function newId(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

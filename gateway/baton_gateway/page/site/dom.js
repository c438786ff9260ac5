// Builds elements from text alone: nothing that comes from elsewhere is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function find(id) {
  return document.getElementById(id);
}

// Replaces the content of a box. The focus stays on the element with the same data-key.
export function replace(box, ...children) {
  const active = document.activeElement;
  const key = box.contains(active) ? active.dataset.key : undefined;
  box.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined));
  if (key === undefined) return;
  for (const candidate of box.querySelectorAll("[data-key]")) {
    if (candidate.dataset.key === key) candidate.focus({ preventScroll: true });
  }
}

// A table whose cells name their column, so that a phone shows each row as a card.
export function table(caption, columns, rows, empty) {
  if (!rows.length) return element("p", { class: "muted" }, empty);
  const head = element("tr", {}, columns.map((column) => element("th", { scope: "col" }, column)));
  const body = rows.map((cells) =>
    element("tr", {}, cells.map((cell, place) => element("td", { "data-label": columns[place], class: isShort(cell) && "short" }, cell ?? "–"))),
  );
  return element(
    "div",
    { class: "table", role: "region", "aria-label": caption, tabindex: "0" },
    element("table", {}, element("thead", {}, head), element("tbody", {}, body)),
  );
}

function isShort(cell) {
  return typeof cell === "string" && cell.length <= 12;
}

export function meter(share, label, mark = null) {
  const bar = element("span", { class: "bar" });
  bar.style.setProperty("width", `${Math.max(0, Math.min(1, share ?? 0)) * 100}%`);
  if (share !== null && mark !== null && share >= mark) bar.classList.add("full");
  return element("span", { class: "meter" }, element("span", { class: "track", "aria-hidden": "true" }, bar), label);
}

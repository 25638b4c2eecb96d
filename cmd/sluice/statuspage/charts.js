"use strict";
// The charts of the status page, and what they share with page.js: the points they show, and how figures are written.

const points = []; // as in history.go, oldest first
const KEPT = 600_000; // ms of them

// span is how many milliseconds the charts show: a young history would be too small in ten minutes.
function span() {
  const age = points.length ? points.at(-1).t - points[0].t : 0;
  return [120_000, 300_000].find((ms) => ms >= age) ?? KEPT;
}

// ---- small helpers ----

const byId = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("data-") || name === "scope") e.setAttribute(name, value);
    else e[name] = value;
  }
  e.append(...children);
  return e;
}

function svg(tag, attributes = {}) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  return e;
}

// setText changes a text only if it is another, so that selections and screen readers aren't disturbed.
function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}

const whole = new Intl.NumberFormat("en");

function amount(x) {
  if (x >= 1e9) return (x / 1e9).toFixed(2) + " G";
  if (x >= 1e6) return (x / 1e6).toFixed(2) + " M";
  return whole.format(Math.round(x));
}

function rate(x) {
  if (x === 0) return "0";
  if (x < 0.01) return "< 0.01";
  if (x < 1) return x.toFixed(2);
  if (x < 100) return x.toFixed(1);
  return amount(x);
}

// duration rounds before it chooses the units: there is no "60.0 s".
function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 0.00995) return (seconds * 1000).toFixed(1) + " ms";
  if (seconds < 0.9995) return Math.round(seconds * 1000) + " ms";
  if (seconds < 59.95) return seconds.toFixed(1) + " s";
  const s = Math.round(seconds);
  if (s < 3600) return Math.floor(s / 60) + " min " + (s % 60) + " s";
  if (s < 172800) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " days";
}

const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

// lately is the mean of a figure over the last five seconds: single ones jump.
function lately(name) {
  const last = points.slice(-5);
  return last.length ? last.reduce((sum, p) => sum + p[name], 0) / last.length : 0;
}

// rows brings a table's body to the given rows, each an array of cells, reusing what is there.
function rows(body, wanted) {
  while (body.rows.length > wanted.length) body.deleteRow(-1);
  wanted.forEach((cells, i) => {
    const row = body.rows[i] ?? body.insertRow();
    cells.forEach((cell, j) => {
      const td = row.cells[j] ?? row.insertCell();
      td.className = cell.class ?? "";
      if (cell.label) td.dataset.label = cell.label;
      if (cell.node) td.replaceChildren(...cell.node);
      else setText(td, cell.text);
    });
  });
}

// ---- charts ----

const charts = {
  flow: [{ name: "received", label: "received", class: "line asked" }, { name: "delivered", label: "delivered", class: "area flow" }],
  parked: [{ name: "parked", class: "area wait" }],
  failed: [{ name: "failed", class: "area bad-line" }],
  undelivered: [{ name: "undelivered", class: "area bad-line" }],
};

// ceiling is the least of 1, 2 and 5 times a power of ten that is not below x.
function ceiling(x) {
  if (x <= 1) return 1;
  const unit = 10 ** Math.floor(Math.log10(x));
  return [1, 2, 5, 10].find((n) => n * unit >= x) * unit;
}

class Chart {
  constructor(figure, series) {
    this.series = series;
    this.title = figure.querySelector("figcaption").textContent;
    const caption = figure.querySelector("figcaption");
    caption.replaceChildren(element("span", {}, element("b", { textContent: this.title })));
    if (series.length > 1) caption.firstChild.append(element("span", { className: "legends" }, ...series.map(legend)));
    this.output = element("output");
    caption.append(this.output);
    this.plot = svg("svg", { class: "plot", tabindex: "0", role: "img" });
    this.paths = series.map((s) => svg("path", { class: s.class }));
    this.grid = svg("path", { class: "grid" });
    this.cursor = svg("path", { class: "cursor" });
    this.labels = ["start", "start", "end"].map((anchor) => svg("text", { "text-anchor": anchor }));
    this.plot.append(this.grid, ...this.paths, this.cursor, ...this.labels);
    figure.append(this.plot);
    this.chosen = null; // time that is looked at
    this.plot.addEventListener("pointermove", (e) => this.look(this.timeAt(e.offsetX)));
    this.plot.addEventListener("pointerleave", () => this.look(null));
    this.plot.addEventListener("blur", () => this.look(null));
    this.plot.addEventListener("keydown", (e) => this.key(e));
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  timeAt(x) {
    return this.end - span() * (1 - x / this.width);
  }

  key(e) {
    const step = { ArrowLeft: -1000, ArrowRight: 1000, PageUp: -30_000, PageDown: 30_000 }[e.key];
    if (step) this.look((this.chosen ?? this.end) + step);
    else if (e.key === "Home") this.look(points[0]?.t);
    else if (e.key === "End") this.look(this.end);
    else if (e.key === "Escape") this.look(null);
    else return;
    e.preventDefault();
  }

  look(time) {
    this.chosen = time === null || time === undefined ? null : Math.min(Math.max(time, points[0]?.t ?? 0), this.end);
    this.draw();
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (!width) return;
    this.width = width;
    this.end = points.at(-1)?.t ?? Date.now();
    const floor = height - 15; // below it stand the times
    const most = Math.max(0, ...this.series.map((s) => points.reduce((m, p) => Math.max(m, p[s.name]), 0)));
    const top = ceiling(most);
    const shown = span();
    const x = (t) => width * (1 - (this.end - t) / shown);
    const y = (v) => floor - (floor - 12) * (v / top);
    this.series.forEach((s, i) => this.paths[i].setAttribute("d", this.path(s, x, y, floor)));
    this.grid.setAttribute("d", `M0 ${y(top)}H${width}M0 ${y(top / 2)}H${width}M0 ${floor}H${width}`);
    this.label(0, 0, y(top) - 3, amount(top));
    this.label(1, 0, height - 2, `${shown / 60_000} min ago`);
    this.label(2, width, height - 2, "now");
    this.read(x, y(top), floor);
    this.plot.setAttribute("aria-label", `${this.title}, last ${shown / 60_000} minutes: at most ${rate(most)}. Arrow keys read single seconds.`);
  }

  path(s, x, y, floor) {
    if (!points.length) return "";
    const line = points.map((p) => `${x(p.t).toFixed(1)} ${y(p[s.name]).toFixed(1)}`).join("L");
    if (s.class.startsWith("line")) return "M" + line;
    return `M${x(points[0].t).toFixed(1)} ${floor}L${line}L${x(this.end).toFixed(1)} ${floor}`;
  }

  label(i, x, y, text) {
    this.labels[i].setAttribute("x", x);
    this.labels[i].setAttribute("y", y);
    setText(this.labels[i], text);
  }

  // read tells the values at the chosen time, or else the newest.
  read(x, top, floor) {
    const p = this.chosen === null ? null : points.findLast((p) => p.t <= this.chosen + 500);
    this.cursor.setAttribute("d", p ? `M${x(p.t)} ${top}V${floor}` : "");
    if (p) {
      const values = this.series.map((s) => (s.label ? s.label + " " : "") + rate(p[s.name])).join(", ");
      setText(this.output, `${clock(p.t)}  ${values}`);
    } else {
      setText(this.output, this.series.length > 1 ? "" : "now " + rate(lately(this.series[0].name)));
    }
  }
}

function legend(s) {
  const sign = svg("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" });
  sign.append(svg("path", { class: s.class, d: s.class.startsWith("line") ? "M0 5H22" : "M0 10V2H22V10" }));
  return element("span", { className: "legend" }, sign, s.label);
}

// sparkline draws the p99 of a path on a logarithmic scale from 1 ms to an hour.
function sparkline(box, place) {
  const line = box.firstElementChild ?? box.appendChild(svg("svg", { viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }));
  const path = line.firstElementChild ?? line.appendChild(svg("path", { class: "line flow", "vector-effect": "non-scaling-stroke" }));
  const end = points.at(-1)?.t ?? 0;
  const shown = span();
  let d = "", pen = "M";
  for (const p of points) {
    const v = p.latency[place];
    if (v === null) { pen = "M"; continue; }
    const height = Math.min(Math.max(Math.log10(v / 0.001) / Math.log10(3_600_000), 0), 1);
    d += `${pen}${(100 * (1 - (end - p.t) / shown)).toFixed(1)} ${(23 - 22 * height).toFixed(1)}`;
    pen = "L";
  }
  path.setAttribute("d", d);
}

"use strict";
// Keeps the status page up to date from the stream at /events, with charts.js. Texts from outside only ever become text nodes.

// ---- the parts of the page ----

function tiles(list, wanted) {
  while (list.children.length > wanted.length) list.lastElementChild.remove();
  wanted.forEach(({ label, value, unit, bad }, i) => {
    const tile = list.children[i] ?? list.appendChild(element("div", {}, element("dt"), element("dd", {}, element("span"), element("small"))));
    tile.className = bad ? "bad" : "";
    setText(tile.firstChild, label);
    setText(tile.lastChild.firstChild, value);
    setText(tile.lastChild.lastChild, unit ? " " + unit : "");
  });
}

function showWorker(f) {
  setText(byId("who"), [f.name === "sluice" ? "" : f.name, f.worker].filter(Boolean).join("  "));
  setText(byId("version"), "sluice " + f.version);
  setText(byId("begun"), `, which began ${duration(Math.max(0, (f.now - f.begun) / 1000))} ago`);
  document.title = `${rate(lately("delivered"))}/s · ${f.name}`;
  const slots = f.facts.find((fact) => fact.name === "CONCURRENCY")?.value;
  tiles(byId("tiles"), [
    { label: "delivered", value: rate(lately("delivered")), unit: "/s" },
    { label: "received", value: rate(lately("received")), unit: "/s" },
    { label: "put into lanes", value: rate(lately("parked")), unit: "/s" },
    { label: "failed pushes", value: rate(lately("failed")), unit: "/s", bad: lately("failed") > 0 },
    { label: "pushes in flight", value: amount(f.gauges.pushes_in_flight ?? 0), unit: slots ? "of " + slots : "" },
    { label: "held for a slot", value: amount(f.gauges.events_held ?? 0), unit: "" },
  ]);
}

const ways = { direct: "direct: a token at once", held: "held: a token within 1 s", lane: "lane: waited for its turn" };

function showLatency(f) {
  const body = byId("latency");
  rows(body, f.latency.map((l) => {
    const none = l.rate ? "" : " none";
    return [
      { text: ways[l.path] ?? l.path },
      { text: rate(l.rate), class: "number" + none },
      { text: l.rate ? duration(l.p50) : "–", class: "number" + none },
      { text: l.rate ? duration(l.p99) : "–", class: "number" + none },
    ];
  }));
  [...body.rows].forEach((row, i) => {
    const cell = row.cells[4] ?? row.insertCell();
    cell.className = "spark";
    sparkline(cell, i);
  });
}

const meanings = {
  throttled: "its tokens were spent", lane: "older ones of its key wait", cooling: "its receiver is away", paused: "its limit is 0",
  damaged: "its state isn't readable", key_inflight: "its key has enough in flight", redelivered: "it came again", late: "its token grew stale",
  concurrency: "its key goes through its lane",
  "2xx": "2xx, delivered", "3xx": "3xx, not followed", "4xx": "4xx, refused", "5xx": "5xx", 429: "429, too many",
  delivered: "delivered", dead_lettered: "dead letters", expired: "expired", dropped: "dropped", collapsed: "collapsed",
};
const order = Object.keys(meanings);

function showCounts(id, counts, none, format) {
  const sorted = Object.entries(counts ?? {}).sort((a, b) => b[1] - a[1] || order.indexOf(a[0]) - order.indexOf(b[0]));
  rows(byId(id), sorted.length ? sorted.map(([name, n]) => [{ text: meanings[name] ?? name }, { text: format(n), class: "number" }])
    : [[{ text: none, class: "none" }, { text: "", class: "number" }]]);
}

function note(k) {
  if (!k.known) return "tokens not known";
  if (k.damaged) return "its state in Redis isn't readable";
  if (k.cooling > 0) return "receiver away, again in " + duration(k.cooling);
  if (k.limits === "0") return "paused";
  return k.limits;
}

function tokens(k) {
  if (!k.known || k.left === null) return [document.createTextNode("–")];
  const bar = element("span", { className: "tokens" }, element("i"));
  bar.firstChild.style.width = Math.min(Math.max(k.burst ? (100 * k.left) / k.burst : 0, 0), 100) + "%";
  const text = `${amount(Math.max(k.left, 0))} of ${amount(k.burst)}` + (k.left < 0 ? `, ${amount(-k.left)} promised` : "");
  return [document.createTextNode(text), bar];
}

function showKeys(f) {
  const keys = f.keys ?? [];
  byId("keys-panel").hidden = keys.length === 0;
  const empty = byId("no-keys");
  empty.hidden = keys.length > 0;
  if (!empty.hidden) {
    const why = !f.worker ? "The worker isn't connected yet; what it waits for stands above." : lately("received") > 0
      ? "Many keys are about equally busy; none stands out." : "No key was busy in the last half minute. Publish an event:";
    if (empty.dataset.why !== why) {
      empty.dataset.why = why;
      empty.replaceChildren(why, ...(why.endsWith(":") ? [element("code", { textContent: f.hint })] : []));
    }
  }
  rows(byId("keys"), keys.map((k) => [
    { text: k.key, class: "key" },
    { text: rate(k.received), class: "number", label: "received/s" },
    { text: k.received ? Math.round((100 * k.throttled) / k.received) + " %" : "–", class: "number", label: "had to wait" },
    { text: rate(k.pushed), class: "number", label: "pushes/s" },
    { node: tokens(k), class: "number tokens-left", label: "tokens left" },
    { text: k.known ? amount(k.waiting) : "–", class: "number", label: "waiting" },
    { text: note(k), class: "note" + (k.cooling > 0 || k.damaged ? " warn" : ""), label: "limits" },
  ]));
}

function showFleet(f) {
  const g = f.gauges;
  const known = (name, format) => (name in g ? format(g[name]) : "–");
  const workers = f.workers ?? [];
  tiles(byId("fleet"), [
    { label: "workers alive", value: workers.length ? amount(workers.length) : "–", unit: f.away ? `${f.away} without Redis` : "", bad: f.away > 0 },
    { label: "wait for their limit", value: known("fleet_throttled_events", amount), unit: "" },
    { label: "could go now", value: known("fleet_eligible_events", amount), unit: "" },
    { label: "the oldest of these", value: known("fleet_oldest_eligible_seconds", duration), unit: "" },
    { label: "keys with a lane", value: known("fleet_lanes", amount), unit: "" },
    { label: "dead letters kept", value: known("fleet_dead_letters", amount), unit: "" },
  ]);
  const list = byId("workers");
  const lines = workers.slice(0, 50).map((id) => id + (id === f.worker ? "  (this one)" : ""));
  if (workers.length > lines.length) lines.push(`… and ${workers.length - lines.length} more`);
  while (list.children.length > lines.length) list.lastElementChild.remove();
  lines.forEach((line, i) => setText(list.children[i] ?? list.appendChild(element("li")), line));
}

function showFacts(f) {
  const list = byId("facts");
  const version = f.gauges.limits_version;
  const facts = version === undefined ? f.facts : [...f.facts, { name: "(version of limits)", value: String(version) }];
  facts.forEach((fact, i) => {
    setText(list.children[2 * i] ?? list.appendChild(element("dt")), fact.name);
    setText(list.children[2 * i + 1] ?? list.appendChild(element("dd")), fact.value || "–");
  });
}

// ---- state and alarms ----

function alarms(f) {
  const list = [];
  const breaker = f.gauges.limiter_breaker_state;
  if (f.worker && breaker > 0) {
    const policy = f.facts.find((fact) => fact.name === "ON_REDIS_DOWN")?.value;
    list.push(`Redis is away${breaker === 1 ? "; one call is tried" : ""}. SLUICE_ON_REDIS_DOWN=${policy} rules, and lanes sleep.`);
  }
  for (const [what, how] of Object.entries(f.details)) {
    if (how === "connected" || how === "answers" || what === "worker" || (what === "redis" && list.length && f.worker)) continue;
    list.push(`${{ nats: "NATS", redis: "Redis" }[what] ?? what}: ${how}`);
  }
  if (f.gauges.limits_faults > 0) list.push("Rules of limits that can't be understood are ignored; sluice limits ls names them.");
  return list;
}

function showState(f) {
  const list = alarms(f);
  const draining = f.details.worker === "draining";
  const state = draining ? ["wait", "draining: takes no new events"] : !f.ready ? ["wait", "starting: not connected yet"]
    : list.length ? ["bad", "working, with trouble"] : ["good", "working"];
  setState(...state);
  const ul = byId("alarms");
  while (ul.children.length > list.length) ul.lastElementChild.remove();
  list.forEach((text, i) => setText(ul.children[i] ?? ul.appendChild(element("li")), text));
}

function setState(state, text) {
  byId("state").dataset.state = state;
  setText(byId("state-text"), text);
}

// ---- the stream ----

const drawn = [...document.querySelectorAll("[data-chart]")].map((figure) => new Chart(figure, charts[figure.dataset.chart]));

function show({ points: fresh, figures: f }) {
  points.push(...(fresh ?? []));
  while (points.length && points[0].t < points.at(-1).t - KEPT) points.shift();
  document.body.classList.remove("stale");
  showState(f);
  showWorker(f);
  for (const chart of drawn) chart.draw();
  showLatency(f);
  showCounts("reasons", f.reasons, "none had to", rate);
  showCounts("answers", f.answers, "no pushes", rate);
  showCounts("totals", f.totals, "none yet", amount);
  showKeys(f);
  showFleet(f);
  showFacts(f);
}

let stream = null;
let retry = 0;
let heard = 0; // when the last message came

function connect() {
  clearTimeout(retry);
  stream?.close();
  stream = new EventSource("/events");
  let first = true;
  stream.onmessage = (e) => {
    heard = Date.now();
    if (first) points.length = 0; // the first message of a stream has the whole history
    first = false;
    show(JSON.parse(e.data));
  };
  stream.onerror = () => {
    stream.close();
    lost();
    retry = setTimeout(connect, 2000);
  };
}

function lost() {
  document.body.classList.add("stale");
  setState("bad", heard ? `no word from the worker since ${clock(heard)}; trying again` : "no word from the worker; trying again");
}

// A page that nobody sees gives its place to others.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    clearTimeout(retry);
    stream?.close();
  } else {
    connect();
  }
});
setInterval(() => { if (heard && !document.hidden && Date.now() - heard > 5000) lost(); }, 1000);
connect();

// The charts of a study, drawn from the data in the page at the width that there is.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);

// Ours comes first, then what else is our own, then the peers.
function seriesOf(rows, ours, own) {
  const rank = (name) => (name === ours ? 0 : own.includes(name) ? 1 : 2);
  const names = [...new Set(rows.map((row) => row.what))].sort((a, b) => rank(a) - rank(b));
  return new Map(names.map((name, index) =>
    [name, { name, index, ours: name === ours, own: own.includes(name), colour: `var(--c${Math.min(index, 6)})` }]));
}

function byCase(rows) {
  const cases = new Map();
  for (const row of rows) cases.set(row.case, [...(cases.get(row.case) ?? []), row]);
  return cases;
}

// A line per case: a bar for ours from 1, and a mark for each of the others.
function ratioChart(place, rows, series, ours, value, labels) {
  const lines = [...byCase(rows)].map(([name, ways]) => {
    const own = ways.find((row) => row.what === ours);
    return { name, ways: ways.filter((row) => value(row) > 0), own, at: own ? value(own) : null };
  }).filter((line) => line.own);
  lines.sort((a, b) => (b.at ?? 0) - (a.at ?? 0));
  const values = lines.flatMap((line) => line.ways.map(value));
  if (!values.length) return false;
  const width = place.clientWidth, step = 19;
  const longest = Math.max(...lines.map((line) => line.name.length));
  const box = { left: Math.min(6.6 * longest + 48, width * 0.48), right: width - 8, top: 6, bottom: 6 + step * lines.length };
  const svg = element("svg", { width, height: box.bottom + 36, role: "img", "aria-label": labels.title });
  const x = logScale([...values, 1], box.left, box.right);
  axes(svg, x, null, box, { x: labels.x, plain: true });
  lines.forEach((line, at) => {
    const y = box.top + step * (at + 0.5);
    const failed = Boolean(line.own.failure);
    // What was measured without a native time beside it has no ratio.
    const told = failed ? "failed" : line.at == null ? "no native time" : line.at.toFixed(2);
    const room = Math.floor((box.left - 6) / 6.6) - told.length - 2;
    const name = line.name.length > room ? `${line.name.slice(0, Math.max(room - 1, 1))}…` : line.name;
    const label = words(`${name}  ${told}`, box.left - 6, y + 4, { "text-anchor": "end", class: failed ? "bad" : "" });
    label.append(tooltip(`${line.name} ${line.own.equation ?? ""} ${line.own.sizes ?? ""} ${line.own.failure ?? ""}`));
    svg.append(label);
    if (line.at != null) {
      const [from, to] = [x.at(1), x.at(line.at)].sort((a, b) => a - b);
      const bar = { x: from, y: y - 5, width: Math.max(to - from, 1), height: 10, fill: series.get(ours).colour };
      svg.append(element("rect", { ...bar, opacity: 0.85 }, tooltip(`${line.name}, ${ours}: ${told}`)));
    }
    for (const row of line.ways) {
      if (row.what !== ours) svg.append(marker(series.get(row.what), x.at(value(row)), y, `${line.name}, ${row.what}: ${value(row).toFixed(2)}`));
    }
  });
  svg.append(element("line", { class: "one", x1: x.at(1), x2: x.at(1), y1: box.top, y2: box.bottom }));
  place.replaceChildren(svg);
  return true;
}

function pointChart(place, points, lines, labels) {
  if (!points.length) return false;
  const width = place.clientWidth, height = Math.min(340, Math.max(230, width * 0.7));
  const box = { left: 46, right: width - 10, top: 20, bottom: height - 36 };
  const svg = element("svg", { width, height, role: "img", "aria-label": labels.title });
  const xs = [...points.map((point) => point.x), ...(lines ?? []).map((line) => line.corner)];
  const ys = [...points.map((point) => point.y), ...(lines ?? []).map((line) => line.top)];
  const x = logScale(xs, box.left, box.right), y = logScale(ys, box.bottom, box.top);
  axes(svg, x, y, box, labels);
  for (const line of lines ?? []) {
    const left = Math.max(x.low, y.low / line.slope);
    const path = `M${x.at(left)} ${y.at(left * line.slope)}L${x.at(line.corner)} ${y.at(line.top)}L${box.right} ${y.at(line.top)}`;
    svg.append(element("path", { d: path, fill: "none", class: "one" }, tooltip(line.text)));
  }
  const curves = new Map();
  for (const point of points.filter((each) => each.curve)) {
    curves.set(point.series, [...(curves.get(point.series) ?? []), point]);
  }
  for (const [series, of] of curves) {
    of.sort((a, b) => a.x - b.x);
    const d = of.map((point, at) => `${at ? "L" : "M"}${x.at(point.x)} ${y.at(point.y)}`).join("");
    svg.append(element("path", { d, fill: "none", stroke: series.colour, "stroke-width": series.ours ? 2.2 : 1.4 }));
  }
  for (const point of points) svg.append(marker(point.series, x.at(point.x), y.at(point.y), point.text));
  place.replaceChildren(svg);
  return true;
}

const rate = (row, of) => (row.seconds && row[of] ? row[of] / row.seconds : null);

function roofline(place, rows, series, ceiling) {
  const points = rows.filter((row) => rate(row, "flops") && row.moved).map((row) => ({
    x: row.flops / row.moved, y: rate(row, "flops"), series: series.get(row.what),
    text: `${row.case}, ${row.what}: ${short(rate(row, "flops"))}FLOP/s`,
  }));
  const lines = ceiling ? [{
    slope: ceiling.bandwidth, top: ceiling.flops, corner: ceiling.flops / ceiling.bandwidth,
    text: `${short(ceiling.bandwidth)}B/s, ${short(ceiling.flops)}FLOP/s`,
  }] : [];
  return pointChart(place, points, lines, { x: "FLOPs per byte moved", y: "FLOP/s", title: "roofline" });
}

// Curves where cases are the points of some; else every case by the bytes that it moves.
function throughput(place, rows, series) {
  const curves = new Map();
  for (const row of rows.filter((each) => each.seconds && each.moved)) {
    const [, name, size] = /^(.*)@(\d+)$/.exec(row.case) ?? [null, "", row.moved];
    curves.set(name, [...(curves.get(name) ?? []), { row, size: Number(size) }]);
  }
  place.classList.toggle("panels", curves.size > 1);
  place.parentElement.classList.toggle("wide", curves.size > 1);
  const drawn = [...curves].sort().map(([name, of]) => {
    // Products are told in FLOP/s, what only moves memory in B/s.
    const most = Math.max(...of.map(({ row }) => row.flops / row.moved));
    const unit = name && most > 16 ? "flops" : "moved";
    const points = of.filter(({ row }) => row[unit] > 0).map(({ row, size }) => ({
      x: size, y: rate(row, unit), series: series.get(row.what), curve: Boolean(name),
      text: `${row.case}, ${row.what}: ${short(rate(row, unit))}${unit === "flops" ? "FLOP/s" : "B/s"}`,
    }));
    const inner = document.createElement("div");
    place.append(inner);
    const labels = { x: name ? `${name}: size` : "bytes of operands and result", y: unit === "flops" ? "FLOP/s" : "B/s" };
    return pointChart(inner, points, null, { ...labels, title: `throughput ${name}` });
  });
  return drawn.some(Boolean);
}

function drawResult(section) {
  const result = DATA[section.dataset.result];
  const chosen = section.querySelector("select").value;
  const rows = result.rows.filter((row) => `${row.framework}, ${row.dtype}, ${row.direction}` === chosen);
  if (!rows.length) return;
  const series = seriesOf(rows, result.ours, result.own);
  const [framework, dtype] = chosen.split(", ");
  const ceiling = result.ceilings.find((each) => each.framework === framework && each.dtype === dtype);
  const legend = section.querySelector(".legend");
  legend.replaceChildren(...[...series.values()].map((each) => {
    const item = document.createElement("span");
    item.style.setProperty("--series", each.colour);
    item.textContent = each.own ? `${each.name} (ours)` : each.name;
    return item;
  }));
  const draw = {
    native: (place) => ratioChart(place, rows, series, result.ours, (row) => row.speedup,
      { x: "native time / this time: right of 1 is faster", title: "ratio to native" }),
    floor: (place) => ratioChart(place, rows, series, result.ours, (row) => (row.floor && row.seconds ? row.seconds / row.floor : null),
      { x: "time / floor: at 1 the device does no more", title: "ratio to floor" }),
    throughput: (place) => throughput(place, rows, series),
    roofline: (place) => roofline(place, rows, series, ceiling),
  };
  for (const figure of section.querySelectorAll("figure[data-chart]")) {
    const place = figure.querySelector(".chart");
    figure.hidden = false;
    place.replaceChildren();
    figure.hidden = !draw[figure.dataset.chart](place);
  }
}

const sections = [...document.querySelectorAll("section[data-result]")].filter((each) => each.querySelector("select"));
const drawAll = () => sections.forEach(drawResult);
for (const section of sections) section.querySelector("select").addEventListener("change", () => drawResult(section));
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) drawAll();
  width = innerWidth;
});
drawAll();

// The charts of a study, drawn from the data in the page at the width that there is.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);

function seriesOf(result) {
  return new Map(result.ways.map((name, index) =>
    [name, { name, index, own: result.own.includes(name), colour: `var(--c${Math.min(index, 6)})` }]));
}

// A line per case: a bar for ours from 1, and a mark for each of the others.
function drawBars(place, panel, series, title) {
  const values = panel.lines.flatMap((line) => Object.values(line.values));
  if (!values.length) return false;
  const [ours] = panel.barred;
  const width = place.clientWidth, step = 19;
  const longest = Math.max(...panel.lines.map((line) => line.label.length));
  const left = Math.min(6.6 * longest + 12, width * 0.48);
  const box = { left, right: width - 8, top: 6, bottom: 6 + step * panel.lines.length };
  const svg = element("svg", { width, height: box.bottom + 36, role: "img", "aria-label": title });
  const x = logScale([...values, 1], box.left, box.right);
  axes(svg, x, null, box, { x: panel.x, plain: true });
  panel.lines.forEach((line, at) => {
    const y = box.top + step * (at + 0.5);
    const room = Math.floor((box.left - 6) / 6.6);
    const [name, told] = line.label.split("  ");
    const cut = line.label.length > room ? `${name.slice(0, Math.max(room - told.length - 3, 1))}…` : name;
    const label = words(`${cut}  ${told}`, box.left - 6, y + 4, { "text-anchor": "end", class: line.failed ? "bad" : "" });
    label.append(tooltip(`${name} ${line.about}`));
    svg.append(label);
    for (const [way, value] of Object.entries(line.values)) {
      const text = `${name}, ${way}: ${value.toFixed(2)}`;
      if (way !== ours) {
        svg.append(marker(series.get(way), x.at(value), y, text));
        continue;
      }
      const [from, to] = [x.at(1), x.at(value)].sort((a, b) => a - b);
      const bar = { x: from, y: y - 5, width: Math.max(to - from, 1), height: 10, fill: series.get(ours).colour };
      svg.append(element("rect", { ...bar, opacity: 0.85 }, tooltip(text)));
    }
  });
  svg.append(element("line", { class: "one", x1: x.at(1), x2: x.at(1), y1: box.top, y2: box.bottom }));
  place.append(svg);
  return true;
}

function drawPoints(place, panel, series, title) {
  const drawn = Object.entries(panel.series).filter(([, points]) => points.length);
  if (!drawn.length) return false;
  const width = place.clientWidth, height = Math.min(340, Math.max(230, width * 0.7));
  const box = { left: 46, right: width - 10, top: 20, bottom: height - 36 };
  const svg = element("svg", { width, height, role: "img", "aria-label": title });
  const every = [...drawn.flatMap(([, points]) => points), ...panel.roof];
  const x = logScale(every.map(([at]) => at), box.left, box.right);
  const y = logScale(every.map(([, at]) => at), box.bottom, box.top);
  axes(svg, x, y, box, panel);
  const path = (points) => points.map(([a, b], at) => `${at ? "L" : "M"}${x.at(a)} ${y.at(b)}`).join("");
  if (panel.roof.length) {
    svg.append(element("path", { d: path(panel.roof), fill: "none", class: "one" }, tooltip(panel.roof_label)));
  }
  for (const [way, points] of drawn) {
    const { index, colour } = series.get(way);
    const line = { d: path(points), fill: "none", stroke: colour, "stroke-width": index ? 1.4 : 2.2 };
    if (panel.joined) svg.append(element("path", line));
  }
  for (const [way, points] of drawn) {
    for (const [a, b, name] of points) {
      svg.append(marker(series.get(way), x.at(a), y.at(b), `${name}, ${way}: ${Number(b.toPrecision(3))} ${panel.y}`));
    }
  }
  place.append(svg);
  return true;
}

function drawResult(section) {
  const result = DATA[section.dataset.result];
  const series = seriesOf(result);
  const charts = result.charts[section.querySelector("select").value];
  section.querySelector(".legend").replaceChildren(...[...series.values()].map((each) => {
    const item = document.createElement("span");
    item.style.setProperty("--series", each.colour);
    item.textContent = each.own ? `${each.name} (ours)` : each.name;
    return item;
  }));
  for (const figure of section.querySelectorAll("figure[data-chart]")) {
    const place = figure.querySelector(".chart");
    const chart = charts.find((each) => each.name === figure.dataset.chart);
    place.replaceChildren();
    figure.hidden = !chart;
    if (!chart) continue;
    const several = chart.panels.length > 1;
    place.classList.toggle("panels", several);
    figure.classList.toggle("wide", several);
    const drawn = chart.panels.map((panel) => {
      const inner = document.createElement("div");
      place.append(inner);
      return (panel.series ? drawPoints : drawBars)(inner, panel, series, chart.title);
    });
    figure.hidden = !drawn.some(Boolean);
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

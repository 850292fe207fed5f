// Small helpers to draw with: elements, axes, ticks.
"use strict";

function element(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function words(text, x, y, attributes = {}) {
  return element("text", { x, y, ...attributes }, text);
}

function tooltip(text) {
  return element("title", {}, text);
}

const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"]];

function short(value) {
  const [scale, prefix] = PREFIXES.find(([least]) => value >= least * 0.9999) ?? [1, ""];
  return `${Number((value / scale).toPrecision(3))}${prefix}`;
}

// Ticks of a logarithmic axis: powers of ten, with 2 and 5 between them where there are few.
function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const steps = decades > 3 ? [1] : decades > 1.2 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const step of steps) {
      const tick = step * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(Number(tick.toPrecision(6)));
    }
  }
  const least = decades > 7 ? 2 : 1;
  return ticks.filter((_, at) => at % least === 0);
}

// From values to pixels, logarithmically; a little room at both ends.
function logScale(values, from, to) {
  const right = values.filter((value) => value > 0 && Number.isFinite(value));
  const low = Math.min(...right) / 1.1;
  const high = Math.max(...right) * 1.1;
  const at = (value) => from + (to - from) * (Math.log(value / low) / Math.log(high / low));
  return { at, low, high, ticks: logTicks(low, high) };
}

function axes(svg, x, y, box, labels) {
  const group = element("g", { class: "axis" });
  const gap = 34;
  let last = -gap;
  for (const tick of x.ticks) {
    const at = x.at(tick);
    group.append(element("line", { class: "grid", x1: at, x2: at, y1: box.top, y2: box.bottom }));
    if (at - last < gap) continue;
    last = at;
    group.append(words(labels.plain ? tick : short(tick), at, box.bottom + 14, { "text-anchor": "middle" }));
  }
  for (const tick of y ? y.ticks : []) {
    const at = y.at(tick);
    group.append(element("line", { class: "grid", x1: box.left, x2: box.right, y1: at, y2: at }));
    group.append(words(tick, box.left - 5, at + 4, { "text-anchor": "end" }));
  }
  group.append(words(labels.x, (box.left + box.right) / 2, box.bottom + 29, { "text-anchor": "middle" }));
  if (labels.y) group.append(words(labels.y, 2, box.top - 6));
  svg.append(group);
}

const MARKERS = [
  (x, y) => element("circle", { cx: x, cy: y, r: 4 }),
  (x, y) => element("rect", { x: x - 3.4, y: y - 3.4, width: 6.8, height: 6.8 }),
  (x, y) => element("path", { d: `M${x} ${y - 4.8}L${x + 4.8} ${y}L${x} ${y + 4.8}L${x - 4.8} ${y}Z` }),
  (x, y) => element("path", { d: `M${x} ${y - 4.6}L${x + 4.4} ${y + 3.6}L${x - 4.4} ${y + 3.6}Z` }),
  (x, y) => element("path", { d: `M${x} ${y + 4.6}L${x + 4.4} ${y - 3.6}L${x - 4.4} ${y - 3.6}Z` }),
];

// Ours is filled, the others are hollow.
function marker(series, x, y, text) {
  const made = MARKERS[series.index % MARKERS.length](x, y);
  made.setAttribute("fill", series.index === 0 && series.own ? series.colour : "var(--paper)");
  made.setAttribute("stroke", series.colour);
  made.setAttribute("stroke-width", 1.6);
  made.append(tooltip(text));
  return made;
}

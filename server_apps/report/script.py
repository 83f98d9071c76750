"""The script of the report: smoothing, the scale of curves, and a table that sorts and filters.

The page says and shows everything without it; its controls are made by it. The page's policy
allows this script by its hash, and no other.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

SCRIPT = r"""
(() => {
"use strict";
const all = (root, query) => [...root.querySelectorAll(query)];
const make = (tag, parent, properties = {}) =>
  parent.appendChild(Object.assign(document.createElement(tag), properties));

const plot = svg => {
  const [low, high, isLog, left, top, bottom] = svg.dataset.axis.split(" ").map(Number);
  const ticks = all(svg, ".ytick"), template = ticks.find(tick => tick.querySelector("text"));
  if (!template) return null;
  const scaled = (value, log) => log ? Math.log10(value) : value;
  const valueAt = y => {
    const share = (bottom - y) / (bottom - top);
    const value = scaled(low, isLog) + share * (scaled(high, isLog) - scaled(low, isLog));
    return isLog ? 10 ** value : value;
  };
  const curves = all(svg, ".curve").map(group => {
    const path = all(group, "path").find(one => !one.closest("defs"));
    const points = [...(path?.getAttribute("d") ?? "").matchAll(/[ML]\s*(\S+)\s+(\S+)/g)]
      .map(([, x, y]) => [Number(x), valueAt(Number(y))]);
    return {group, path, points};
  }).filter(curve => curve.path);
  const marked = [...all(svg, ".curve use").map(node => [node, "y"]),
    ...all(svg, ".spot").map(node => [node, "cy"])]
    .map(([node, name]) => [node, name, valueAt(Number(node.getAttribute(name)))]);
  const drop = Number(template.querySelector("text").getAttribute("y"))
    - Number(template.querySelector("path").getAttribute("d").match(/M\s*\S+\s+(\S+)/)[1]);
  const right = template.querySelector("path").getAttribute("d").match(/L\s*(\S+)/)[1];
  const holder = template.parentNode;
  let title = svg.querySelector(".scale text");
  const said = (title?.textContent ?? "").replace(/(, )?log scale/, "");
  return (smoothing, wanted) => {
    const values = curves.flatMap(curve => curve.points.map(point => point[1]));
    const positive = values.filter(value => value > 0);
    const log = wanted ? wanted === "log" && positive.length > 0 : isLog;
    let [least, most] = [low, high];
    if (Boolean(log) !== Boolean(isLog)) {
      const known = log ? positive : values;
      [least, most] = [Math.min(...known), Math.max(...known)].map(one => scaled(one, log));
      const margin = 0.05 * (most - least) || 0.5;
      [least, most] = [least - margin, most + margin].map(one => log ? 10 ** one : one);
    }
    const [start, end] = [scaled(least, log), scaled(most, log)];
    const place = value => log && !(value > 0) ? NaN
      : bottom - (scaled(value, log) - start) / (end - start) * (bottom - top);
    for (const {group, path, points} of curves) {
      const drawn = points.map(([x, value]) => [x, place(value)])
        .filter(point => Number.isFinite(point[1]));
      const write = some => some.map(([x, y], i) => (i ? "L" : "M") + x + " " + y).join("");
      path.setAttribute("d", write(drawn));
      group.querySelector(".smooth")?.remove();
      path.style.opacity = smoothing ? 0.25 : "";
      if (!smoothing || !drawn.length) continue;
      let [before, mean] = drawn[0];
      const smooth = group.appendChild(path.cloneNode());
      smooth.setAttribute("class", "smooth");
      smooth.style.opacity = "";
      smooth.setAttribute("d", write(drawn.map(([x, y]) => {
        const kept = Math.exp((before - x) / (100 * smoothing ** 2));
        [before, mean] = [x, kept * mean + (1 - kept) * y];
        return [x, mean];
      })));
    }
    for (const [node, name, value] of marked) {
      const y = place(value);
      node.style.display = Number.isFinite(y) ? "" : "none";
      if (Number.isFinite(y)) node.setAttribute(name, y);
    }
    all(holder, ".ytick").forEach(tick => tick.remove());
    const same = Boolean(log) === Boolean(isLog);
    if (same) ticks.forEach(tick => holder.append(tick));
    else for (const value of nice(least, most, log)) {
      const tick = holder.appendChild(template.cloneNode(true)), y = place(value);
      const label = tick.querySelector("text");
      tick.querySelector("path").setAttribute("d", `M${left} ${y}L${right} ${y}`);
      label.setAttribute("y", y + drop);
      label.removeAttribute("transform");
      label.textContent = written(value);
    }
    if (log && !title) {
      title = svg.appendChild(template.querySelector("text").cloneNode());
      for (const [name, value] of [["x", left], ["y", top - 6]]) title.setAttribute(name, value);
      title.removeAttribute("transform");
      title.style.textAnchor = "start";
    }
    if (title) title.textContent = [said, log ? "log scale" : ""].filter(Boolean).join(", ");
  };
};
const nice = (low, high, log) => {
  const found = [];
  if (log) {
    const first = Math.ceil(Math.log10(low)), last = Math.floor(Math.log10(high));
    const step = Math.max(1, Math.ceil((last - first + 1) / 7));
    const factors = last - first > 1 ? [1] : [1, 2, 5];
    for (let power = first - 1; power <= last; power += step)
      for (const factor of factors) found.push(factor * 10 ** power);
  } else {
    const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(one => one * power >= rough);
    for (let count = Math.ceil(low / step); count * step <= high; count++) found.push(count * step);
  }
  const seen = found.filter(value => low <= value && value <= high);
  return log && seen.length < 2 ? nice(low, high, false) : seen;
};
const written = value => {
  const size = Math.abs(value);
  if (!size || (size >= 1e-3 && size < 1e5)) return String(Number(value.toPrecision(4)));
  const [mantissa, power] = value.toExponential(2).split("e");
  const raised = [...String(Number(power))].map(one => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(one)]);
  return (Number(mantissa) === 1 ? "" : Number(mantissa) + " \u00d7 ") + "10" + raised.join("");
};

const plots = all(document, "svg[data-axis]").map(plot).filter(Boolean);
const controls = document.querySelector(".controls");
if (plots.length && controls) {
  const smoothing = make("input", make("label", controls, {textContent: "Smoothing "}),
    {type: "range", min: 0, max: 1, step: 0.05, value: 0, id: "smoothing"});
  const scale = make("select", make("label", controls, {textContent: "Scale "}), {id: "scale"});
  for (const [value, textContent] of [["", "as fits"], ["linear", "linear"], ["log", "log"]])
    make("option", scale, {value, textContent});
  const draw = () => plots.forEach(one => one(Number(smoothing.value), scale.value));
  smoothing.addEventListener("input", draw);
  scale.addEventListener("change", draw);
}

for (const table of all(document, "table.sortable")) {
  const body = table.tBodies[0], rows = [...body.rows];
  const bar = make("p", document.createElement("div"), {className: "soft"});
  table.parentNode.before(bar);
  const box = make("input", make("label", bar, {textContent: "Filter "}),
    {type: "search", id: "filter", placeholder: "fed-plt rho=2"});
  const count = make("output", bar, {id: "shown"});
  const filter = () => {
    const words = box.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const row of rows) {
      row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
      shown += !row.hidden;
      for (const node of all(document, `.plots [data-run="${row.dataset.run}"]`))
        node.style.visibility = row.hidden ? "hidden" : "";
    }
    count.textContent = ` ${shown} of ${rows.length} runs`;
  };
  box.addEventListener("input", filter);
  filter();
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = make("button", head, {type: "button", textContent: head.textContent});
    head.firstChild.remove();
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const number = text => text === "inf" ? Infinity : text.trim() ? Number(text) : NaN;
      rows.sort((one, other) => {
        const texts = [key(one), key(other)], [a, b] = texts.map(number);
        if (isNaN(a) !== isNaN(b)) return isNaN(a) ? 1 : -1;
        const order = isNaN(a) ? texts[0].localeCompare(texts[1]) : a === b ? 0 : a < b ? -1 : 1;
        return up ? order : -order;
      });
      body.append(...rows);
    });
  });
}
})();
"""

HASH = b64encode(sha256(SCRIPT.encode()).digest()).decode()
"""SHA-256 of the script, as a content security policy names it."""

// Drawing: what a panel shows as SVG text, and what of it is nearest to a place. Places are in units of the view box.

const DASHES = ["", "7 3", "2 2.5", "8 3 2 3"];
const COLOURS = 8;
const MARGIN = { top: 8, right: 12, bottom: 40 };

const escaped = (text) => String(text).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
const clamped = (value, low, high) => Math.min(Math.max(value, low), high);
const shortened = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

/** A value in few characters. */
function numberText(value) {
  if (value === null || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(4)));
}

// --- axes ------------------------------------------------------------------------------------------------------------

/** Maps values to places: `view` is the range shown, in logarithms where `log`. */
function makeAxis(spec, log, view, start, end) {
  const inner = (value) => (log ? Math.log10(Math.max(value, 1e-300)) : value);
  const outer = (value) => (log ? 10 ** value : value);
  const at = (value) => start + ((inner(value) - view[0]) / (view[1] - view[0])) * (end - start);
  const back = (place) => outer(view[0] + ((place - start) / (end - start)) * (view[1] - view[0]));
  return { spec, view, start, end, at, back, inner, ticks: ticksOf(spec, log, view, end > start ? (end - start) / 50 : (start - end) / 30) };
}

/** Values with their names, about as many numbers as there is room for. */
function ticksOf(spec, log, view, room) {
  const [low, high] = [Math.min(...view), Math.max(...view)];
  if (spec.names) return spec.names.map((name, i) => [i, name]).filter(([i]) => i >= low && i <= high);
  if (log && high - low >= 1) {
    const decades = [];
    for (let power = Math.ceil(low - 1e-9); power <= high + 1e-9; power += 1) decades.push([10 ** power, power ? `1e${power}` : "1"]);
    return decades;
  }
  const [first, last] = log ? [10 ** low, 10 ** high] : [low, high];
  const rough = (last - first) / clamped(Math.floor(room), 2, 6);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const ticks = [];
  for (let k = Math.ceil(first / step - 1e-9); k * step <= last + step * 1e-9; k += 1) ticks.push([k * step, numberText(k * step)]);
  return ticks;
}

function drawAxes(x, y) {
  const [left, right, top, bottom] = [x.start, x.end, y.end, y.start];
  const lines = [];
  for (const [value, name] of x.ticks) {
    const place = x.at(value);
    lines.push(`<path class="grid" d="M${place} ${top}V${bottom}"/>`);
    lines.push(`<text x="${place}" y="${bottom + 15}" text-anchor="middle">${escaped(name)}</text>`);
  }
  for (const [value, name] of y.ticks) {
    const place = y.at(value);
    lines.push(`<path class="grid" d="M${left} ${place}H${right}"/>`);
    lines.push(`<text x="${left - 6}" y="${place + 4}" text-anchor="end">${escaped(shortened(name, 30))}</text>`);
  }
  lines.push(`<path class="frame" d="M${left} ${top}V${bottom}H${right}"/>`);
  lines.push(`<text x="${(left + right) / 2}" y="${bottom + 32}" text-anchor="middle">${escaped(x.spec.label)}</text>`);
  if (y.spec.label) {
    const middle = (top + bottom) / 2;
    lines.push(`<text x="12" y="${middle}" text-anchor="middle" transform="rotate(-90 12 ${middle})">${escaped(y.spec.label)}</text>`);
  }
  return lines.join("");
}

/** Range of all values shown on an axis, with a little air. */
function extent(spec, scale, values) {
  if (spec.scales[scale]) return spec.scales[scale].map((value) => (scale === "log" ? Math.log10(value) : value));
  const inner = values.filter((v) => v !== null && (scale !== "log" || v > 0)).map((v) => (scale === "log" ? Math.log10(v) : v));
  if (!inner.length) return [0, 1];
  const [low, high] = [Math.min(...inner), Math.max(...inner)];
  const air = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - air, high + air];
}

// --- curves, points, bars and histograms -----------------------------------------------------------------------------

const paint = (style) => `stroke:var(--c${style.colour % COLOURS});stroke-dasharray:${DASHES[style.line % DASHES.length] || "none"}`;

function dotShape(shape, x, y, colour, hollow) {
  const fill = `style="fill:${hollow ? "var(--paper)" : `var(--c${colour % COLOURS})`};stroke:var(--c${colour % COLOURS});stroke-width:1.4"`;
  if (shape % 4 === 1) return `<rect x="${x - 3.5}" y="${y - 3.5}" width="7" height="7" ${fill}/>`;
  if (shape % 4 === 2) return `<path d="M${x} ${y - 4.8}L${x + 4.5} ${y + 3.4}H${x - 4.5}Z" ${fill}/>`;
  if (shape % 4 === 3) return `<path d="M${x} ${y - 5}L${x + 5} ${y}L${x} ${y + 5}L${x - 5} ${y}Z" ${fill}/>`;
  return `<circle cx="${x}" cy="${y}" r="4" ${fill}/>`;
}

const MARKS = {
  /** Between two values the curve stays where it was. */
  step(one, x, y) {
    const points = one.x.map((value, i) => `${i ? "H" : "M"}${x.at(value).toFixed(1)}${i ? "V" : " "}${y.at(one.y[i]).toFixed(1)}`);
    return `<path class="curve" style="${paint(one.style)}" d="${points.join("")}H${x.end}"/>`;
  },
  line(one, x, y) {
    const known = one.x.map((value, i) => [value, one.y[i]]).filter(([, value]) => value !== null);
    const points = known.map(([a, b], i) => `${i ? "L" : "M"}${x.at(a).toFixed(1)} ${y.at(b).toFixed(1)}`);
    return `<path class="curve" style="${paint(one.style)}" d="${points.join("")}"/>`;
  },
  /** A histogram: `x` has the edges, one more than there are heights. */
  stairs(one, x, y) {
    const steps = one.y.map((value, i) => `V${y.at(value).toFixed(1)}H${x.at(one.x[i + 1]).toFixed(1)}`);
    const path = `M${x.at(one.x[0]).toFixed(1)} ${y.at(0)}${steps.join("")}V${y.at(0)}`;
    return `<path class="curve" style="${paint(one.style)};fill:var(--c${one.style.colour % COLOURS});fill-opacity:.1" d="${path}"/>`;
  },
  dot(one, x, y) {
    return one.x.map((value, i) => {
      if (value === null || one.y[i] === null) return "";
      const reach = one.low && one.low[i] !== null ? `<path class="curve" style="stroke:var(--c${one.style.colour % COLOURS})" d="M${x.at(one.low[i])} ${y.at(one.y[i])}H${x.at(one.high[i])}"/>` : "";
      return reach + dotShape(one.style.line, x.at(value), y.at(one.y[i]), one.style.colour, one.hollow);
    }).join("");
  },
  bar(one, x, y) {
    const half = Math.abs(y.at(0.36) - y.at(0));
    return one.x.map((value, i) => {
      const base = one.base?.[i] ?? 0;
      if (value === null) return "";
      return `<path style="fill:var(--c${one.style.colour % COLOURS})" d="M${x.at(base)} ${y.at(one.y[i]) - half}H${x.at(base + value)}v${2 * half}H${x.at(base)}Z"/>`;
    }).join("");
  },
};

/** The place of a series nearest to (px, py) and what to say there; without `py` only the other direction counts. */
function locate(one, x, y, px, py) {
  const value = x.back(px);
  const away = (place) => (py === null ? 0 : Math.abs(place - py));
  if (one.mark === "step" || one.mark === "stairs") {
    const i = one.x.findLastIndex((edge) => edge <= value);
    if (i < 0 || i >= one.y.length) return null;
    const said = one.mark === "step" ? numberText(value) : `${numberText(one.x[i])} to ${numberText(one.x[i + 1])}`;
    return { distance: away(y.at(one.y[i])), px, py: y.at(one.y[i]), said: [said, numberText(one.y[i])] };
  }
  let best = null;
  one.x.forEach((at, i) => {
    if (at === null || one.y[i] === null) return;
    const place = [x.at(at), y.at(one.y[i])];
    const distance = one.mark === "bar" ? away(place[1]) + (py === null ? Math.abs(place[0] - px) : 0) : Math.hypot(place[0] - px, away(place[1]));
    if (best && best.distance <= distance) return;
    const reach = one.low && one.low[i] !== null ? ` [${numberText(one.low[i])}, ${numberText(one.high[i])}]` : "";
    const row = y.spec.names ? y.spec.names[one.y[i]] : numberText(one.y[i]);
    best = { distance, px: place[0], py: place[1], said: [numberText(at) + reach, row], note: one.notes?.[i] };
  });
  return best;
}

const XY = {
  draw(panel) {
    const { spec, scale, series, width } = panel;
    const names = spec.y.names;
    panel.height = names ? 24 + MARGIN.top + MARGIN.bottom + 19 * names.length : Math.round(clamped(width * 0.62, 170, 520));
    const left = names ? 14 + 6.1 * Math.min(30, Math.max(...names.map((name) => name.length))) : 50;
    const all = (pick) => series.flatMap((one) => pick.flatMap((name) => one[name] ?? []));
    panel.view ??= { x: extent(spec.x, scale, all(["x", "low", "high", "top"])), y: extent(spec.y, Object.keys(spec.y.scales)[0], all(["y"])) };
    if (series[0].mark === "bar") panel.view.x[0] = Math.max(0, panel.view.x[0]);
    if (series[0].mark === "stairs") panel.view.y[0] = Math.max(0, panel.view.y[0]);
    const x = makeAxis(spec.x, scale === "log", panel.view.x, left, width - MARGIN.right);
    const y = makeAxis(spec.y, false, panel.view.y, panel.height - MARGIN.bottom, MARGIN.top);
    Object.assign(panel, { axes: { x, y } });
    const shapes = series.map((one) => MARKS[one.mark](one, x, y)).join("");
    const clip = `<clipPath id="${panel.id}"><rect x="${left - 5}" y="${MARGIN.top - 5}" width="${x.end - left + 10}" height="${y.start - MARGIN.top + 10}"/></clipPath>`;
    return `${drawAxes(x, y)}${clip}<g clip-path="url(#${panel.id})">${shapes}</g>`;
  },
  nearest(panel, px, py) {
    const { x, y } = panel.axes;
    const found = panel.series.map((one, i) => ({ one, i, ...locate(one, x, y, px, py) })).filter((place) => place.px !== undefined);
    const inside = found.filter((place) => place.px >= x.start - 1 && place.px <= x.end + 1);
    const best = inside.reduce((a, b) => (a && a.distance <= b.distance ? a : b), null);
    return best && XY.told(panel, best);
  },
  told(panel, { one, i, px, py, said, note }) {
    const lines = panel.spec.y.names ? [said[1], `${panel.spec.x.label}: ${said[0]}`] : [`${panel.spec.x.label}: ${said[0]}`, `${panel.spec.y.label}: ${said[1]}`];
    return { i, px, py, title: one.title, lines: note ? [...lines, note] : lines };
  },
  of(panel, i, px) {
    const { x, y } = panel.axes;
    const place = locate(panel.series[i], x, y, px, null);
    return place && XY.told(panel, { one: panel.series[i], i, ...place });
  },
};

// --- heat maps -------------------------------------------------------------------------------------------------------

const shade = (share) => `color-mix(in oklab, var(--high) ${Math.round(100 * share)}%, var(--low))`;
const shareOf = (value, [low, high]) => (high > low ? clamped((value - low) / (high - low), 0, 1) : 1);

const HEAT = {
  draw(panel) {
    const [map] = panel.series;
    const { width } = panel;
    panel.height = Math.min(MARGIN.top + MARGIN.bottom + 30 * map.y.length, 420);
    const left = 34 + 6.1 * Math.max(...map.y.map((name) => name.length));
    const x = makeAxis({ label: map.axes[0], names: map.x }, false, [-0.5, map.x.length - 0.5], left, width - MARGIN.right);
    const y = makeAxis({ label: map.axes[1], names: map.y }, false, [-0.5, map.y.length - 0.5], panel.height - MARGIN.bottom, MARGIN.top);
    panel.axes = { x, y };
    const [wide, high] = [(x.end - x.start) / map.x.length, (y.start - y.end) / map.y.length];
    const cells = map.z.flatMap((row, j) => row.map((value, i) => {
      if (value === null) return "";
      const share = shareOf(value, map.range);
      const place = `x="${(x.at(i) - wide / 2).toFixed(1)}" y="${(y.at(j) - high / 2).toFixed(1)}"`;
      const text = wide < 24 ? "" : `<text x="${x.at(i)}" y="${y.at(j) + 4}" text-anchor="middle" style="fill:${share > 0.55 ? "var(--paper)" : "var(--ink)"}">${value.toFixed(2)}</text>`;
      return `<rect ${place} width="${wide - 1}" height="${high - 1}" style="fill:${shade(share)}"/>${text}`;
    }));
    const marks = map.marks.map(([i, j, , dashed]) => `<rect class="noted" style="stroke-dasharray:${dashed ? "3 2" : "none"}" x="${x.at(i) - wide / 2}" y="${y.at(j) - high / 2}" width="${wide - 1}" height="${high - 1}"/>`);
    return drawAxes(x, y) + cells.join("") + marks.join("");
  },
  nearest(panel, px, py) {
    const [map] = panel.series;
    const { x, y } = panel.axes;
    const [i, j] = [Math.round(x.back(px)), Math.round(y.back(py ?? (y.start + y.end) / 2))];
    const value = map.z[j]?.[i];
    if (value === undefined || value === null) return null;
    const marks = map.marks.filter((mark) => mark[0] === i && mark[1] === j).map((mark) => mark[2]);
    const lines = [`${map.axes[0]}: ${map.x[i]}`, `${map.axes[1]}: ${map.y[j]}`, ...marks];
    return { i: 0, px: x.at(i), py: y.at(j), title: `${map.value} ${numberText(value)}`, lines };
  },
  of: (panel, i, px) => HEAT.nearest(panel, px, null),
};

// --- parallel coordinates --------------------------------------------------------------------------------------------

const PARALLEL = {
  draw(panel) {
    const [set] = panel.series;
    panel.height = 300;
    const [top, bottom] = [34, panel.height - 16];
    const at = (k) => 60 + (k * (panel.width - 110)) / Math.max(1, set.axes.length - 1);
    panel.places = set.lines.map((line) => line.map((share, k) => [at(k), bottom - share * (bottom - top)]));
    const order = set.values.map((value, i) => i).sort((a, b) => set.values[a] - set.values[b]);
    const best = order.at(-1);
    const lines = order.map((i) => `<path class="curve" style="stroke:${shade(0.15 + 0.85 * shareOf(set.values[i], set.range))};stroke-width:${i === best ? 3 : 1.2}" d="M${panel.places[i].map((place) => place.map((v) => v.toFixed(1)).join(" ")).join("L")}"/>`);
    const axes = set.axes.map((axis, k) => {
      const ticks = axis.ticks.map(([share, name]) => `<text x="${at(k) + 5}" y="${bottom - share * (bottom - top) + 4}">${escaped(name)}</text>`);
      return `<path class="frame" d="M${at(k)} ${top}V${bottom}"/><text x="${at(k)}" y="18" text-anchor="middle">${escaped(axis.label)}</text>${ticks.join("")}`;
    });
    return `${lines.join("")}<g class="halo">${axes.join("")}</g>`;
  },
  nearest(panel, px, py) {
    const [set] = panel.series;
    let best = null;
    panel.places.forEach((line, i) => {
      const k = clamped(line.findLastIndex((place) => place[0] <= px), 0, Math.max(0, line.length - 2));
      const [from, to] = [line[k], line[k + 1] ?? line[k]];
      const share = to[0] > from[0] ? clamped((px - from[0]) / (to[0] - from[0]), 0, 1) : 0;
      const height = from[1] + share * (to[1] - from[1]);
      const distance = Math.abs(height - py);
      // Of lines that coincide, the best one is told.
      if (!best || distance < best.distance - 0.5 || (distance < best.distance + 0.5 && set.values[i] > set.values[best.i])) best = { distance, i, px, py: height };
    });
    return best && PARALLEL.told(set, best);
  },
  told: (set, place) => ({ ...place, title: `${set.value} ${numberText(set.values[place.i])}`, lines: [set.names[place.i]] }),
  of: (panel, i, px) => PARALLEL.nearest(panel, px, 0),
};

const KINDS = { xy: XY, heat: HEAT, parallel: PARALLEL };

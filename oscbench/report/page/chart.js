// Figures: controls above, a panel for each combination of what the arrangement sets apart, values under the pointer.

let panelCount = 0;

const KEYS_HELP = "arrow keys: values; + and -: zoom; 0: all";

/** Values of all keys that are chosen from, as fixed or wished where there is something to show, else the first that fit. */
function settled(chart, fixed, wished) {
  const chosen = { ...fixed };
  for (const key of chart.choose.filter((name) => !(name in fixed))) {
    const fitting = chart.series.filter((one) => Object.entries(chosen).every(([name, value]) => one.keys[name] === value));
    const there = new Set(fitting.map((one) => one.keys[key]));
    chosen[key] = there.has(wished[key]) ? wished[key] : Object.keys(chart.keys[key].values).find((value) => there.has(value));
  }
  return chosen;
}

/** What the user has chosen for one figure. */
function initialState(chart) {
  return {
    arrangement: chart.arrangements[0],
    scale: Object.keys(chart.x?.scales ?? { linear: null })[0],
    chosen: settled(chart, {}, {}),
    off: Object.fromEntries(Object.entries(chart.keys).map(([key, { values }]) => [key, new Set(Object.keys(values).filter((value) => values[value].off))])),
  };
}

function enhanceChart(block) {
  const chart = JSON.parse(block.querySelector("script").textContent);
  const state = initialState(chart);
  const [tools, legend, panels] = ["tools", "legend", "panels"].map((name) => make("div", { className: name }));
  if (chart.wide) panels.style.setProperty("--panel", `${chart.wide}rem`);
  const figures = () => panels.querySelectorAll(".panel");
  const refresh = () => figures().forEach((figure) => figure.redraw(true));
  const arrange = () => {
    drawLegend(chart, state, legend, refresh);
    const { found, columns } = makePanels(chart, state);
    panels.classList.toggle("grid", columns > 1 && !chart.wide);
    panels.style.setProperty("--columns", columns);
    panels.style.setProperty("--print-columns", chart.wide ? 1 : columns % 3 ? 2 : 3);
    panels.replaceChildren(...found);
    refresh(); // now that the panels have their widths
  };
  tools.append(...makeTools(chart, state, arrange, refresh));
  block.append(tools, legend, panels);
  arrange();
  let width = panels.clientWidth;
  new ResizeObserver(() => {
    if (panels.clientWidth === width) return;
    width = panels.clientWidth;
    figures().forEach((figure) => figure.redraw());
  }).observe(panels);
}

let printing = false;

/** On paper as many panels stand side by side as the style sheet says; their width there is not known yet. */
function printWidth(figure) {
  if (!printing) return 0;
  const columns = Number(getComputedStyle(figure.parentElement).getPropertyValue("--print-columns")) || 2;
  return Math.round(680 / columns) - 12;
}

for (const event of ["beforeprint", "afterprint"]) {
  addEventListener(event, () => {
    printing = event === "beforeprint";
    document.querySelectorAll(".panel").forEach((figure) => figure.redraw());
  });
}

// --- controls --------------------------------------------------------------------------------------------------------

function makeTools(chart, state, arrange, refresh) {
  const tools = [];
  const addChoice = (name, options, choose) => {
    const select = make("select", { ariaLabel: name }, ...options.map(([value, text]) => make("option", { value }, text)));
    select.addEventListener("input", () => choose(select.value));
    tools.push(make("label", {}, `${name} `, select));
    return select;
  };
  const selects = {};
  for (const key of chart.choose) {
    const options = Object.entries(chart.keys[key].values).map(([value, { label }]) => [value, label]);
    if (options.length < 2) continue;
    selects[key] = addChoice(chart.keys[key].label, options, (value) => {
      state.chosen = settled(chart, { [key]: value }, state.chosen);
      for (const [other, select] of Object.entries(selects)) select.value = state.chosen[other];
      arrange();
    });
  }
  if (chart.arrangements.length > 1) {
    addChoice("panels by", chart.arrangements.map(({ name }, i) => [i, name]), (i) => {
      state.arrangement = chart.arrangements[i];
      arrange();
    });
  }
  const scales = Object.keys(chart.x?.scales ?? {});
  if (scales.length > 1) {
    const buttons = scales.map((scale) => {
      const button = make("button", { type: "button", ariaPressed: String(scale === state.scale) }, scale);
      button.dataset.scale = scale;
      button.addEventListener("click", () => {
        state.scale = scale;
        for (const other of buttons) other.ariaPressed = String(other === button);
        refresh();
      });
      return button;
    });
    tools.push(make("span", { role: "group", ariaLabel: `scale of ${chart.x.label}` }, ...buttons));
  }
  return tools;
}

/** A check box for each value that colours or lines stand for. */
function drawLegend(chart, state, legend, refresh) {
  const { panels, colour, line } = state.arrangement;
  const keys = Object.keys(chart.keys).filter((key) => !panels.includes(key) && !chart.choose.includes(key));
  legend.replaceChildren(...keys.filter((key) => Object.keys(chart.keys[key].values).length > 1).map((key) => {
    const labels = Object.entries(chart.keys[key].values).map(([value, { label, style }]) => {
      const box = make("input", { type: "checkbox", checked: !state.off[key].has(value) });
      box.dataset.value = value;
      box.addEventListener("input", () => {
        state.off[key][box.checked ? "delete" : "add"](value);
        refresh();
      });
      const swatch = make("span");
      swatch.innerHTML = swatchOf(chart, { colour: key === colour ? style : null, line: key === line ? style : null });
      return make("label", {}, box, " ", ...(key === colour || key === line ? [swatch, " "] : []), label);
    });
    const boxes = labels.map((label) => label.querySelector("input"));
    const toggle = make("button", { type: "button" }, "all / none");
    toggle.addEventListener("click", () => {
      const wanted = boxes.some((box) => !box.checked);
      for (const box of boxes) {
        box.checked = wanted;
        state.off[key][wanted ? "delete" : "add"](box.dataset.value);
      }
      refresh();
    });
    return make("fieldset", {}, make("legend", {}, chart.keys[key].label), ...labels, ...(labels.length > 5 ? [toggle] : []));
  }));
}

function swatchOf(chart, { colour, line }) {
  const stroke = colour === null ? "var(--ink)" : `var(--c${colour % COLOURS})`;
  const dots = chart.series.some((one) => one.mark === "dot");
  const shape = dots && line !== null ? dotShape(line, 13, 5, 0, true).replaceAll("var(--c0)", stroke) : "";
  const dash = DASHES[(line ?? 0) % DASHES.length] || "none";
  const stripe = `<path d="M0 5H26" style="stroke:${stroke};stroke-width:${colour === null ? 1.6 : 3};stroke-dasharray:${dash}"/>`;
  return `<svg viewBox="0 0 26 10" aria-hidden="true">${shape || stripe}</svg>`;
}

// --- panels ----------------------------------------------------------------------------------------------------------

const MOST_COLUMNS = 6;

/** The figures of an arrangement in the order of the keys' values, the last key's across; a gap where there is none. */
function makePanels(chart, state) {
  const apart = state.arrangement.panels;
  const series = chart.series.filter((one) => chart.choose.every((key) => one.keys[key] === state.chosen[key]));
  if (!series.length) return { found: [make("p", { className: "note" }, "Nothing of this kind in the runs folder.")], columns: 1 };
  const groups = Map.groupBy(series, (one) => JSON.stringify(apart.map((key) => one.keys[key])));
  const present = (key) => Object.keys(chart.keys[key].values).filter((value) => series.some((one) => one.keys[key] === value));
  const places = apart.reduce((tuples, key) => tuples.flatMap((tuple) => present(key).map((value) => [...tuple, value])), [[]]);
  const last = apart.length > 1 ? present(apart.at(-1)).length : 1;
  const columns = last <= MOST_COLUMNS && places.length <= 2 * groups.size ? last : 1;
  const found = places.flatMap((place) => {
    const group = groups.get(JSON.stringify(place));
    if (group) return [makePanel(chart, state, group)];
    return columns > 1 ? [make("div", { className: "gap" })] : [];
  });
  return { found, columns };
}

const labelOf = (chart, key, value) => chart.keys[key].values[value].label;

function makePanel(chart, state, all) {
  const { panels, colour, line } = state.arrangement;
  const style = (key, one) => (key ? chart.keys[key].values[one.keys[key]].style : 0);
  const told = (keys, one) => keys.map((key) => labelOf(chart, key, one.keys[key])).join(", ");
  const title = told(panels, all[0]);
  const others = Object.keys(all[0].keys).filter((key) => !panels.includes(key) && !chart.choose.includes(key));
  for (const one of all) one.title = told(others, one) || title;
  const panel = { id: `panel-${(panelCount += 1)}`, spec: chart, kind: KINDS[chart.kind], view: null };

  const svg = make("template", { innerHTML: "<svg tabindex='0' role='img'></svg>" }).content.firstChild;
  svg.setAttribute("aria-label", `${title || chart.title}; ${KEYS_HELP}`);
  const tip = make("div", { className: "tip", hidden: true });
  tip.setAttribute("aria-live", "polite");
  const reset = make("button", { type: "button", title: "show all again", hidden: true }, "reset");
  const large = make("button", { type: "button", title: "larger or smaller" }, "enlarge");
  const figure = make("figure", { className: "panel" }, make("figcaption", {}, make("span", {}, title), reset, large), svg, tip);

  figure.redraw = (afresh = false) => {
    panel.scale = state.scale;
    panel.width = printWidth(figure) || figure.clientWidth || 360;
    panel.series = all.filter((one) => Object.entries(one.keys).every(([key, value]) => !state.off[key].has(value)));
    for (const one of panel.series) one.style = { colour: style(colour, one), line: style(line, one) };
    if (afresh) panel.view = null;
    const drawn = panel.series.length ? panel.kind.draw(panel) : "";
    svg.setAttribute("viewBox", `0 0 ${panel.width} ${panel.height ?? 60}`);
    svg.innerHTML = `${drawn}<g class="overlay"></g>`;
    tip.hidden = true;
    reset.hidden = !panel.zoomed || afresh;
    panel.zoomed &&= !afresh;
  };
  reset.addEventListener("click", () => figure.redraw(true));
  large.addEventListener("click", () => {
    large.textContent = figure.classList.toggle("large") ? "reduce" : "enlarge";
    figure.redraw();
  });
  listen(panel, figure, svg, tip);
  return figure;
}

// --- pointer and keys ------------------------------------------------------------------------------------------------

function listen(panel, figure, svg, tip) {
  let [start, cursor] = [null, null];
  const overlay = (text) => { svg.querySelector(".overlay").innerHTML = text; };
  const place = (event) => {
    const box = svg.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * panel.width, ((event.clientY - box.top) / box.height) * panel.height];
  };
  const tell = (found) => {
    tip.hidden = !found;
    if (!found) return overlay("");
    overlay(`<circle class="cursor" cx="${found.px}" cy="${found.py}" r="6"/>`);
    tip.replaceChildren(make("b", {}, found.title), ...found.lines.map((line) => make("span", {}, line)));
    const unit = svg.clientWidth / panel.width;
    const left = found.px * unit + (found.px > panel.width / 2 ? -tip.offsetWidth - 14 : 14);
    tip.style.left = `${Math.max(0, left)}px`;
    const above = svg.getBoundingClientRect().top - figure.getBoundingClientRect().top; // an SVG has no offsetTop
    tip.style.top = `${above + Math.max(0, found.py * unit - tip.offsetHeight - 6)}px`;
    return undefined;
  };
  const zoom = (x, y) => {
    panel.view = { x, y };
    panel.zoomed = true;
    figure.redraw();
  };

  svg.addEventListener("pointermove", (event) => {
    if (!panel.series.length) return;
    const [px, py] = place(event);
    if (start === null) return tell(panel.kind.nearest(panel, px, py));
    const [x, y] = [Math.min(px, start[0]), Math.min(py, start[1])];
    return overlay(`<rect class="selection" x="${x}" y="${y}" width="${Math.abs(px - start[0])}" height="${Math.abs(py - start[1])}"/>`);
  });
  svg.addEventListener("pointerleave", () => tell(null));
  svg.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch" || event.button !== 0 || panel.kind !== XY || !panel.series.length) return;
    start = place(event);
    tip.hidden = true;
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointerup", (event) => {
    if (start === null) return;
    const [from, to, { x, y }] = [start, place(event), panel.axes];
    start = null;
    overlay("");
    const [wide, high] = [Math.abs(to[0] - from[0]) > 8, Math.abs(to[1] - from[1]) > 8];
    const between = (axis, k) => {
      const ends = [from[k], to[k]].map((v) => axis.inner(axis.back(clamped(v, Math.min(axis.start, axis.end), Math.max(axis.start, axis.end)))));
      return axis.view[0] < axis.view[1] ? [Math.min(...ends), Math.max(...ends)] : [Math.max(...ends), Math.min(...ends)];
    };
    if (wide || high) zoom(wide ? between(x, 0) : x.view, high ? between(y, 1) : y.view);
  });
  svg.addEventListener("dblclick", () => figure.redraw(true));

  const scaled = ([low, high], factor) => [(low + high) / 2 - ((high - low) / 2) * factor, (low + high) / 2 + ((high - low) / 2) * factor];
  svg.addEventListener("keydown", (event) => {
    if (!panel.series.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: [-8, 0], ArrowRight: [8, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const factor = { "+": 1 / 1.5, "=": 1 / 1.5, "-": 1.5 }[event.key];
    if (moves[event.key]) {
      cursor ??= { px: panel.width / 2, i: 0 };
      const [by, next] = moves[event.key];
      cursor.px = clamped(cursor.px + by, 0, panel.width);
      cursor.i = (cursor.i + next + panel.series.length) % panel.series.length;
      tell(panel.kind.of(panel, cursor.i, cursor.px));
    } else if (factor && panel.kind === XY) {
      zoom(scaled(panel.view.x, factor), scaled(panel.view.y, factor));
    } else if (event.key === "0" || event.key === "Escape") {
      figure.redraw(true);
    } else {
      return;
    }
    event.preventDefault();
  });
  svg.addEventListener("blur", () => tell(null));
}

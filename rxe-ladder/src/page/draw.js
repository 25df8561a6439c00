// What is in sight, as SVG.
const element = id => document.getElementById(id);
const view = element('view'), sheet = element('sheet'), picture = element('picture'), heads = element('heads'), strip = element('strip');
const state = { chosen: -1, hovered: -1, hits: null, only: null };
const GUTTER = 112, LEAST = 230;

function columns() {
  const width = Math.max(view.clientWidth, GUTTER + LEAST * model.actors.length);
  const part = (width - GUTTER - 20) / Math.max(model.actors.length, 1);
  return { width, part, x: actor => GUTTER + part * (actor + 0.5) };
}

function make(name, attributes, parent, text) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function fits(text, pixels) {
  const most = Math.floor(pixels / 6.6);
  return text.length <= most ? text : text.slice(0, Math.max(most - 1, 0)) + '\u2026';
}

function isDim(step) {
  return state.only !== null && !step.classes.includes(state.only);
}

function drawArrow(step, group, { x }, y, far) {
  const from = x(step.from), to = x(step.to), style = `stroke:var(--${hueOf(step)})`;
  if (step.fate === FATE.lost) {
    const reach = from + (to - from) * 0.67, low = y + (far - y) * 0.67;
    make('path', { class: 'way', style, d: `M${from} ${y}L${reach} ${low}M${reach - 6} ${low - 6}l12 12m0 -12l-12 12` }, group);
    return;
  }
  const back = to > from ? to - 9 : to + 9;
  const d = `M${from} ${y}L${to} ${far}M${back} ${far - 4}L${to} ${far}L${back} ${far + 4}`;
  make('path', { class: step.fate === FATE.unseen ? 'way unseen' : 'way', style, d }, group);
}

function drawStep(step, place, withText) {
  const y = layout.y(step.index), far = layout.arrival(step), tall = layout.toScale ? 14 : Math.min(layout.unit(), 40);
  const names = ['step'];
  if (state.hits?.has(step.index)) names.push('hit');
  if (step.index === state.chosen) names.push('chosen');
  if (isDim(step)) names.push('dim');
  const group = make('g', { class: names.join(' '), id: `s${step.index}`, role: 'option', 'aria-label': step.label,
    'aria-selected': step.index === state.chosen }, picture);
  make('rect', { class: 'under', x: 0, y: y - tall * 0.62, width: place.width, height: Math.max(tall, 2) }, group);
  if (withText) make('text', { class: 'time', x: GUTTER - 10, y: y + 4 }, group, moment(step.sent));
  if (step.from === step.to) {
    make('circle', { cx: place.x(step.from), cy: y, r: withText ? 4 : 2, style: `fill:var(--${hueOf(step)})` }, group);
    if (withText) make('text', { class: 'halo', x: place.x(step.from) + 10, y: y + 4, style: `fill:var(--${hueOf(step)})` }, group,
      fits(step.label, place.width - place.x(step.from) - 20));
    return;
  }
  drawArrow(step, group, place, y, far);
  if (!withText) return;
  const middle = (place.x(step.from) + place.x(step.to)) / 2;
  const label = fits(step.label, Math.abs(place.x(step.from) - place.x(step.to)) - 24);
  make('text', { class: 'mid halo', x: middle, y: (y + far) / 2 - 4, style: `fill:var(--${hueOf(step)})` }, group, label);
}

function draw() {
  const place = columns(), top = view.scrollTop, tall = view.clientHeight;
  sheet.style.height = `${layout.height()}px`;
  sheet.style.width = `${place.width}px`;
  picture.style.top = `${top}px`;
  picture.setAttribute('width', place.width);
  picture.setAttribute('height', tall);
  picture.setAttribute('viewBox', `0 ${top} ${place.width} ${tall}`);
  picture.replaceChildren();
  model.actors.forEach((_, actor) => make('path', { class: 'life', d: `M${place.x(actor)} ${top}V${top + tall}` }, picture));
  const above = layout.toScale ? longest * layout.unit() : 60;
  let last = -Infinity;
  for (let at = layout.at(top - above - 30); at < steps.length && layout.y(at) < top + tall + 30; at++) {
    const step = steps[at], y = layout.y(at);
    // A text where there is room for one; the chosen one always has it.
    const withText = at === state.chosen || (layout.toScale ? y - last >= 13 : layout.unit() >= 13);
    if (withText) last = y;
    if (step.pause !== null && !layout.toScale && layout.unit() >= 13) {
      const line = y - layout.unit() * 0.95;
      make('path', { class: 'pause', d: `M${GUTTER} ${line}H${place.width - 10}` }, picture);
      make('text', { class: 'time', x: GUTTER - 10, y: line + 4 }, picture, `${duration(step.pause)} later`);
    }
    drawStep(step, place, withText);
  }
  view.setAttribute('aria-activedescendant', state.chosen >= 0 ? `s${state.chosen}` : '');
  drawHeads(place);
  drawStrip();
}

function drawHeads(place) {
  heads.replaceChildren();
  model.actors.forEach(([name, about], actor) => {
    const box = document.createElement('div'), bold = document.createElement('b'), small = document.createElement('small');
    bold.textContent = name;
    small.textContent = about;
    box.title = `${name}\n${about}`;
    box.append(bold, document.createElement('br'), small);
    box.style.left = `${place.x(actor) - view.scrollLeft}px`;
    box.style.maxWidth = `${place.part - 8}px`;
    heads.append(box);
  });
}

// The whole at a glance: where the notable steps, the hits and the part in sight are.
function drawStrip() {
  const tall = strip.clientHeight, wide = strip.clientWidth, whole = layout.height(), brush = strip.getContext('2d');
  strip.width = wide;
  strip.height = tall;
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name);
  const mark = (index, name, left, width) => {
    brush.fillStyle = colour(name);
    brush.fillRect(left, Math.floor(layout.y(index) / whole * (tall - 3)), width, 3);
  };
  brush.fillStyle = colour('--line');
  brush.fillRect(0, view.scrollTop / whole * tall, wide, Math.max(view.clientHeight / whole * tall, 4));
  for (const index of notable) mark(index, `--${hueOf(steps[index])}`, 4, 10);
  for (const index of state.hits ?? []) mark(index, '--blue', 16, 8);
}

let waits = false;
function redraw() {
  if (waits) return;
  waits = true;
  requestAnimationFrame(() => { waits = false; draw(); });
}

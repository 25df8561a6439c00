// What people do.
function choose(index, placed) {
  if (index < 0 || index >= steps.length) return;
  state.chosen = index;
  state.hovered = -1;
  history.replaceState(null, '', `#${index + 1}`);
  const y = layout.y(index), margin = Math.min(60, view.clientHeight / 4);
  if (placed || y < view.scrollTop + margin || y > view.scrollTop + view.clientHeight - margin) {
    view.scrollTop = y - view.clientHeight / (placed ? 2 : 3);
  }
  showPanel();
  redraw();
}

// The next of a sorted list of steps, from the chosen one on and round again.
function goTo(list, way) {
  if (!list.length) return;
  const sorted = way > 0 ? list : [...list].reverse();
  const next = sorted.find(index => way > 0 ? index > state.chosen : index < state.chosen);
  choose(next ?? sorted[0], true);
}

function search(text) {
  state.hits = find(text);
  const count = state.hits?.size ?? 0;
  element('hits').textContent = state.hits ? `${count} of ${steps.length}` : '';
  element('search').classList.toggle('none', state.hits !== null && count === 0);
  showPanel();
  redraw();
}

function goToHit(way) {
  goTo([...(state.hits ?? [])].sort((a, b) => a - b), way);
}

// Keeps what is at this height of the window (or the chosen step) where it is.
function zoom(factor, at) {
  const anchor = state.chosen >= 0 && at === undefined ? state.chosen
    : Math.min(layout.at(view.scrollTop + (at ?? view.clientHeight / 2)), steps.length - 1);
  if (anchor < 0) return;
  const offset = layout.y(anchor) - view.scrollTop;
  layout.zoom = factor === 0 ? 1 : Math.min(Math.max(layout.zoom * factor, 0.02), layout.toScale ? 1e7 : 3);
  sheet.style.height = `${layout.height()}px`;
  view.scrollTop = layout.y(anchor) - offset;
  redraw();
}

function changeScale() {
  layout.toScale = !layout.toScale;
  layout.zoom = 1;
  element('scale').setAttribute('aria-pressed', layout.toScale);
  sheet.style.height = `${layout.height()}px`;
  if (state.chosen >= 0) choose(state.chosen, true); else view.scrollTop = 0;
  redraw();
}

function stepUnder(event) {
  const group = event.target.closest?.('.step');
  return group ? Number(group.id.slice(1)) : -1;
}

function legend() {
  const counts = model.classes.map(() => 0);
  for (const step of steps) for (const at of new Set(step.classes)) counts[at] += 1;
  model.classes.forEach((kind, at) => {
    if (counts[at] === 0) return;
    const button = document.createElement('button'), swatch = document.createElement('span');
    swatch.className = 'swatch';
    swatch.style.background = `var(--${kind.hue})`;
    button.append(swatch, kind.name, marked(counts[at], 'count'));
    button.title = kind.about;
    button.dataset.kind = kind.name;
    button.setAttribute('aria-pressed', 'false');
    button.addEventListener('click', () => {
      state.only = state.only === at ? null : at;
      for (const other of element('legend').children) other.setAttribute('aria-pressed', other === button && state.only === at);
      if (state.only !== null) goTo(steps.filter(step => step.classes.includes(at)).map(step => step.index), 1);
      redraw();
    });
    element('legend').append(button);
  });
}

const page = way => choose(Math.min(Math.max(layout.at(layout.y(Math.max(state.chosen, 0)) + way * view.clientHeight * 0.9), 0), steps.length - 1));
const keys = {
  ArrowDown: () => choose(state.chosen + 1), j: () => choose(state.chosen + 1),
  ArrowUp: () => choose(Math.max(state.chosen - 1, 0)), k: () => choose(Math.max(state.chosen - 1, 0)),
  PageDown: () => page(1), PageUp: () => page(-1), Home: () => choose(0), End: () => choose(steps.length - 1),
  n: () => goTo(notable, 1), p: () => goTo(notable, -1), '/': () => element('search').focus(),
  '+': () => zoom(1.4), '=': () => zoom(1.4), '-': () => zoom(1 / 1.4), 0: () => zoom(0), t: changeScale, '?': () => element('help').showModal(),
  ArrowRight: () => element('fields').querySelector('summary')?.focus(), ArrowLeft: () => view.focus(),
};
document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.altKey || event.metaKey || element('help').open) return;
  const typing = event.target === element('search');
  if (typing && event.key === 'Enter') goToHit(event.shiftKey ? -1 : 1);
  else if (typing && event.key === 'Escape') { element('search').value = ''; search(''); view.focus(); }
  else if (!typing && Object.hasOwn(keys, event.key)) keys[event.key]();
  else return;
  event.preventDefault();
});
picture.addEventListener('click', event => { const index = stepUnder(event); if (index >= 0) choose(index); });
picture.addEventListener('mouseover', event => { state.hovered = stepUnder(event); showPanel(); });
picture.addEventListener('mouseleave', () => { state.hovered = -1; showPanel(); });
view.addEventListener('scroll', redraw);
view.addEventListener('wheel', event => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.clientY - view.getBoundingClientRect().top);
}, { passive: false });
strip.addEventListener('click', event => {
  const part = event.offsetY / strip.clientHeight;
  view.scrollTop = part * layout.height() - view.clientHeight / 2;
});
new ResizeObserver(redraw).observe(view);
element('search').addEventListener('input', event => search(event.target.value));
const clicks = { 'find-next': () => goToHit(1), 'find-previous': () => goToHit(-1), 'notable-next': keys.n, 'notable-previous': keys.p,
  'zoom-in': keys['+'], 'zoom-out': keys['-'], scale: changeScale, 'help-open': keys['?'] };
for (const id in clicks) element(id).addEventListener('click', clicks[id]);
for (const id of ['notable-next', 'notable-previous']) element(id).disabled = notable.length === 0;

document.title = element('title').textContent = model.title;
for (const note of model.notes) {
  const box = document.createElement('div');
  box.textContent = note;
  element('notes').append(box);
}
legend();
draw();
const asked = Number(location.hash.slice(1));
if (asked >= 1 && asked <= steps.length) choose(asked - 1, true);
view.focus();

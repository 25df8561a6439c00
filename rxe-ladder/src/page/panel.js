// The fields of the step that is pointed at, or else chosen. What is folded stays so from step to step.
const folds = new Map();

function marked(text, name) {
  const span = document.createElement('span');
  span.className = name;
  span.textContent = text;
  return span;
}

function line(field) {
  const words = element('search').value.trim().toLowerCase();
  const parts = [marked(field.name, 'name'), marked(field.value, 'value')];
  if (field.note) parts.push(marked(field.note, 'note'));
  if (words && parts.some(part => part.textContent.toLowerCase().includes(words))) {
    const mark = document.createElement('mark');
    mark.append(...parts);
    return [mark];
  }
  return parts;
}

function show(field, path, parent) {
  const own = `${path}/${field.name}`;
  if (!field.inside.length) {
    const box = document.createElement('div');
    box.className = 'field';
    box.append(...line(field));
    parent.append(box);
    return;
  }
  const box = document.createElement('details'), head = document.createElement('summary');
  box.dataset.path = own;
  box.open = folds.get(own) ?? !field.folded;
  box.addEventListener('toggle', () => folds.set(own, box.open));
  head.append(...line(field));
  box.append(head);
  for (const inner of field.inside) show(inner, own, box);
  parent.append(box);
}

function showPanel() {
  const index = state.hovered >= 0 ? state.hovered : state.chosen;
  element('fields').replaceChildren();
  if (index < 0) return;
  const step = steps[index], names = step.classes.map(at => model.classes[at].name).join(', ');
  element('panel-title').textContent = step.label;
  const way = step.from === step.to ? model.actors[step.from][0] : `${model.actors[step.from][0]} \u2192 ${model.actors[step.to][0]}`;
  const before = index > 0 ? `, ${duration(Math.max(step.sent - steps[index - 1].sent, 0))} after the one before` : '';
  const fate = ['', ', lost on its way', ', not seen itself'][step.fate];
  element('panel-about').textContent =
    `${index + 1} of ${steps.length}: ${way}${fate}, at ${moment(step.sent)} s${before}${names ? ` (${names})` : ''}`;
  for (const field of fieldsOf(step)) show(field, '', element('fields'));
}

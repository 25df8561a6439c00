// The diagram: what came with the page, and where each step lies.
const model = JSON.parse(document.getElementById('model').textContent);
const FATE = { arrives: 0, lost: 1, unseen: 2 };
const steps = model.steps.map(([from, to, sent, arrived, fate, label, pause, classes, fields], index) =>
  ({ index, from, to, sent, arrived, fate, label: model.strings[label], pause, classes, fields }));
const hueOf = step => step.classes.length ? model.classes[step.classes[0]].hue : 'grey';
const isNotable = step => step.classes.some(at => model.classes[at].notable);
const notable = steps.filter(isNotable).map(step => step.index);
const lower = model.strings.map(text => text.toLowerCase());
const start = steps.length ? steps.reduce((least, step) => Math.min(least, step.sent), Infinity) : 0;
const end = steps.reduce((most, step) => Math.max(most, step.sent, step.arrived ?? 0), start);

function moment(nanoseconds) {
  return (nanoseconds / 1e9).toFixed(6);
}

function duration(nanoseconds) {
  for (const [size, unit] of [[1e9, 's'], [1e6, 'ms'], [1e3, 'us']]) {
    if (nanoseconds >= size) return `${(nanoseconds / size).toPrecision(3)} ${unit}`;
  }
  return `${nanoseconds} ns`;
}

// The fields as a tree.
function fieldsOf(step) {
  let at = 0;
  const read = count => Array.from({ length: count }, () => {
    const [name, value, note, inside] = step.fields.slice(at, at + 4);
    at += 4;
    return { name: model.strings[name], value: model.strings[value], note: model.strings[note], folded: inside % 2 === 1,
      inside: read(inside >> 1) };
  });
  const all = [];
  while (at < step.fields.length) all.push(...read(1));
  return all;
}

// The steps that have this text in the label or in a field. "psn 17", "psn=17": a field of that name with that value.
function find(text) {
  const words = text.trim().toLowerCase();
  if (!words) return null;
  const has = lower.map(string => string.includes(words));
  const pair = /^(.+?)\s*[=:\s]\s*(\S+)$/.exec(words);
  const name = pair ? lower.map(string => string.includes(pair[1])) : null;
  const value = pair ? lower.map(string => string === pair[2]) : null;
  const hits = steps.filter(step => {
    if (step.label.toLowerCase().includes(words)) return true;
    for (let at = 0; at < step.fields.length; at += 4) {
      if (has[step.fields[at]] || has[step.fields[at + 1]] || has[step.fields[at + 2]]) return true;
      if (pair && name[step.fields[at]] && value[step.fields[at + 1]]) return true;
    }
    return step.classes.some(at => model.classes[at].name.toLowerCase().includes(words));
  });
  return new Set(hits.map(step => step.index));
}

// Where steps lie: a row each, or as time passes.
const layout = {
  ROW: 26, PAUSE: 0.85, MOST: 12e6,
  zoom: 1, toScale: false, rows: new Float64Array(steps.length + 1),
  prepare() {
    let y = 0;
    for (const step of steps) {
      if (step.pause !== null) y += this.PAUSE;
      this.rows[step.index] = y;
      y += 1;
    }
    this.rows[steps.length] = y;
  },
  // Pixels of a row, or of a nanosecond; to scale and not zoomed, the whole takes what as many rows would.
  unit() {
    const unit = this.toScale ? this.ROW * steps.length / Math.max(end - start, 1) : this.ROW;
    const whole = this.toScale ? end - start : this.rows[steps.length];
    return Math.min(unit * this.zoom, this.MOST / Math.max(whole, 1));
  },
  y(index) {
    return this.toScale ? 20 + (steps[index].sent - start) * this.unit() : (this.rows[index] + 0.5) * this.unit() + 6;
  },
  arrival(step) {
    if (step.arrived === null) return this.y(step.index);
    return this.toScale ? 20 + (step.arrived - start) * this.unit() : this.y(step.index) + this.unit() / 3;
  },
  height() {
    return (this.toScale ? (end - start) * this.unit() : this.rows[steps.length] * this.unit()) + 40;
  },
  // The first step at or below this height; steps are sorted by it.
  at(y) {
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.y(middle) < y) low = middle + 1; else high = middle;
    }
    return low;
  },
};
layout.prepare();
// The longest way of a message: arrows that begin above what is in sight may reach into it.
const longest = steps.reduce((most, step) => Math.max(most, (step.arrived ?? step.sent) - step.sent), 0);

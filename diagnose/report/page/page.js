"use strict";
// The timeline and the tables of the page. Everything is drawn from the JSON beside it; nothing is fetched.
(() => {
  const time = ns => {
    if (ns === 0) return "0";
    const size = Math.abs(ns);
    const [value, unit] = size >= 1e9 ? [ns / 1e9, "s"] : size >= 1e6 ? [ns / 1e6, "ms"] : size >= 1e3 ? [ns / 1e3, "µs"] : [ns, "ns"];
    return `${unit === "ns" ? Math.round(value) : Number(value.toPrecision(3))} ${unit}`;
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const was = head.getAttribute("aria-sort");
      const figure = head.classList.contains("figure");
      const descending = was === "none" ? figure : was === "ascending";
      heads.forEach(one => one.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const key = row => row.cells[column].dataset.key ?? row.cells[column].textContent;
      const compare = figure ? (a, b) => Number(key(a)) - Number(key(b)) : (a, b) => key(a).localeCompare(key(b));
      const rows = [...table.tBodies[0].rows].sort(compare);
      if (descending) rows.reverse();
      table.tBodies[0].append(...rows);
    }));
  }
  for (const box of document.querySelectorAll("input.filter")) {
    box.hidden = false;
    const rows = [...document.getElementById(box.dataset.table).tBodies[0].rows];
    box.addEventListener("input", () => {
      const wanted = box.value.toLowerCase();
      rows.forEach(row => { row.hidden = !row.textContent.toLowerCase().includes(wanted) && !(row.title.toLowerCase().includes(wanted)); });
    });
  }

  const source = document.getElementById("timeline-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const canvas = document.getElementById("timeline"), tip = document.getElementById("timeline-tip");
  const pen = canvas.getContext("2d");
  const whole = data.steps[data.steps.length - 1], HEAD = 34, ROW = 24, LEAST = Math.min(1000, whole);
  let names = 170, begin = 0, length = whole, cursor = null, lane = 0;
  // Of a name that has no room its end is shown: what differs is said last.
  const fitting = (words, room) => {
    if (pen.measureText(words).width <= room) return words;
    while (words && pen.measureText(`…${words}`).width > room) words = words.slice(1);
    return `…${words.trimStart()}`;
  };
  const ink = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function look(from, span) {
    length = Math.min(Math.max(span, LEAST), whole);
    begin = Math.min(Math.max(from, 0), whole - length);
    draw();
  }
  const first = (starts, moment) => {  // the last span that begins at or before a moment, or 0
    let low = 0, high = starts.length;
    while (low < high) { const middle = (low + high) >> 1; if (starts[middle] <= moment) low = middle + 1; else high = middle; }
    return Math.max(low - 1, 0);
  };
  const nice = least => { let power = 1; for (;;) { for (const by of [1, 2, 5]) if (by * power >= least) return by * power; power *= 10; } };
  const step = moment => Math.min(Math.max(first(data.steps, moment), 0), data.steps.length - 2);

  function draw() {
    const width = canvas.clientWidth, scale = window.devicePixelRatio || 1;
    const height = HEAD + ROW * data.lanes.length + 4;
    names = width < 600 ? 96 : 170;
    canvas.width = width * scale; canvas.height = height * scale; canvas.style.height = `${height}px`;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const room = width - names, x = moment => names + (moment - begin) / length * room;
    pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle";
    const tick = nice(length / Math.max(room / 90, 1)), zero = data.steps[step(begin)];
    pen.fillStyle = ink("--muted"); pen.strokeStyle = ink("--line");
    for (let at = zero + Math.ceil((begin - zero) / tick) * tick; at < begin + length; at += tick) {
      pen.beginPath(); pen.moveTo(x(at), 10); pen.lineTo(x(at), height); pen.stroke();
      const said = time(at - zero);
      if (x(at) + 3 + pen.measureText(said).width <= width) pen.fillText(said, x(at) + 3, 8);
    }
    data.steps.slice(0, -1).forEach((from, number) => {
      const to = data.steps[number + 1], left = Math.max(x(from), names), right = Math.min(x(to), width);
      if (right - left < 4) return;
      pen.strokeStyle = ink("--muted");
      pen.beginPath(); pen.moveTo(left, 18); pen.lineTo(left, HEAD - 4); pen.lineTo(right, HEAD - 4); pen.stroke();
      if (right - left > 110) pen.fillText(`step ${data.first + number + 1}, ${time(to - from)}`, left + 5, 22);
    });
    data.lanes.forEach((one, row) => {
      const top = HEAD + row * ROW;
      pen.fillStyle = ink(row === lane ? "--ink" : "--muted");
      pen.fillText(fitting(one.name, names - 6), 0, top + ROW / 2);
      for (let at = first(one.start, begin); at < one.start.length && one.start[at] < begin + length; at++) {
        const left = Math.max(x(one.start[at]), names), right = Math.min(x(one.start[at] + one.length[at]), width);
        if (right < names) continue;
        pen.fillStyle = data.looks[one.look[at]].colour;
        pen.globalAlpha = Math.min(Math.max(right - left, .06), 1);  // what is narrower than a pixel tints it
        pen.fillRect(left, top + 2, Math.max(right - left - (right - left > 3 ? .6 : 0), 1), ROW - 4);
        pen.globalAlpha = 1;
        if (right - left > 46) {
          pen.fillStyle = "#11151a";
          pen.save(); pen.beginPath(); pen.rect(left, top, right - left - 4, ROW); pen.clip();
          pen.fillText(data.shown[one.label[at]], left + 4, top + ROW / 2); pen.restore();
        }
      }
    });
    if (cursor !== null && cursor >= begin && cursor <= begin + length) {
      pen.strokeStyle = ink("--warn"); pen.beginPath(); pen.moveTo(x(cursor), 0); pen.lineTo(x(cursor), height); pen.stroke();
    }
  }

  function tell(moment, row) {
    const one = data.lanes[row];
    if (!one) { tip.textContent = " "; return; }
    const at = first(one.start, moment), inside = one.start.length && moment >= one.start[at] && moment <= one.start[at] + one.length[at];
    tip.textContent = inside
      ? `${data.labels[one.label[at]]} · ${data.looks[one.look[at]].label} · ${time(one.length[at])}, from ${time(one.start[at] - data.steps[step(one.start[at])])} of step ${data.first + step(one.start[at]) + 1}`
      : `${one.name}: nothing at ${time(moment - data.steps[step(moment)])} of step ${data.first + step(moment) + 1}`;
  }
  const moment = event => begin + (event.offsetX - names) / Math.max(canvas.clientWidth - names, 1) * length;
  const row = event => Math.floor((event.offsetY - HEAD) / ROW);
  let drag = null;
  canvas.addEventListener("pointerdown", event => { drag = {x: event.clientX, begin, moved: false}; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", event => {
    if (drag) {
      const by = event.clientX - drag.x;
      drag.moved ||= Math.abs(by) > 3;
      if (drag.moved) look(drag.begin - by / Math.max(canvas.clientWidth - names, 1) * length, length);
    } else tell(moment(event), row(event));
  });
  canvas.addEventListener("pointerup", event => {
    if (drag && !drag.moved) { cursor = moment(event); lane = Math.min(Math.max(row(event), 0), data.lanes.length - 1); tell(cursor, lane); draw(); }
    drag = null;
  });
  canvas.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? .8 : 1.25, moment(event));
  }, {passive: false});
  function zoom(by, at) {
    const around = at ?? (cursor !== null && cursor >= begin && cursor <= begin + length ? cursor : begin + length / 2);
    const part = (around - begin) / length, span = Math.min(Math.max(length * by, LEAST), whole);
    look(around - part * span, span);
  }
  function toStep(by) {
    const now = step(cursor ?? begin), filled = length <= 1.05 * (data.steps[now + 1] - data.steps[now]);
    const wanted = Math.min(Math.max(filled ? now + by : now, 0), data.steps.length - 2);
    cursor = data.steps[wanted];
    look(cursor, data.steps[wanted + 1] - cursor);
  }
  const actions = {
    in: () => zoom(.5), out: () => zoom(2), all: () => look(0, whole), left: () => look(begin - length / 4, length),
    right: () => look(begin + length / 4, length), next: () => toStep(1), previous: () => toStep(-1),
  };
  const keys = {"+": "in", "=": "in", "-": "out", 0: "all", ArrowLeft: "left", ArrowRight: "right", "]": "next", "[": "previous"};
  canvas.addEventListener("keydown", event => {
    if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      lane = Math.min(Math.max(lane + (event.key === "ArrowUp" ? -1 : 1), 0), data.lanes.length - 1);
      tell(cursor ?? begin, lane); draw(); event.preventDefault();
    } else if (keys[event.key]) { actions[keys[event.key]](); event.preventDefault(); }
  });
  for (const button of document.querySelectorAll("button[data-timeline]")) button.addEventListener("click", () => actions[button.dataset.timeline]());
  for (const button of document.querySelectorAll("button[data-begin]")) {
    const from = Number(button.dataset.begin), to = Number(button.dataset.end);
    button.hidden = false;
    button.addEventListener("click", () => {
      cursor = (from + to) / 2;
      look(cursor - 1.5 * (to - from), 3 * (to - from));
      tell(cursor, 0);
      canvas.scrollIntoView({block: "center"}); canvas.focus({preventScroll: true});
    });
  }
  document.getElementById("timeline-section").hidden = false;
  new ResizeObserver(draw).observe(canvas.parentElement);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();

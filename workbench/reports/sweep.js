"use strict";
(() => {
  const table = document.getElementById("configs");
  if (!table) return;
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const names = heads.map((head) => head.textContent.trim());
  const rows = [...body.rows];
  const tip = document.getElementById("tip");
  const svgNs = "http://www.w3.org/2000/svg";

  // A failure's reason spans several columns, so a cell's place is not its column.
  const values = new Map(rows.map((row) => {
    const cells = [];
    for (const cell of row.cells) {
      for (let n = 0; n < cell.colSpan; n++) cells.push(cell.colSpan > 1 ? "" : cell.textContent.trim());
    }
    return [row, cells];
  }));
  const marks = new Map();
  for (const mark of document.querySelectorAll(".points use, .cells rect")) {
    const row = document.getElementById("r" + mark.dataset.r);
    marks.set(row, [...(marks.get(row) || []), mark]);
  }

  // The CSV: what the table shows, but for its rounded times, then what only the data holds. A cell
  // "=" repeats the one before it.
  const csv = document.getElementById("csv");
  function spell(cells) {
    return cells.map((cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell)).join(",");
  }
  function expand(line, width) {
    const cells = line.split("\t");
    for (let n = 0; n < width; n++) {
      if (cells[n] === undefined) cells[n] = "";
      if (cells[n] === "=") cells[n] = cells[n - 1];
    }
    return cells;
  }
  function wholeCsv() {
    const asked = JSON.parse(csv.dataset.problem), shared = JSON.parse(csv.dataset.shared);
    const heads = JSON.parse(csv.dataset.heads);
    const lines = document.getElementById("csv-rows").content.textContent.split("\n");
    const kept = names.map((_, n) => n).slice(4).filter((n) => !/^(time|95 %)/.test(names[n]));
    const top = ["rank", "impl", "config", "tags", "state", "reason", ...kept.map((n) => names[n])];
    const out = [[...Object.keys(asked), ...top, ...heads, ...Object.keys(shared)]];
    for (const row of rows) {
      const cells = values.get(row), named = row.cells[2];
      const tags = [...named.querySelectorAll("i")].map((tag) => tag.textContent);
      const reason = row.classList.contains("f") ? row.cells[4].textContent.trim() : "";
      const line = lines[Number(row.id.slice(1))];
      out.push([
        ...Object.values(asked), cells[0], cells[1], named.firstChild.textContent.trim(), tags.join("; "),
        cells[3], reason, ...kept.map((n) => cells[n] || ""), ...expand(line, heads.length),
        ...Object.values(shared).map((cell) => (line ? cell : "")),
      ]);
    }
    return out.map(spell).join("\r\n") + "\r\n";
  }
  if (csv) csv.addEventListener("click", () => {
    const link = document.createElement("a");
    link.download = csv.dataset.name;
    link.href = URL.createObjectURL(new Blob([wholeCsv()], { type: "text/csv" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  });

  // Sorting. What has no value comes last, whichever way.
  function sort(column, descending) {
    const text = "text" in heads[column].firstElementChild.dataset;
    const read = (row) => {
      const value = values.get(row)[column];
      return text ? value : parseFloat(value);
    };
    const none = (value) => (text ? !value : Number.isNaN(value));
    const order = [...rows].sort((one, other) => {
      const a = read(one), b = read(other);
      if (none(a) || none(b)) return none(a) - none(b);
      const by = text ? a.localeCompare(b, "en", { numeric: true }) : a - b;
      return descending ? -by : by;
    });
    body.append(...order);
    heads.forEach((head, n) => {
      if (n === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }
  heads.forEach((head, column) => {
    const button = head.firstElementChild;
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      sort(column, now ? now === "ascending" : button.dataset.first === "descending");
    });
  });

  // Filtering, of rows and of their points.
  const filter = document.getElementById("filter");
  const state = document.getElementById("state");
  const impl = document.getElementById("impl");
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  function sift() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const failed = row.classList.contains("f");
      const keep = words.every((word) => texts.get(row).includes(word)) &&
        (!state.value || (state.value === "failed") === failed) &&
        (!impl || !impl.value || values.get(row)[1] === impl.value);
      row.hidden = !keep;
      shown += keep;
      for (const mark of marks.get(row) || []) {
        if (mark.localName === "use") mark.style.opacity = keep ? "" : 0.1;
      }
    }
    document.getElementById("shown").textContent = `${shown} of ${rows.length} shown`;
    rove(body.contains(current) && !current.hidden ? current : visible()[0]);
  }
  for (const control of [filter, state, impl]) control && control.addEventListener("input", sift);

  // One tab stop for the table; arrows move inside it.
  let current = rows[0];
  const visible = () => [...body.rows].filter((row) => !row.hidden);
  function rove(row) {
    if (!row) return;
    current.removeAttribute("tabindex");
    row.tabIndex = 0;
    current = row;
  }
  rove(current);
  body.addEventListener("keydown", (event) => {
    const list = visible();
    const at = list.indexOf(event.target);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: list.length - 1 }[event.key];
    if (event.key === "Enter" && at >= 0) select(event.target);
    if (at < 0 || to === undefined || !list[to]) return;
    event.preventDefault();
    rove(list[to]);
    list[to].focus();
  });

  // A row and its points, either way.
  let rings = [];
  function dim() {
    for (const ring of rings) ring.remove();
    for (const row of body.querySelectorAll(".lit")) row.classList.remove("lit");
    rings = [];
  }
  function ringAt(point) {
    const ring = document.createElementNS(svgNs, "circle");
    ring.setAttribute("cx", point.getAttribute("x"));
    ring.setAttribute("cy", point.getAttribute("y"));
    ring.setAttribute("r", 8);
    return ring;
  }
  function light(row) {
    dim();
    if (!row) return;
    row.classList.add("lit");
    for (const mark of marks.get(row) || []) {
      const ring = mark.localName === "use" ? ringAt(mark) : mark.cloneNode(false);
      ring.removeAttribute("data-r");
      ring.setAttribute("class", "on");
      mark.ownerSVGElement.append(ring);
      rings.push(ring);
    }
  }
  let chosen = null;
  function select(row) {
    if (chosen) {
      chosen.classList.remove("sel");
      chosen.removeAttribute("aria-current");
    }
    chosen = row;
    row.classList.add("sel");
    row.setAttribute("aria-current", "true");
    light(row);
  }
  function find(row) {
    if (row.hidden) {
      filter.value = state.value = "";
      if (impl) impl.value = "";
      sift();
    }
    rove(row);
    row.scrollIntoView({ block: "center", inline: "nearest" });
    row.focus({ preventScroll: true });
    select(row);
  }
  body.addEventListener("mouseover", (event) => light(event.target.closest("tr")));
  body.addEventListener("mouseleave", () => light(chosen));
  body.addEventListener("focusin", (event) => light(event.target.closest("tr")));
  body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    rove(row);
    select(row);
  });

  // What a point is, in words.
  function line(text, tag) {
    const made = document.createElement(tag);
    made.textContent = text;
    return made;
  }
  function tell(mark, x, y) {
    const row = document.getElementById("r" + mark.dataset.r);
    const cell = values.get(row);
    const short = names.slice(4, 11).map((name, n) => [name, cell[n + 4]]).filter(([, v]) => v);
    const { n, why } = mark.dataset;
    tip.replaceChildren(line(why ? `${n} tried here, ${n} failed` : `${cell[1]} ${cell[2]}`, "b"));
    if (n && !why) tip.append(line(`best of ${n} in this cell; ${cell[3]}`, "div"));
    else if (!why) tip.append(line(cell[3], "div"));
    if (why) tip.append(line(why, "div"));
    else for (const [name, value] of short) tip.append(line(`${name}: ${value}`, "div"));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (y + 16 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 16) + "px";
    light(row);
  }
  function hush() {
    tip.hidden = true;
    light(chosen);
  }
  for (const figure of document.querySelectorAll("svg.figure")) {
    const markAt = (event) => event.target.closest("[data-r]");
    figure.addEventListener("mousemove", (event) => {
      const mark = markAt(event);
      if (mark) tell(mark, event.clientX, event.clientY);
      else hush();
    });
    figure.addEventListener("mouseleave", hush);
    figure.addEventListener("click", (event) => {
      const mark = markAt(event);
      if (mark) find(document.getElementById("r" + mark.dataset.r));
    });
  }

  // Points by keyboard: left and right from one to the next, Enter to its row.
  for (const group of document.querySelectorAll(".points, .cells")) {
    const across = (mark) => mark.getBoundingClientRect().left;
    let at = -1;
    group.addEventListener("keydown", (event) => {
      const list = [...group.querySelectorAll("[data-r]")].sort((a, b) => across(a) - across(b));
      if (event.key === "Enter" && list[at]) find(document.getElementById("r" + list[at].dataset.r));
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!by || !list.length) return;
      event.preventDefault();
      at = Math.max(0, Math.min(list.length - 1, at + by));
      const box = list[at].getBoundingClientRect();
      tell(list[at], box.right, box.bottom);
    });
    group.addEventListener("blur", hush);
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hush();
  });
})();

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

  // Configs by row: the numbers of data-c, of which the first is the place of their names.
  const fields = JSON.parse(table.dataset.fields || "[]");
  const configs = new Map(rows.filter((row) => row.dataset.c).map((row) => {
    const [place, ...numbers] = row.dataset.c.split(" ");
    return [row, Object.fromEntries(fields[place].map((name, n) => [name, numbers[n]]))];
  }));

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
  function everyLine() {
    const asked = JSON.parse(csv.dataset.problem), shared = JSON.parse(csv.dataset.shared);
    const heads = JSON.parse(csv.dataset.heads);
    const lines = document.getElementById("csv-rows").content.textContent.split("\n");
    const kept = names.map((_, n) => n).slice(4).filter((n) => !heads.length || !/^(time|95 %)/.test(names[n]));
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
    return out;
  }
  // In JSON the config is an object, and a cell that is a number is one.
  function wholeJson() {
    const [heads, ...lines] = everyLine();
    const whole = lines.map((line, n) => {
      const pairs = heads.map((head, at) => {
        if (head === "config") return [head, numbered(Object.entries(configs.get(rows[n]) || {}))];
        return [head, /^-?\d+(\.\d+)?$/.test(line[at]) ? Number(line[at]) : line[at]];
      });
      return Object.fromEntries(pairs.filter(([, value]) => value !== ""));
    });
    return JSON.stringify({ title: document.title, rows: whole }, null, 1) + "\n";
  }
  const numbered = (pairs) => Object.fromEntries(pairs.map(([name, value]) => [name, Number(value)]));
  function save(name, text, type) {
    const link = document.createElement("a");
    link.download = name;
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  if (csv) {
    const { name } = csv.dataset;
    csv.addEventListener("click", () => save(`${name}.csv`, everyLine().map(spell).join("\r\n") + "\r\n", "text/csv"));
    document.getElementById("json").addEventListener("click", () => save(`${name}.json`, wholeJson(), "text/json"));
  }

  // Sorting. What has no value comes last, whichever way.
  let sorted = "";
  function sort(column, descending) {
    sorted = (descending ? "-" : "") + names[column];
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
      keep();
    });
  });

  // Filtering, of rows and of their points.
  const filter = document.getElementById("filter");
  const state = document.getElementById("state");
  const impl = document.getElementById("impl");
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  // `block_m=128,num_warps=4`, as the command line writes a config, asks for these values; any
  // other word, and a name that is no knob of the row, for text of the row.
  function fits(row, word) {
    const [, name, value] = /^(?:[\w.]+:)?(\w+)=(\S*)$/.exec(word) || [];
    const config = configs.get(row);
    if (config && name in config) return config[name] === value || (value === "auto" && config[name] < 1);
    return texts.get(row).includes(word);
  }
  function stands(row, failed) {
    if (state.value === "every") return true;
    if (state.value) return (state.value === "failed") === failed;
    return Boolean(filter.value.trim()) || !("folded" in row.dataset); // a search is of all rows
  }
  function sift() {
    const words = filter.value.toLowerCase().split(/\s+|,(?=[^,]*=)/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const failed = row.classList.contains("f");
      const keep = words.every((word) => fits(row, word)) &&
        stands(row, failed) &&
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
  for (const control of [filter, state, impl]) control && control.addEventListener("input", () => {
    sift();
    keep();
  });

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
    keep();
    offer();
  }

  // The selected row's config, or the winner's, as Triton's autotuner takes it.
  const copy = document.getElementById("copy");
  const winner = body.querySelector("tr.w");
  const options = ["num_warps", "num_stages", "num_ctas", "maxnreg"];
  function asConfig(config) {
    const own = Object.entries(config).filter(([name]) => !options.includes(name));
    const inner = own.map(([name, value]) => `"${name.startsWith("block_") ? name.toUpperCase() : name}": ${value}`);
    const named = options.filter((name) => config[name] > 0).map((name) => `, ${name}=${config[name]}`);
    return `triton.Config({${inner.join(", ")}}${named.join("")})`;
  }
  function offer() {
    if (!copy) return;
    const row = chosen || winner;
    const config = row && configs.get(row);
    const which = chosen ? `row ${row.cells[0].textContent.trim() || "selected"}` : "the winner";
    copy.disabled = !config;
    copy.textContent = config ? `Copy ${which} as triton.Config` : "Select a config to copy it";
    copy.title = config ? asConfig(config) : "";
  }
  if (copy) copy.addEventListener("click", async () => {
    const text = copy.title;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    copy.textContent = "Copied";
    setTimeout(offer, 1500);
  });
  function find(row) {
    if (row.hidden) {
      filter.value = "";
      state.value = "folded" in row.dataset ? "every" : "";
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

  // Filter, order and selected row live in the fragment, so that a link holds them.
  const controls = { filter, state, impl };
  const others = []; // [name, read, write] of what another script keeps there
  let loading = true;
  function keep() {
    if (loading) return;
    const set = new URLSearchParams();
    for (const [name, control] of Object.entries(controls)) if (control && control.value) set.set(name, control.value);
    if (sorted) set.set("sort", sorted);
    for (const [name, read] of others) if (read()) set.set(name, read());
    if (chosen) set.set("row", chosen.id.slice(1));
    const hash = set.toString();
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  }
  function load() {
    loading = true;
    const plain = /^#r(\d+)$/.exec(location.hash);
    const set = new URLSearchParams(plain ? `row=${plain[1]}` : location.hash.slice(1));
    for (const [name, control] of Object.entries(controls)) {
      if (!control) continue;
      control.value = set.get(name) || "";
      if (control.selectedIndex === -1) control.value = ""; // no such choice on this page
    }
    const order = set.get("sort") || "";
    const column = names.indexOf(order.replace(/^-/, ""));
    if (column >= 0) sort(column, order.startsWith("-"));
    for (const [name, , write] of others) write(set.get(name) || "");
    sift();
    const row = document.getElementById("r" + set.get("row"));
    if (row) find(row);
    loading = false;
    offer();
  }
  window.kept = { others, keep, load };
  addEventListener("hashchange", load);
  load();
})();

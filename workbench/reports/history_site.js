(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const form = document.getElementById("filters");
  if (!form) return;
  const fields = [...form.elements].filter((field) => field.name);
  const first = data.branches[0] ?? "";

  // Filters live in the fragment, so that a link holds them: #device=NVIDIA+H200&branch=main.
  let chosen = "";
  function load() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    chosen = wanted.get("series") ?? "";
    for (const field of fields) {
      const value = wanted.get(field.name) ?? "";
      if (field.type === "checkbox") field.checked = value === field.value;
      else if (field.name === "branch") field.value = data.branches.includes(value) ? value : first;
      else {
        field.value = value;
        if (field.value !== value) field.value = "";
      }
    }
  }
  function filters() {
    const set = new URLSearchParams();
    for (const field of fields) {
      const value = field.type === "checkbox" ? (field.checked ? field.value : "") : field.value;
      if (value && !(field.name === "branch" && value === first)) set.set(field.name, value);
    }
    return set;
  }
  function save() {
    const set = filters();
    if (chosen) set.set("series", chosen);
    const hash = set.toString();
    history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);
  }

  // A link to another page of the site keeps the device, the dtype and the branch.
  const links = [...document.querySelectorAll("a[data-keeps]")].map((link) => [link, link.getAttribute("href")]);
  function carry(set) {
    for (const [link, href] of links) {
      const [path, own = ""] = href.split("#");
      const kept = new URLSearchParams();
      for (const name of ["device", "dtype", "branch"]) if (set.get(name)) kept.set(name, set.get(name));
      for (const text of [link.dataset.keeps, own]) {
        for (const [name, value] of new URLSearchParams(text)) kept.set(name, value);
      }
      if (kept.get("series")) for (const name of ["device", "dtype"]) kept.delete(name);
      const hash = kept.toString();
      link.setAttribute("href", hash ? `${path}#${hash}` : path);
    }
  }

  const rows = [...document.querySelectorAll("[data-filter]")];
  const columns = [...document.querySelectorAll("[data-column]")];
  const branch = (set) => String(Math.max(0, data.branches.indexOf(set.get("branch") ?? first)));
  const matches = (set, of, name) => {
    const value = set.get(name);
    return !value || of[name] === undefined || of[name] === value;
  };
  function show() {
    const set = filters(), on = branch(set), part = (set.get("kernel") ?? "").toLowerCase();
    const device = set.get("device"), matrix = set.get("sizes") === "all" || data.series;
    for (const cell of columns) cell.hidden = Boolean(device) && cell.dataset.column !== device;
    let shown = 0;
    for (const row of rows) {
      const of = row.dataset;
      const full = !row.querySelector("[data-column]") || row.querySelector("[data-full]:not([hidden])");
      row.hidden = !(
        full && of.branches.split(" ").includes(on) && matches(set, of, "device") && matches(set, of, "dtype") &&
        (!data.series || (matches(set, of, "sizes") && matches(set, of, "impl"))) &&
        (of.kernel ?? "").toLowerCase().includes(part) && (matrix || of.more === undefined)
      );
      if (!row.hidden && row.querySelector("[data-column]")) shown++;
    }
    carry(set);
    if (data.series) draw(set, on);
    else {
      document.getElementById("shown").textContent = counted(shown, "row");
      count(set);
    }
  }
  const counted = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;
  // The sentence counts the changes that the filters let through.
  function count(set) {
    const place = document.getElementById("answer"), many = place.dataset.series;
    if (!many) return;
    const listed = (kind) => document.querySelectorAll(`table.changes tr:not([hidden]) .step.${kind}`).length;
    const filtered = ["kernel", "device", "dtype"].some((name) => set.get(name));
    place.textContent = `${counted(listed("slower"), "regression")} and ${counted(listed("faster"), "improvement")} on ` +
      `${set.get("branch") ?? first}${filtered ? ", as filtered" : `, in ${many} series`}.`;
  }

  // Curves
  const NS = "http://www.w3.org/2000/svg";
  const make = (name, attributes = {}, text = "") => {
    const element = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text) element.textContent = text;
    return element;
  };
  const AT_ONCE = 12;
  let limit = AT_ONCE;
  function draw(set, on) {
    const place = document.getElementById("curves");
    const wanted = data.series.filter((s) =>
      s.views[on] && (chosen ? s.id === chosen
        : matches(set, s, "device") && matches(set, s, "dtype") && matches(set, s, "sizes") && matches(set, s, "impl")));
    const ratio = set.get("value") === "ratio";
    place.replaceChildren(...wanted.slice(0, limit).map((s) => panel(s, on, ratio)));
    const more = document.getElementById("more");
    more.hidden = wanted.length <= limit;
    more.textContent = `Draw the other ${wanted.length - limit}`;
    document.getElementById("one").hidden = !chosen;
    document.getElementById("shown").textContent = `${wanted.length} of ${data.series.length} series`;
  }
  const span = (values) => [Math.min(...values), Math.max(...values)];
  function unit(seconds) {
    for (const [scale, name] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) if (seconds >= scale) return [scale, name];
    return [1e-9, "ns"];
  }
  function ticks(low, high) {
    const raw = (high - low) / 5, size = 10 ** Math.floor(Math.log10(raw));
    const step = size * [1, 2, 5, 10].find((n) => n * size >= raw);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const all = [];
    for (let n = Math.ceil(low / step); n * step <= high; n++) all.push([n * step, (n * step).toFixed(digits)]);
    return all;
  }
  const median = (values) => {
    const sorted = [...values].sort((a, b) => a - b), half = sorted.length >> 1;
    return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  };
  function panel(series, on, ratio) {
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    const small = document.createElement("small");
    caption.textContent = series.title;
    const steps = series.sought === "ratio" ? `steps sought in the ratio to ${series.reference}` : "steps sought in the time";
    small.textContent = `${series.sizes} ${series.dtype}, ${series.device}; ${series.how}; ${steps}. `;
    const link = document.createElement("a");
    const own = new URLSearchParams({ series: series.id });
    if (filters().get("branch")) own.set("branch", filters().get("branch"));
    if (ratio) own.set("value", "ratio");
    link.href = `#${own}`;
    link.textContent = "link";
    small.append(link);
    caption.append(document.createElement("br"), small);
    figure.append(caption, curve(series, on, ratio));
    return figure;
  }
  function curve(series, on, ratio) {
    const [places, changes] = series.views[on];
    const at = ratio ? 5 : 2;
    const used = (places ?? series.points.map((_, n) => n)).filter((n) => series.points[n][at] !== null);
    if (!used.length) {
      const none = document.createElement("p");
      none.className = "note";
      none.textContent = "No run of this series has a library's time beside it.";
      return none;
    }
    const points = used.map((n) => series.points[n]);
    const room_px = document.getElementById("curves").clientWidth;
    const wide = Math.max(320, Math.min(560, room_px)), high = 250, left = 58, top = 24, bottom = 46;
    const right = 34; // half of the widest name of a commit, which may stand below the last point
    const [scale, name] = ratio ? [1, ""] : unit(points[0][at]);
    let [low, most] = span(points.flatMap((p) => [p[at], p[at]]));
    const [far, near] = [span(points.map((p) => p[at + 1]))[0], span(points.map((p) => p[at + 2]))[1]];
    const room = Math.max(most - low, 0.02 * most);
    low = Math.max(far, low - room) - 0.05 * room;
    most = Math.min(near, most + room) + 0.05 * room;
    if (most - low < 0.03 * most) [low, most] = [low - 0.015 * most, most + 0.015 * most];
    low /= scale; most /= scale;
    const x = (n) => left + (wide - left - right) * (used.length > 1 ? (n + 0.5) / used.length : 0.5);
    const y = (value) => high - bottom - (high - top - bottom) * (Math.min(Math.max(value / scale, low), most) - low) / (most - low);
    const label = ratio ? `time over ${series.reference}'s, 1` : `time, ${name}`;
    const svg = make("svg", { viewBox: `0 0 ${wide} ${high}`, role: "group", "aria-label": `${series.title}: ${label}, over commits` });
    for (const [value, text] of ticks(low, most)) {
      const line = y(value * scale);
      svg.append(make("path", { class: "grid", d: `M${left} ${line}H${wide - right}` }));
      svg.append(make("text", { x: left - 6, y: line + 4, "text-anchor": "end" }, text));
    }
    svg.append(make("text", { x: 4, y: 13 }, label));
    svg.append(make("path", { class: "axis", d: `M${left} ${high - bottom}H${wide - right}` }));
    const every = Math.max(1, Math.ceil(used.length / Math.floor((wide - left) / 80)));
    for (let n = 0; n < used.length; n += every) {
      const title = short(points[n]);
      svg.append(make("path", { class: "axis", d: `M${x(n)} ${high - bottom}v4` }));
      svg.append(make("text", { x: Math.max(x(n), left + 14), y: high - bottom + 17, "text-anchor": "middle" }, title));
    }
    svg.append(make("text", { x: (left + wide - right) / 2, y: high - 8, "text-anchor": "middle" }, "commit, in the order of the history"));
    const starts = changes.map((c) => used.findIndex((n) => n >= c[1]));
    const clean = (a, b) => points.slice(a, b).filter((p) => !(p[1] & 1)).map((p) => p[at]);
    for (const [n, start] of [0, ...starts].entries()) {
      const end = starts[n] ?? used.length;
      if (starts.length && clean(start, end).length) {
        svg.append(make("path", { class: "level", d: `M${x(start) - 3} ${y(median(clean(start, end)))}H${x(end - 1) + 3}` }));
      }
    }
    points.forEach((point, n) => {
      svg.append(make("path", { class: "interval", d: `M${x(n)} ${y(point[at + 1])}V${y(point[at + 2])}` }));
    });
    points.forEach((point, n) => {
      const dot = make("circle", { class: point[1] & 1 ? "point dirty" : "point", cx: x(n), cy: y(point[at]), r: used.length > 120 ? 2.2 : 3.2, tabindex: n ? -1 : 0 });
      const words = describe(series, point);
      dot.setAttribute("aria-label", words.map((w) => w[0]).join(", "));
      dot.setAttribute("role", "img");
      const tell = () => tip(dot, words);
      dot.addEventListener("pointerenter", tell);
      dot.addEventListener("focus", tell);
      dot.addEventListener("pointerleave", hide);
      dot.addEventListener("blur", hide);
      dot.addEventListener("click", () => {
        const run = point[8].map((r) => data.runs[r][1]).filter(Boolean).at(-1);
        if (run) location.href = run;
      });
      svg.append(dot);
    });
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const dots = [...svg.querySelectorAll("circle")], here = dots.indexOf(document.activeElement);
      if (!step || here < 0 || !dots[here + step]) return;
      dots[here + step].focus();
      event.preventDefault();
    });
    starts.forEach((start, n) => {
      const [, , kind, text] = changes[n], line = x(start) - (wide - left - right) / used.length / 2;
      svg.append(make("path", { class: `mark ${kind}`, d: `M${line} ${top}V${high - bottom}` }));
      const anchor = line > wide * 0.62 ? "end" : "start";
      const sign = { slower: "▲ ", faster: "▼ ", library: "◆ ", drift: "↗ ", episode: "∿ " }[kind];
      svg.append(make("text", { class: kind, x: line + (anchor === "end" ? -4 : 4), y: top + 2 + 13 * (n % 3), "text-anchor": anchor }, sign + text));
    });
    return svg;
  }
  const short = (point) => data.commits[point[0]][0].slice(0, 8) + (point[1] & 1 ? "+" : "");
  function number(seconds) {
    const [scale, name] = unit(seconds);
    return [(seconds / scale).toPrecision(4), name, scale];
  }
  function describe(series, point) {
    const [hash, date, subject] = data.commits[point[0]];
    const [text, name, scale] = number(point[2]);
    const ends = [point[3], point[4]].map((v) => (v / scale).toPrecision(4)).join(" to ");
    const lines = [[point[1] & 2 ? hash : `${hash.slice(0, 12)}${point[1] & 1 ? " with uncommitted changes" : ""} ${date}`, true]];
    if (subject) lines.push([subject]);
    lines.push([`${text} ${name} (${ends})`]);
    if (point[5] !== null) lines.push([`${point[5].toPrecision(3)} of ${series.reference}'s time (${point[6].toPrecision(3)} to ${point[7].toPrecision(3)})`]);
    if (data.configs[point[9]]) lines.push([data.configs[point[9]]]);
    lines.push([`${point[8].length} run${point[8].length > 1 ? "s" : ""}: ${point[8].slice(-3).map((r) => data.runs[r][0]).join(", ")}`]);
    return lines;
  }
  const box = document.getElementById("tip");
  function tip(dot, lines) {
    box.replaceChildren(...lines.map(([text, bold]) => {
      const line = document.createElement(bold ? "b" : "div");
      line.textContent = text;
      return line;
    }));
    box.hidden = false;
    const at = dot.getBoundingClientRect();
    box.style.left = `${Math.max(4, Math.min(at.left + 12, innerWidth - box.offsetWidth - 8))}px`;
    box.style.top = `${at.bottom + box.offsetHeight + 12 > innerHeight ? at.top - box.offsetHeight - 8 : at.bottom + 8}px`;
  }
  function hide() { box.hidden = true; }

  document.getElementById("more")?.addEventListener("click", () => { limit = Infinity; show(); });
  document.getElementById("one")?.addEventListener("click", () => { chosen = ""; save(); show(); });
  form.addEventListener("input", (event) => {
    if (event.target.name !== "branch" && event.target.name !== "value") chosen = "";
    limit = AT_ONCE;
    save();
    show();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", () => { load(); show(); });
  load();
  show();
})();

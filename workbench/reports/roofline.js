(() => {
  const data = JSON.parse(document.getElementById("data").textContent);

  // The legend. An element shows while each word of its data-t has a switch that is on; what is
  // hidden leaves the keyboard's round too, which goes by data-r.
  const off = new Set();
  const parts = [...document.querySelectorAll("[data-t]")].map((part) => [
    part, part.dataset.t.split(" ").map((word) => word.split("|")),
  ]);
  function show() {
    for (const [part, words] of parts) {
      const hidden = words.some((word) => word.every((one) => off.has(one)));
      part.style.display = hidden ? "none" : "";
      for (const mark of part.querySelectorAll("[data-r], [data-held]")) {
        const { r, held } = mark.dataset;
        if (hidden && r !== undefined) { mark.dataset.held = r; delete mark.dataset.r; }
        if (!hidden && held !== undefined) { mark.dataset.r = held; delete mark.dataset.held; }
      }
    }
  }
  for (const button of document.querySelectorAll("[data-word]")) {
    const on = () => button.getAttribute("aria-pressed") === "true";
    if (!on()) off.add(button.dataset.word);
    button.addEventListener("click", () => {
      button.setAttribute("aria-pressed", String(!on()));
      if (on()) off.delete(button.dataset.word);
      else off.add(button.dataset.word);
      show();
      kept?.keep();
    });
  }

  // The switches that stand otherwise than at first, in the fragment beside filter and order.
  const kept = window.kept; // none on a page without rows
  const first = new Set(off);
  const buttons = [...document.querySelectorAll("[data-word]")];
  kept?.others.push([
    "switched",
    () => buttons.map((b) => b.dataset.word).filter((word) => first.has(word) !== off.has(word)).join(","),
    (text) => {
      const switched = new Set(text.split(","));
      for (const button of buttons) {
        const { word } = button.dataset;
        const hidden = first.has(word) !== switched.has(word);
        button.setAttribute("aria-pressed", String(!hidden));
        if (hidden) off.add(word);
        else off.delete(word);
      }
      show();
    },
  ]);

  // Every number drawn, as a file. A column of words holds places in its list of words.
  const heads = data.columns.map(([name]) => name);
  const read = ([, words, cells], n) => (words.length && cells[n] !== null ? words[cells[n]] : cells[n]);
  const rows = data.columns[0][2].map((_, n) => data.columns.map((column) => read(column, n)));
  function csv() {
    const cell = (value) => {
      const text = value === null ? "" : String(value);
      return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return [heads, ...rows].map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
  }
  function json() {
    const points = rows.map((row) => Object.fromEntries(row.map((cell, n) => [heads[n], cell])));
    const arrows = data.arrows.map(([from, to, change, what]) => ({ from, to, change, what }));
    return JSON.stringify({ points, arrows, ceilings: data.ceilings }, null, 1) + "\n";
  }
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => {
      const kind = button.dataset.save;
      const link = document.createElement("a");
      link.download = `roofline.${kind}`;
      link.href = URL.createObjectURL(new Blob([kind === "csv" ? csv() : json()], { type: `text/${kind}` }));
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  }
  kept?.load();
})();

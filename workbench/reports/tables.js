(() => {
  // What the page's tables show, as a file: each table with its heading, columns and rows.
  const flat = (element) => element.textContent.replace(/\s+/g, " ").trim();
  function wide(row) {
    return [...row.cells].flatMap((cell) => [flat(cell), ...Array(cell.colSpan - 1).fill("")]);
  }
  function headOf(table) {
    const heads = [...document.querySelectorAll("h1, h2, h3, h4, figcaption")];
    const before = heads.filter((h) => h.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING);
    return before.length ? flat(before.at(-1)) : document.title;
  }
  function tables() {
    const out = [];
    for (const table of document.querySelectorAll("main table")) {
      const rows = [...table.tBodies].flatMap((body) => [...body.rows]).map(wide);
      const last = table.tHead ? [...table.tHead.rows].at(-1) : null;
      if (!last && out.length) out.at(-1).rows.push(...rows); // goes on with the table before it
      else {
        const columns = last ? wide(last) : [];
        const width = Math.max(columns.length, ...rows.map((row) => row.length));
        while (columns.length < width) columns.unshift(""); // a head that spans two rows
        out.push({ table: headOf(table), columns, rows });
      }
    }
    return out;
  }
  function about() {
    const pairs = [...document.querySelectorAll("main dl.problem > div")];
    return Object.fromEntries(pairs.map((pair) => [...pair.children].map(flat)));
  }
  function json() {
    const answer = document.getElementById("answer");
    const whole = { title: document.title, answer: answer ? flat(answer) : "", about: about(), tables: tables() };
    return JSON.stringify(whole, null, 1) + "\n";
  }
  function csv() {
    const spell = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
    const line = (cells) => cells.map(spell).join(",");
    const parts = tables().map(({ table, columns, rows }) =>
      [line(["table", ...columns]), ...rows.map((row) => line([table, ...row]))].join("\r\n"));
    return parts.join("\r\n\r\n") + "\r\n";
  }
  for (const button of document.querySelectorAll("[data-tables]")) {
    const kind = button.dataset.tables;
    button.addEventListener("click", () => {
      const link = document.createElement("a");
      link.download = `${document.title.replace(/[^\w.-]+/g, "_").slice(0, 80)}.${kind}`;
      link.href = URL.createObjectURL(new Blob([kind === "csv" ? csv() : json()], { type: `text/${kind}` }));
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  }
})();

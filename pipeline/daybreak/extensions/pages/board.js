"use strict";
// Sorts, filters and searches the table of nights where the page has all of them, and shows running nights as
// they move where a server sends them. Without it, the page is a plain table, and the form asks the server.
(() => {
  document.documentElement.classList.add("scripted");
  const main = document.querySelector("main");
  const all = (selector, within = main) => [...within.querySelectorAll(selector)];
  const table = () => main.querySelector("table.nights");
  const isWhole = () => table() !== null && "whole" in table().dataset;
  let sorted = null; // {column, descending}
  const given = main.querySelector("table.nights thead [aria-sort]"); // as the address asks
  if (given) sorted = {column: given.cellIndex, descending: given.ariaSort === "descending"};

  const value = (row, column, isNumber) => {
    const cell = row.cells[column];
    if (!cell || cell.colSpan > 1) return null;
    const text = cell.dataset.v ?? cell.textContent.trim();
    if (text === "" || text.startsWith("–")) return null;
    return isNumber ? Number(text.replaceAll(",", "")) : text;
  };
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

  const filter = () => {
    const form = main.querySelector("form.filter");
    if (!form || !isWhole()) return;
    const asked = Object.fromEntries(new FormData(form));
    const {model, outcome, month, q} = asked;
    const words = (q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table().tBodies[0].rows) {
      const fits = (!model || row.dataset.m === model) && (!outcome || row.dataset.o === outcome) && (!month || row.cells[0].dataset.v.startsWith(month)) && words.every(word => row.dataset.q.includes(word));
      row.hidden = !fits;
      shown += fits;
    }
    form.querySelector("output").textContent = `${shown.toLocaleString("en")} of ${table().tBodies[0].rows.length.toLocaleString("en")}`;
    if (location.protocol === "file:") return; // a server finds the same nights by the address
    const given = new URLSearchParams(Object.entries(asked).filter(([, text]) => text));
    history.replaceState(null, "", `${location.pathname}${given.size ? `?${given}` : ""}${location.hash}`);
  };
  const sort = () => {
    if (!sorted) return;
    const body = table().tBodies[0], heads = all("thead th", table()), isNumber = heads[sorted.column].classList.contains("n");
    const newest = [...body.rows].sort((a, b) => b.dataset.t - a.dataset.t); // the order of those that are equal, as by the server
    const keyed = newest.map(row => [value(row, sorted.column, isNumber), row]);
    const known = keyed.filter(([key]) => key !== null).sort(([a], [b]) => compare(a, b) * (sorted.descending ? -1 : 1));
    body.append(...known.map(([, row]) => row), ...keyed.filter(([key]) => key === null).map(([, row]) => row));
    heads.forEach((head, at) => {
      if (at === sorted.column) head.setAttribute("aria-sort", sorted.descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  };
  const prepare = () => all("table.nights thead th").forEach(head => { if (isWhole()) head.tabIndex = 0; });

  const chosen = event => {
    const head = event.target.closest?.("table.nights thead th");
    if (!head || !isWhole()) return;
    event.preventDefault();
    const column = head.cellIndex;
    sorted = {column, descending: sorted?.column === column ? !sorted.descending : column > 0};
    main.querySelector("form.filter [name=sort]").value = (sorted.descending ? "-" : "") + head.dataset.key;
    sort();
    filter();
  };
  main.addEventListener("click", chosen);
  main.addEventListener("keydown", event => { if (event.key === "Enter" && event.target.tagName === "TH") chosen(event); });
  const asks = event => event.target.closest?.("form.filter") !== null;
  main.addEventListener("input", filter);
  main.addEventListener("submit", event => { if (asks(event) && isWhole() && !event.submitter?.name) event.preventDefault(); });
  main.addEventListener("change", event => { if (asks(event) && !isWhole()) event.target.form.requestSubmit(); });
  prepare();
  filter();

  const renew = async () => { // a night has ended: the table and the charts have a row more
    const answer = await fetch(location.href);
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const given = Object.fromEntries(all("form.filter [name]").map(field => [field.name, field.value]));
    main.replaceChildren(...page.querySelector("main").childNodes);
    for (const field of all("form.filter [name]")) field.value = given[field.name] ?? field.value;
    prepare();
    sort();
    filter();
  };
  const source = main.querySelector("[data-source]")?.dataset.source;
  if (source) {
    const stream = new EventSource(source);
    let closed = null;
    stream.addEventListener("running", event => {
      const region = main.querySelector("[data-source]");
      if (region) region.innerHTML = event.data;
    });
    stream.addEventListener("page", event => { // of one night: live, evidence for a person who is asked, closed
      if (event.data !== main.querySelector("[data-source]").dataset.page) location.reload();
    });
    stream.addEventListener("ledger", event => {
      const isBoard = main.querySelector("[data-page]") === null;
      if (isBoard && closed !== null && closed !== event.data) renew();
      closed = event.data;
    });
  }
})();

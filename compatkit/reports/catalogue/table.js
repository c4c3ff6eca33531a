// The table of components: only the rows in sight are elements, so that ten thousand cost as much as forty.
"use strict";
(() => {
  const { make, bdi, address } = catalogue;
  const byId = (id) => document.getElementById(id);
  const [NAME, VERSION, KIND, MODEL, CUT, PARAMETERS, , TITLE, DATA, TAGS, FIT, WHEN, COUNT, WITHDRAWN] = Array(14).keys();
  const MAX_OPTIONS = 500, AROUND = 8, MAX_PRINTED = 20000;
  let data, haystack, tagText;
  const text = (number) => data.texts[number];
  const network = (row) => [text(row[MODEL]), text(row[CUT])].filter(Boolean).join(" @ ");
  const COLUMNS = [
    { key: "name", label: "name", of: (row) => row[NAME], compare: (row) => row[NAME] },
    { key: "version", label: "version", of: (row) => row[VERSION] + (row[COUNT] > 1 ? ` of ${row[COUNT]}` : "") + (row[COUNT] === row[WITHDRAWN] ? ", withdrawn" : ""), compare: (row) => row[COUNT] },
    { key: "kind", label: "kind", of: (row) => text(row[KIND]), compare: (row) => text(row[KIND]) },
    { key: "fit", label: "fit", of: (row) => `${data.stages[row[FIT]][1]} ${data.stages[row[FIT]][0]}`, compare: (row) => row[FIT] },
    { key: "network", label: "network", of: network, compare: network },
    { key: "data", label: "data set", of: (row) => text(row[DATA]), compare: (row) => text(row[DATA]) },
    { key: "parameters", label: "parameters", of: (row) => row[PARAMETERS].toLocaleString("en"), compare: (row) => row[PARAMETERS] },
    { key: "published", label: "published", of: (row) => row[WHEN].slice(0, 10), compare: (row) => row[WHEN] },
    { key: "title", label: "title", of: (row) => row[TITLE], compare: (row) => row[TITLE] },
  ];
  const frame = byId("frame"), table = byId("table"), head = table.tHead, body = table.tBodies[0];
  const inputs = { q: byId("search"), kind: byId("kind"), data: byId("data"), model: byId("model"), fit: byId("fit"), tag: byId("tag") };
  let sort = "name", descending = false, order = [], rows = [], active = 0, height = 36, printing = false;

  const spacer = () => { const cell = make("td", { colspan: COLUMNS.length }); return { row: make("tr", { class: "spacer", "aria-hidden": "true" }, cell), cell }; };
  const above = spacer(), below = spacer();
  const pool = [];
  const slot = () => {
    const name = make("a", { tabindex: "-1" }, make("bdi"));
    const cells = COLUMNS.map((column, number) => (number ? make("td", { class: `c-${column.key}` }, make("bdi")) : make("th", { scope: "row", class: "c-name" }, name)));
    return { row: make("tr", { class: "row" }, cells), name, texts: cells.map((cell) => cell.querySelector("bdi")), cells, at: -1 };
  };
  const headings = COLUMNS.map((column) => {
    const button = make("button", { type: "button" }, column.label);
    button.addEventListener("click", () => { descending = sort === column.key && !descending; sort = column.key; reorder(); });
    return make("th", { scope: "col", class: `c-${column.key}` }, button);
  });
  head.append(make("tr", {}, headings));

  const fill = (place, at) => {
    const row = data.rows[rows[at]];
    place.at = at;
    place.row.setAttribute("aria-rowindex", at + 2);
    place.name.setAttribute("href", address(`${row[NAME]}@${row[VERSION]}`));
    place.name.tabIndex = at === active ? 0 : -1;
    COLUMNS.forEach((column, number) => {
      const value = column.of(row);
      if (place.texts[number].textContent !== value) { place.texts[number].textContent = value; place.cells[number].title = value; }
    });
    place.row.classList.toggle("withdrawn", row[COUNT] === row[WITHDRAWN]);
  };
  const draw = () => {
    const seen = printing ? rows.length : Math.ceil(frame.clientHeight / height) + 2 * AROUND;
    const first = printing ? 0 : Math.max(0, Math.min(rows.length - seen, Math.floor(frame.scrollTop / height) - AROUND));
    const count = Math.min(rows.length - first, seen, MAX_PRINTED);
    const focused = pool.find((place) => place.name === document.activeElement);
    while (pool.length < count) { const place = slot(); pool.push(place); below.row.before(place.row); }
    pool.forEach((place, number) => {
      place.row.hidden = number >= count;
      if (number < count) fill(place, first + number);
    });
    above.cell.style.height = `${first * height}px`;
    below.cell.style.height = `${Math.max(0, rows.length - first - count) * height}px`;
    above.row.hidden = first === 0;
    below.row.hidden = rows.length === first + count;
    if (focused) { const place = pool.find((one) => one.at === active && !one.row.hidden); if (place) place.name.focus({ preventScroll: true }); }
  };
  let asked = false;
  const redraw = () => { if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; draw(); }); } };
  frame.addEventListener("scroll", redraw, { passive: true });

  const reorder = () => {
    const { compare } = COLUMNS.find((column) => column.key === sort), keys = data.rows.map(compare);
    order = [...keys.keys()].sort((left, right) => (keys[left] < keys[right] ? -1 : keys[left] > keys[right] ? 1 : left - right));
    if (descending) order.reverse();
    COLUMNS.forEach((column, number) => headings[number].setAttribute("aria-sort", column.key !== sort ? "none" : descending ? "descending" : "ascending"));
    select();
  };
  const select = () => {
    const words = inputs.q.value.toLowerCase().split(/\s+/).filter(Boolean), tag = inputs.tag.value.trim().toLowerCase();
    const wanted = [[KIND, inputs.kind], [DATA, inputs.data], [MODEL, inputs.model], [FIT, inputs.fit]].filter(([, input]) => input.value !== "").map(([field, input]) => [field, Number(input.value)]);
    rows = order.filter((at) => wanted.every(([field, value]) => data.rows[at][field] === value) && words.every((word) => haystack[at].includes(word)) && (!tag || tagText[at].includes(tag)));
    active = 0;
    frame.scrollTop = 0;
    table.setAttribute("aria-rowcount", rows.length + 1);
    byId("count").textContent = `${rows.length.toLocaleString("en")} of ${data.rows.length.toLocaleString("en")} components` + (data.damaged.length ? `; ${data.damaged.length.toLocaleString("en")} damaged: ${data.damaged.slice(0, 5).join(", ")}` : "");
    draw();
    remember();
  };
  const remember = () => {
    const state = new URLSearchParams();
    for (const [name, input] of Object.entries(inputs)) if (input.value) state.set(name, input.selectedOptions ? input.selectedOptions[0].dataset.text : input.value);
    if (sort !== "name" || descending) state.set("sort", (descending ? "-" : "") + sort);
    try { history.replaceState(null, "", state.size ? `#${state}` : location.pathname); } catch { /* some browsers limit it */ }
  };
  const recall = () => {
    const state = new URLSearchParams(location.hash.slice(1));
    for (const [name, input] of Object.entries(inputs)) {
      const value = state.get(name) || "";
      input.value = input.selectedOptions ? ([...input.options].find((option) => option.dataset.text === value) || input.options[0]).value : value;
    }
    const wanted = (state.get("sort") || "name").replace(/^-/, "");
    if (COLUMNS.some((column) => column.key === wanted)) { sort = wanted; descending = (state.get("sort") || "").startsWith("-"); }
  };

  const options = (input, values, label) => {
    const counts = new Map();
    for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
    const sorted = [...counts].filter(([value]) => label(value)).sort((left, right) => right[1] - left[1] || (label(left[0]) < label(right[0]) ? -1 : 1));
    const any = make("option", { value: "", "data-text": "" }, "any");
    const kept = input.value;
    input.replaceChildren(any, ...sorted.slice(0, MAX_OPTIONS).map(([value, count]) => make("option", { value, "data-text": label(value) }, `${label(value)} (${count.toLocaleString("en")})`)));
    input.value = kept;
    if (input.selectedIndex < 0) input.selectedIndex = 0;
  };
  const use = (value) => {
    data = value;
    const tags = new Map();
    tagText = data.rows.map((row) => row[TAGS].map(text).join("\n").toLowerCase());
    haystack = data.rows.map((row, at) => [row[NAME], row[TITLE], text(row[KIND]), network(row), tagText[at]].join("\n").toLowerCase());
    for (const row of data.rows) for (const tag of row[TAGS]) tags.set(tag, (tags.get(tag) || 0) + 1);
    options(inputs.kind, data.rows.map((row) => row[KIND]), text);
    options(inputs.data, data.rows.map((row) => row[DATA]), text);
    options(inputs.model, data.rows.map((row) => row[MODEL]), text);
    options(inputs.fit, data.rows.map((row) => row[FIT]), (stage) => data.stages[stage][0]);
    byId("tags").replaceChildren(...[...tags].sort((left, right) => right[1] - left[1]).slice(0, MAX_OPTIONS).map(([tag]) => make("option", { value: text(tag) })));
  };

  for (const input of Object.values(inputs)) input.addEventListener("input", select);
  const clear = () => { for (const input of Object.values(inputs)) input.value = ""; select(); };
  byId("clear").addEventListener("click", () => { clear(); inputs.q.focus(); });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) { event.preventDefault(); inputs.q.focus(); inputs.q.select(); }
    if (event.key === "Escape") { if (event.target === inputs.tag) { inputs.tag.value = ""; select(); } else if (!/SELECT/.test(event.target.tagName)) clear(); }
    if (event.key === "ArrowDown" && event.target === inputs.q && rows.length) { event.preventDefault(); move(0); }
  });
  const move = (to) => {
    active = Math.max(0, Math.min(rows.length - 1, to));
    const top = active * height, inner = frame.clientHeight - head.offsetHeight;
    if (top < frame.scrollTop) frame.scrollTop = top;
    else if (top + height > frame.scrollTop + inner) frame.scrollTop = top + height - inner;
    draw();
    const place = pool.find((one) => one.at === active && !one.row.hidden);
    if (place) place.name.focus({ preventScroll: true });
  };
  body.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(frame.clientHeight / height) - 2);
    const steps = { ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: rows.length - 1 };
    if (event.key in steps && !event.ctrlKey && !event.altKey && !event.metaKey) { event.preventDefault(); move(steps[event.key]); }
  });
  body.addEventListener("focusin", (event) => { const place = pool.find((one) => one.name === event.target); if (place && place.at !== active) { active = place.at; redraw(); } });
  body.addEventListener("click", (event) => { const row = event.target.closest("tr.row"); if (row && !event.target.closest("a") && String(getSelection()) === "") row.querySelector("a").click(); });
  addEventListener("beforeprint", () => { printing = true; draw(); });
  addEventListener("afterprint", () => { printing = false; for (const place of pool.splice(200)) place.row.remove(); draw(); });
  addEventListener("hashchange", () => { recall(); reorder(); });
  addEventListener("resize", () => { measure(); redraw(); });
  const measure = () => { if (pool[0] && pool[0].row.offsetHeight) height = pool[0].row.getBoundingClientRect().height; };

  body.append(above.row, below.row);
  document.querySelector(".scripted-only").hidden = false;
  catalogue.load("data/index.js").then((value) => {
    use(value);
    recall();
    reorder();
    measure();
    draw();
    catalogue.watch(async () => {
      const kept = active, top = frame.scrollTop;
      use(await catalogue.load("data/index.js", { anew: true }));
      reorder();
      active = Math.min(kept, Math.max(0, rows.length - 1));
      frame.scrollTop = top;
      draw();
      catalogue.notice("The registry has changed; the table is up to date. ", make("a", { href: "" }, "Reload for the counts"));
    });
  });
})();

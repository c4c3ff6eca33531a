// The page of one version of a component. Its address is component.html#NAME or component.html#NAME@VERSION.
"use strict";
(() => {
  const { make, bdi, link, address, load, live } = catalogue;
  const VERSIONS = 20;
  const root = document.documentElement, place = document.getElementById("component"), title = document.title;

  // CRC-32 (IEEE 802.3) of ASCII, which tells in which file of data a document is.
  const crc32 = (text) => {
    let value = -1;
    for (const letter of text) {
      value ^= letter.charCodeAt(0);
      for (let bit = 0; bit < 8; bit += 1) value = (value >>> 1) ^ (value & 1 ? 0xedb88320 : 0);
    }
    return ((value ^ -1) >>> 0).toString(16).padStart(8, "0");
  };
  const fetchDocument = async (key, anew) => {
    const path = live ? `data/c/${key}.js` : `data/s-${crc32(key).slice(0, Number(root.dataset.digits))}.js`;
    const found = (await load(path, { anew })).find(([one]) => one === key);
    if (!found) throw new Error(key);
    return found[1];
  };

  const section = (id, heading, ...content) => make("section", { "aria-labelledby": id }, make("h2", { id }, heading), ...content);
  const facts = (rows) => make("dl", { class: "facts" }, rows.map(([label, text]) => make("div", {}, make("dt", {}, bdi(label)), make("dd", {}, typeof text === "string" ? bdi(text) : text))));
  const table = (caption, headings, rows, classes = "") => make("div", { class: "wide-table", tabindex: "0", role: "region", "aria-label": caption },
    make("table", { class: classes }, make("caption", {}, caption), make("thead", {}, make("tr", {}, headings.map((text) => make("th", { scope: "col" }, text)))),
      make("tbody", {}, rows.map((cells) => make("tr", {}, cells.map((cell, number) => make(number ? "td" : "th", number ? {} : { scope: "row" }, typeof cell === "string" ? bdi(cell) : cell)))))));
  const code = (text) => make("code", { class: "digest" }, text);
  const none = (text) => make("p", { class: "none" }, text);

  const copyable = ([label, text]) => {
    const shown = make("code", {}, text), button = make("button", { type: "button", "aria-label": `Copy: ${label}` }, "Copy");
    button.addEventListener("click", async () => {
      let copied = true;
      try { await navigator.clipboard.writeText(text); } catch {
        getSelection().selectAllChildren(shown);
        copied = document.execCommand("copy");
      }
      button.textContent = copied ? "Copied" : "Selected";
    });
    return make("div", { class: "command" }, make("span", {}, label), shown, button);
  };

  const versionRow = (name, shown, current) => ([version, when, by, step, detail, withdrawn, reason]) => {
    const reference = `${name}@${version}`;
    const mark = [version === current ? make("strong", {}, " (this page)") : "", version === shown ? make("small", {}, " latest") : "", withdrawn ? make("span", { class: "flag bad" }, "✕ withdrawn") : ""];
    return [make("span", {}, link(reference, version), mark), when || "not recorded", by || "not recorded", step, withdrawn && reason ? `withdrawn: ${reason}` : detail];
  };

  const head = (doc, one) => [
    make("h1", {}, bdi(doc.name), make("small", {}, ` ${one.version}`)),
    make("p", { class: "lead" }, one.kind, one.model ? [", ", bdi([one.model, one.cut].filter(Boolean).join(" @ "))] : "", ...doc.aliases.filter(([, version]) => version === one.version).map(([alias]) => make("span", { class: "flag" }, `:${alias}`))),
  ];
  const warnings = (doc, one) => {
    const row = doc.versions.find(([version]) => version === one.version);
    if (!row || !row[5]) return [];
    return [make("p", { class: "warning", role: "note" }, make("strong", {}, "✕ Withdrawn. "), bdi(row[6] || "No reason is recorded."), ` Only its digest still finds it: ${doc.name}@${one.digest}`)];
  };
  const about = (doc, one) => {
    const row = doc.versions.find(([version]) => version === one.version) || [];
    const tags = one.tags.map(([key, value]) => make("a", { class: "tag", href: `index.html#${new URLSearchParams({ tag: `${key}=${value}` })}` }, bdi(`${key}=${value}`)));
    return section("about", "About",
      one.description.some(Boolean) ? make("div", { class: "description" }, one.description.map((line) => make("p", {}, bdi(line)))) : "",
      facts([...one.about, ["published", `${row[1] || "not recorded"}${row[1] ? " UTC" : ""}, by ${row[2] || "nobody recorded"}`], ...(one.commit ? [["git commit", code(one.commit)]] : []),
        ...(tags.length ? [["tags", make("span", { class: "tags" }, tags)]] : []), ...(one.names.length ? [["other names", make("span", { class: "tags" }, one.names.map((name) => link(name)))]] : []),
        ["aliases of this name", doc.aliases.map(([alias, version]) => `:${alias} is ${version}`).join(", ") || "none"],
        ["digest", code(one.digest)], ["function digest", code(one.function)]]));
  };
  const ports = (rows) => rows.map(([name, shape, layout, dtype, range, notes, seen]) => [name, shape, layout, dtype, range, [notes, seen].filter(Boolean).join("; ")]);
  const classes = (doc, one) => {
    if (one.classes < 0) return [["classes", "none"]];
    const list = doc.classes[one.classes], inside = make("ol", { class: "classes", start: "0" });
    const fillIn = (names) => inside.append(...names.map((name) => make("li", {}, bdi(name))));
    if (Array.isArray(list)) {
      fillIn(list);
      return [["classes", list.length <= 30 ? inside : make("details", {}, make("summary", {}, `${list.length.toLocaleString("en")} class names`), inside)]];
    }
    const closed = make("details", {}, make("summary", {}, `${list.count.toLocaleString("en")} class names`), inside);
    closed.addEventListener("toggle", async () => { if (closed.open && !inside.childElementCount) fillIn(await load(`data/${list.list}.js`)); });
    return [["classes", closed]];
  };
  const contract = (doc, one) => {
    const { inputs, outputs, training, images, anchors, probe, weights } = one.contract;
    const shared = (anchor) => [code(anchor.digest), anchor.shared.length ? make("p", {}, "also trained against it: ", anchor.shared.map((name, number) => [number ? ", " : "", link(name)]), anchor.more ? ` and ${anchor.more.toLocaleString("en")} more` : "") : ""];
    return section("contract", "Contract",
      table("Ports: tensors that enter and leave", ["port", "shape", "layout", "type", "range", "notes"], [...ports(inputs).map(([name, ...rest]) => [`takes ${name}`, ...rest]), ...ports(outputs).map(([name, ...rest]) => [`gives ${name}`, ...rest])]),
      make("h3", {}, "Images and classes"), facts([...images, ...classes(doc, one)]),
      make("h3", {}, "Network and training"), facts([...training, ...anchors.map((anchor) => [`trained against ${anchor.what}`, make("div", {}, shared(anchor))])]),
      make("h3", {}, "Probe"), probe.length ? facts(probe) : none("No probe: the outputs were not recorded."),
      make("h3", {}, "Weights"), facts(weights));
  };
  const lineage = (one) => {
    const rows = [...one.parents.map(([relation, digest, name]) => [relation, name ? link(name) : code(digest)]), ...one.children.rows.map(([relation, child]) => [`parent of (${relation})`, link(child)])];
    return section("lineage", "Lineage", one.graph.nodes.length > 1 ? make("div", { class: "drawing" }, drawLineage(one.graph, address)) : none("Made from no other component, and none was made from it."),
      rows.length ? make("details", {}, make("summary", {}, "The same as a list"), table("Parents and children", ["relation", "component"], rows), one.children.more ? none(`and ${one.children.more.toLocaleString("en")} more children`) : "") : "");
  };
  const matrix = (found) => {
    const cells = found.extractors.map(([label, reference], row) => make("tr", {}, make("th", { scope: "row" }, link(reference, label)), found.cells[row].map((cell) => (cell
      ? make("td", { class: `shade s${cell[3]}`, "aria-label": `${cell[0]}, ${cell[2]}` }, make("b", {}, cell[0]), " ", make("span", { class: "mark" }, cell[1]))
      : make("td", { class: "empty", "aria-label": "not measured" }, "·")))));
    return make("div", { class: "wide-table", tabindex: "0", role: "region", "aria-label": "Matrix of neighbors" }, make("table", { class: "matrix" }, make("caption", {}, "Newest accuracy of each pair: this component, its partners, and what was measured with the same partners. Rows are extractors, columns heads."),
      make("thead", {}, make("tr", {}, make("td"), found.heads.map(([label, reference]) => make("th", { scope: "col" }, link(reference, label))))), make("tbody", {}, cells)));
  };
  const evidence = (one) => {
    const { rows, more, matrix: found } = one.evidence;
    if (!rows.length) return section("evidence", "Evidence", none("No pair with this component has a kept result. Shapes that match are no proof that parts fit."));
    const listed = rows.map(([name, reference, key, mark, word, accuracy, interval, count, chance, bound, recovered, data, policy, conditions]) => [
      link(reference, name), make("span", { class: `verdict v-${key}` }, make("span", { class: "mark" }, mark), ` ${word}`), `${accuracy} (${interval})`, count, chance, bound, recovered, data, policy,
      make("details", {}, make("summary", {}, "conditions"), facts(conditions))]);
    return section("evidence", "Evidence: which parts fit it", found ? matrix(found) : "",
      table("Kept results, the best accuracy first", [one.kind.includes("head") ? "extractor" : "head", "verdict", "accuracy (95 % interval)", "images", "chance", "bound", "recovered", "data set", "batch norm", "measured under"], listed, "evidence"),
      more ? none(`and ${more.toLocaleString("en")} more results`) : "", none("As they were recorded. compatkit matrix judges them under present conditions."));
  };
  const policies = (doc, one) => {
    if (!doc.policy) return section("policy", "Policy", none("No policy binds this name."));
    const { text, error, since, history } = doc.policy, { outcome } = one;
    return section("policy", "Policy", error ? make("p", { class: "warning" }, bdi(error)) : make("p", {}, bdi(text), make("small", {}, ` since ${since}`)),
      outcome ? make("p", {}, "By kept results this version ", make("strong", {}, outcome.word === "nothing to measure" ? "has nothing to measure" : outcome.word === "undecided" ? "is undecided" : outcome.word), outcome.reason ? [": ", bdi(outcome.reason)] : ".") : none("It does not concern this kind of component."),
      outcome && outcome.rows.length ? table("Partners that it must work with", ["partner", "bound", "least", "measured", "images", "verdict"], outcome.rows.map(([partner, ...rest]) => [link(partner), ...rest])) : "",
      history.length ? make("details", {}, make("summary", {}, "Changes of the policy"), table("Changes of the policy, oldest first", ["when", "change", "by"], history)) : "");
  };
  const signatures = (one) => section("signatures", "Signatures", one.signatures.length
    ? table("Signatures, judged with the keys that are trusted where this page was made", ["key", "name here", "verdict", "signed", "until", "signed as"], one.signatures.map(([key, name, verdict, signed, until, as, valid]) => [code(key), name, make("span", { class: valid ? "flag good" : "flag" }, `${valid ? "✓" : "?"} ${verdict}`), signed, until, as]))
    : none("Nobody signed this version."));
  const changes = (one) => section("changes", "Changes", !one.before ? none("The first version.") : one.changes.length
    ? table(`Changes since ${one.before}`, ["level", "step", "why", "what"], one.changes.map(([level, step, reason, what]) => [level, step, reason, make("code", {}, bdi(what))]))
    : none(`No difference to ${one.before}.`));
  const history = (doc) => section("history", "History of the name", table("Newest first", ["when", "what", "version", "detail", "by", "commit"],
    doc.history.map(([when, what, version, detail, by, commit, damaged]) => [when || "not recorded", damaged ? make("span", { class: "flag bad" }, `✕ ${what}, damaged`) : what, version, detail, by, commit ? code(commit.slice(0, 12)) : ""])),
  doc.more_history ? none(`and ${doc.more_history.toLocaleString("en")} more entries: compatkit log ${doc.name}`) : "");

  const show = (doc, part, version) => {
    const one = part.details.find((entry) => entry.version === version);
    const list = section("versions", "Versions", table("All versions, newest first", ["version", "published", "by", "step", "detail"], doc.versions.map(versionRow(doc.name, doc.shown, version))));
    document.title = `${doc.name}@${version} · ${title.replace(/^.* · /, "")}`;
    if (one.error) { place.replaceChildren(...head(doc, one), make("p", { class: "warning", role: "note" }, bdi(one.error)), list, history(doc)); return; }
    const parts = [about(doc, one), evidence(one), lineage(one), contract(part, one), policies(doc, one), signatures(one), changes(one), list, history(doc)];
    const contents = make("nav", { class: "contents", "aria-label": "Sections" }, parts.map((entry) => {
      const heading = entry.querySelector("h2"), jump = make("button", { type: "button" }, heading.textContent.split(":")[0]);
      jump.addEventListener("click", () => { heading.tabIndex = -1; heading.scrollIntoView(); heading.focus({ preventScroll: true }); });
      return jump;
    }));
    place.replaceChildren(...head(doc, one), ...warnings(doc, one), contents, make("div", { class: "commands" }, one.commands.map(copyable)), ...parts);
  };
  const missing = (reference) => {
    document.title = title;
    place.replaceChildren(make("h1", {}, "No such component"), make("p", {}, bdi(reference || "(no name)"), " is not in this catalogue. ", make("a", { href: "index.html" }, "All components")));
  };
  let turn = 0;
  const visit = async (anew = false) => {
    turn += 1;
    const mine = turn;
    let reference = location.hash.slice(1);
    try { reference = decodeURIComponent(reference); } catch { /* as it stands */ }
    const [name, wanted] = reference.split("@");
    try {
      if (!/^[a-z0-9._/-]+$/.test(name)) throw new Error(name);
      const doc = await fetchDocument(`${name}/0`, anew), version = wanted || doc.shown;
      const at = doc.versions.findIndex(([one]) => one === version);
      if (at < 0) throw new Error(reference);
      const chunk = Math.floor(at / VERSIONS), part = chunk ? await fetchDocument(`${name}/${chunk}`, anew) : doc;
      if (mine === turn) show(doc, part, version);
    } catch { if (mine === turn) missing(reference); }
  };
  addEventListener("hashchange", () => { visit(Boolean(live)); scrollTo(0, 0); });
  addEventListener("beforeprint", () => { for (const closed of place.querySelectorAll("details:not([open])")) { closed.open = true; closed.dataset.closed = ""; } });
  addEventListener("afterprint", () => { for (const opened of place.querySelectorAll("details[data-closed]")) { opened.open = false; delete opened.dataset.closed; } });
  catalogue.watch(() => catalogue.notice("The registry has changed. ", make("a", { href: "" }, "Reload this page")));
  visit();
})();

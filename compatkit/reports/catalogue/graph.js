// Lineage as a drawing: columns from parents to children; each box is a link.
"use strict";
const drawLineage = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const WIDTH = 230, HEIGHT = 46, ACROSS = 120, DOWN = 14, EDGE = 8, LETTERS = 25;
  const make = (tag, values = {}, ...content) => {
    const element = document.createElementNS(NS, tag);
    for (const [name, value] of Object.entries(values)) element.setAttribute(name, value);
    element.append(...content);
    return element;
  };
  const short = (text) => (text.length <= LETTERS ? text : `${text.slice(0, 12)}…${text.slice(13 - LETTERS)}`);

  return (graph, address) => {
    const rows = [], columns = Math.max(...graph.nodes.map((node) => node[2])) + 1;
    for (const node of graph.nodes) rows[node[2]] = Math.max(rows[node[2]] || 0, node[3] + 1);
    const tallest = Math.max(...rows), full = tallest * (HEIGHT + DOWN) - DOWN;
    const places = graph.nodes.map(([, , column, row]) => [
      EDGE + column * (WIDTH + ACROSS), EDGE + (full - (rows[column] * (HEIGHT + DOWN) - DOWN)) / 2 + row * (HEIGHT + DOWN),
    ]);
    const width = 2 * EDGE + columns * (WIDTH + ACROSS) - ACROSS, height = 2 * EDGE + full;
    const drawing = make("svg", { class: "lineage", viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Lineage: parents on the left, children on the right" });
    drawing.append(make("defs", {}, make("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, make("path", { d: "M0 0L8 4L0 8z", class: "tip" }))));
    const labels = [];
    for (const [from, to, relation] of graph.edges) {
      const forward = places[from][0] < places[to][0];
      const start = [places[from][0] + (forward ? WIDTH : 0), places[from][1] + HEIGHT / 2];
      const end = [places[to][0] + (forward ? 0 : WIDTH), places[to][1] + HEIGHT / 2];
      const bend = (forward ? 1 : -1) * ACROSS * 0.5;
      const path = make("path", { class: "edge", d: `M${start} C${start[0] + bend},${start[1]} ${end[0] - bend},${end[1]} ${end}`, "marker-end": "url(#arrow)" });
      path.append(make("title", {}, `${graph.nodes[to][0]}: ${relation} ${graph.nodes[from][0]}`));
      drawing.append(path);
      labels.push(make("text", { class: "relation", x: (start[0] + end[0]) / 2, y: (start[1] + end[1]) / 2 - 5, "text-anchor": "middle", "aria-hidden": "true" }, relation));
    }
    graph.nodes.forEach(([label, kind, , , reference], number) => {
      const [x, y] = places[number], own = number === graph.self;
      const box = make("g", { class: `node${own ? " own" : ""}${reference ? "" : " elsewhere"}`, transform: `translate(${x} ${y})` },
        make("title", {}, `${label}${kind ? `, ${kind}` : ""}`),
        make("rect", { width: WIDTH, height: HEIGHT, rx: 8 }),
        make("text", { x: 12, y: 20, class: "name" }, short(label)),
        make("text", { x: 12, y: 36, class: "kind" }, kind));
      if (!reference || own) { drawing.append(box); return; }
      const link = make("a", { href: address(reference), "aria-label": `${label}, ${kind}` }, box);
      drawing.append(link);
    });
    drawing.append(...labels);
    return drawing;
  };
})();

// Data arrives as scripts, because pages that are opened from a folder may not fetch. Text enters the page as text only.
"use strict";
const catalogue = (() => {
  const root = document.documentElement;
  const live = root.dataset.live || "";
  const received = new Map();
  const PATH = /^data\/[a-z0-9._/-]+\.js$/;
  const checked = (path) => {
    if (!PATH.test(path) || path.includes("..")) throw new TypeError(`no data: ${path}`);
    return path;
  };
  const policy = window.trustedTypes
    ? window.trustedTypes.createPolicy("catalogue", { createScriptURL: checked })
    : { createScriptURL: checked };

  // Called by each script of data.
  const receive = (path, value) => { received.set(path, value); };

  const load = (path, { anew = false } = {}) => new Promise((done, failed) => {
    if (received.has(path) && !anew) { done(received.get(path)); return; }
    const script = document.createElement("script");
    received.delete(path);
    script.src = policy.createScriptURL(path);
    script.onload = () => { script.remove(); if (received.has(path)) done(received.get(path)); else failed(new Error(path)); };
    script.onerror = () => { script.remove(); failed(new Error(path)); };
    document.head.append(script);
  });

  const make = (tag, values = {}, ...content) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(values)) {
      if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...content.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== ""));
    return element;
  };
  const bdi = (text) => make("bdi", {}, text);
  const address = (reference) => `component.html#${encodeURI(reference)}`;
  const link = (reference, label = reference) => (reference ? make("a", { href: address(reference) }, bdi(label)) : bdi(label));

  // Served pages ask now and then whether the registry has changed.
  const watch = (changed) => {
    if (!live) return;
    let state = live;
    setInterval(async () => {
      if (document.hidden) return;
      try {
        const now = await load("data/state.js", { anew: true });
        if (now !== state) { state = now; changed(); }
      } catch { /* the server has ended */ }
    }, 4000);
  };
  const notice = (...content) => {
    const place = document.getElementById("fresh");
    place.hidden = false;
    place.replaceChildren(...content);
  };
  return { receive, load, make, bdi, link, address, watch, notice, live };
})();
window.catalogue = catalogue;

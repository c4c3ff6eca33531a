"""The served catalogue beside a page of another origin in the same browser, which gets nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import hostile

from compatkit.components.catalogue.server import CatalogueServer

from .conftest import Visit

ATTEMPTS = """
async (url) => {
  const got = [];
  window.catalogue = { receive: (path) => got.push(`script ${path}`) };
  const element = (tag, values) => new Promise((done) => {
    const one = Object.assign(document.createElement(tag), values);
    one.onload = () => done(one);
    one.onerror = () => done(null);
    document.body.append(one);
  });
  await element("script", { src: `${url}data/index.js` });
  await element("script", { src: `${url}assets/shared.js` });
  const style = await element("link", { rel: "stylesheet", href: `${url}assets/catalogue.css` });
  if (style) got.push("style");
  const frame = await element("iframe", { src: `${url}component.html` });
  try { if (frame.contentDocument) got.push("frame"); } catch { /* of another origin */ }
  for (const mode of ["cors", "no-cors", "same-origin"]) {
    try {
      if (await (await fetch(`${url}data/index.js`, { mode })).text()) got.push(`fetch ${mode}`);
    } catch { /* refused */ }
  }
  const socket = await new Promise((done) => {
    const link = new WebSocket(url.replace("http", "ws"));
    link.onopen = () => done(true);
    link.onerror = () => done(false);
  });
  if (socket) got.push("socket");
  return got;
}
"""


class Other(BaseHTTPRequestHandler):
    """Answers every request with an empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><body></body>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[int]:
    with server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def test_a_page_of_another_origin_gets_nothing(visit: Visit, tmp_path: Path) -> None:
    store = hostile.build(tmp_path / "parts")
    with ExitStack() as servers:
        port = servers.enter_context(running(CatalogueServer(store, port=0)))
        other = servers.enter_context(running(ThreadingHTTPServer(("127.0.0.1", 0), Other)))
        for name in ("127.0.0.1", "localhost"):  # of the same site, and of another
            visit.page.goto(f"http://{name}:{other}/")
            assert visit.page.evaluate(ATTEMPTS, f"http://127.0.0.1:{port}/") == []
            assert [frame.url for frame in visit.page.frames[1:]] == ["chrome-error://chromewebdata/"]
            assert {"frame", "fetch cors"} <= {*visit.page.evaluate(ATTEMPTS, visit.page.url)}
        visit.page.goto(f"http://127.0.0.1:{port}/")
        visit.page.locator("#count", has_text="1 of 1 components").wait_for()

"""``compatkit serve``: show the catalogue of a registry in a browser on this machine."""

from __future__ import annotations

import click

from compatkit.cli import INTERRUPTED
from compatkit.cli.options import Options, command, option
from compatkit.cli.output import emit
from compatkit.cli.roots import open_registry
from compatkit.cli.site import title_option
from compatkit.components.catalogue.address import HOST, PORT


class ServeOptions(Options):
    """Options of ``serve``."""

    port: int = option("Port; 0 for a free one.", min=0, max=65535, default=PORT)
    host: str = option("Address to listen on.", metavar="ADDRESS", default=HOST)
    public: bool = option("Allow an address that other machines reach; whoever reaches it reads everything.")
    title: str | None = title_option


@command("serve", ServeOptions)
def serve_command(options: ServeOptions) -> int | None:
    """Show the catalogue of `compatkit site` in a browser, read-only, with new versions as they arrive.

    It runs until Ctrl-C, exit code 130. With --json, the document is one line, printed when the first page can be asked
    for.

    Examples:
        # on this machine
        compatkit serve
        # on a free port
        compatkit serve --port 0
        # for other machines too
        compatkit serve --host 0.0.0.0 --public
    """

    def started(url: str) -> None:
        if options.json:
            emit({"url": url}, indent=None)
        else:
            click.echo(f"serving {url} until Ctrl-C")

    open_registry().serve(
        title=options.title or "", started=started, **options.only("host", "port", "public")
    )
    return INTERRUPTED

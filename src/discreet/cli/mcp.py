"""`discreet mcp`: tools for an agent on this machine, over standard input and output."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING

import click

from discreet.cli.query import service_options
from discreet.errors import InputError, how_to_install

if TYPE_CHECKING:
    from discreet.client.retries import HttpReply, HttpRequest
    from discreet.mcp.server import Call

_START_SECONDS = 10.0


@click.command()
@service_options
@click.option(
    "--max-unasked-share",
    type=click.FloatRange(0, 1),
    default=0.25,
    show_default=True,
    metavar="SHARE",
    help="Largest share of the remaining budget that a query may take without asking the person.",
)
def mcp(*, url: str, key_file: str | None, timeout: float, max_unasked_share: float) -> None:
    """Give an agent tools to query a budget service.

    Speaks the Model Context Protocol (MCP) over standard input and output; the host of the agent starts it. Give the
    agent an account of its own. The key is in a file or in DISCREET_KEY, never on the command line, where other users
    could see it.
    """
    try:
        import anyio.to_thread

        from discreet.mcp.server import AgentServer
    except ImportError:
        raise InputError(f"discreet mcp needs the SDK of MCP; {how_to_install('mcp')}") from None
    from discreet.client import Client, ServiceError
    from discreet.client.client import find_key
    from discreet.client.retries import RetryRuntime
    from discreet.client.transport import Transport

    client = Client(url, key_file=key_file, timeout=min(timeout, _START_SECONDS), retries=0)
    # A wrong key is reported at once. A service that is not there may be there at the first call.
    with client, contextlib.suppress(ServiceError):
        client.budget()
    transport = Transport(url, find_key(None, key_file, os.environ), timeout=timeout, retries=3, runtime=RetryRuntime())

    async def send(_: Call, request: HttpRequest) -> HttpReply:
        return await anyio.to_thread.run_sync(transport.send, request)

    server = AgentServer(send, max_unasked_share)
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its log shows what clients send
    if sys.stdin.isatty():
        click.echo(
            "note: this waits for an agent's host to speak MCP; docs/agents.md shows how to set one up", err=True
        )
    with contextlib.closing(transport):
        server.run("stdio")

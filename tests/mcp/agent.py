"""An agent: the SDK's own client, and the person who uses it."""

from __future__ import annotations

import contextlib
import json

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult

TOTAL = "SELECT COUNT(DISTINCT reader) AS n FROM reads"


class Person:
    """Answers questions about prices.

    Args:
        action: what is answered: accept, decline or cancel.
        spend: what is entered in the form.

    Attributes:
        asked: the questions.
    """

    def __init__(self, action="accept", *, spend=True):
        self._action, self._spend, self.asked = action, spend, []

    async def __call__(self, _, request):
        """Answer a question."""
        self.asked.append(request.message)
        content = {"spend": self._spend} if self._action == "accept" else None
        return ElicitResult(action=self._action, content=content)


class Agent:
    """Calls tools.

    Args:
        client: an open client of the SDK.
    """

    def __init__(self, client):
        self.client = client

    async def call(self, tool, **arguments):
        """Call a tool, and return its structured result."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        assert json.loads(result.content[0].text) == result.structured_content
        return result.structured_content

    async def query(self, sql=TOTAL, **arguments):
        """Call the tool query."""
        return await self.call("query", sql=sql, **arguments)

    async def mistaken(self, tool, arguments):
        """Call a tool with arguments that it refuses, and return the sentence."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error
        assert result.structured_content is None
        (content,) = result.content
        return content.text

    async def until_stopped(self, *, epsilon, questions=1_000):
        """Ask other questions until a result says to stop; return the results."""
        results = []
        for number in range(questions):
            sql = f"{TOTAL} WHERE article <> 'never {number}'"
            results.append(await self.query(sql, epsilon=epsilon))
            if results[-1]["stop"] is not None:
                break
        return results


@contextlib.asynccontextmanager
async def over_http(url, key, person=None, mode="auto"):
    """Return an agent of the service at *url*."""
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, elicitation_callback=person, mode=mode) as client:
            yield Agent(client)

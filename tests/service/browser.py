"""A browser over plain HTTP."""

from __future__ import annotations

import html
import re

import httpx


class Browser:
    """Keeps cookies and the fields of the last form, as a browser does."""

    def __init__(self, service, url="https://discreet.example"):
        self._service, self._url, self.cookies, self.hidden = service, url, httpx.Cookies(), {}

    def request(self, method, path, **parts):
        """Send a request, and keep the fields of forms."""

        async def sending():
            transport = httpx.ASGITransport(self._service.app)
            async with httpx.AsyncClient(transport=transport, base_url=self._url, cookies=self.cookies) as client:
                answer = await client.request(method, path, **parts)
                self.cookies = client.cookies
                return answer

        answer = self._service.portal.call(sending)
        found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', answer.text)
        self.hidden = {name: html.unescape(value) for name, value in found} or self.hidden
        return answer

    def get(self, path, **parts):
        """Open a page."""
        return self.request("GET", path, **parts)

    def post(self, path, headers=None, **fields):
        """Send the form of the last page."""
        return self.request("POST", path, data={**self.hidden, **fields}, headers=headers)

    def log_in(self, key, to="/"):
        """Log in."""
        self.get(f"/login?next={to}")
        return self.post("/login", token=key)

"""The doors of the service: the HTTP API, the web page, Trino's protocol, and the tools of agents."""

"""The web page of the service: HTML from the same handlers that answer the API."""

"""Tools for agents: a server of the Model Context Protocol in front of a budget service."""

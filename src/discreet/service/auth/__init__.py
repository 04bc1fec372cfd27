"""Authentication and authorization: API keys, OIDC tokens, grants, rate limits."""

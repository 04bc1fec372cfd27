"""The first settings file, with a word about every setting that one may want to change."""

from __future__ import annotations

SETTINGS = """\
# What the budget service runs with: discreet serve discreet.toml
# Paths begin at the folder of this file. Secrets have no place in it.

[service]
catalog = {catalog}
host = "127.0.0.1"            # this machine only; put a proxy with TLS in front before you change it
port = 8080                   # 0 for any free port
#trusted_proxies = ["10.0.0.5"]   # whose word is taken on where a request came from
#concurrent_most = 16         # questions under way at once
#requests_per_minute = 600    # of each key
#release_grid_ms = 50         # answers leave at multiples of it, so that nobody sees how long counting took

[store]
url = {url}
{password}
[noise]
key_file = "noise.key"        # whoever has it can take the noise away; back it up as you keep the data

[witness]
file = "witness.log"          # put it on another disk: it tells a restored backup from the store
signing_key_file = "witness.key"

[defaults]                    # for questions that say no privacy parameters
epsilon = 1
delta = 1e-8
#preset = "linkedin"          # or units: 0.15 for each result, 1e-10 for each question

[limits]                      # the most that one question may ask for
k_most = 1_000
head_limit_most = 100_000
epsilon_most = 4

#[oidc]                       # tokens of an OpenID issuer, beside API keys
#issuer = "https://login.example.org/realms/work"
#audience = "discreet"
#account_claim = "discreet_account"   # one that people cannot change themselves
#roles_claim = "groups"
#roles = {{ analysts = "analyst", privacy-office = "officer" }}

[logs]
format = "json"               # or console, for people

#[traces]
#endpoint = "http://collector:4318/v1/traces"
"""
"""With the places catalog, url and password, which are TOML."""

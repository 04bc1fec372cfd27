"""The catalog: what may be queried, as declared by the data owner in a TOML file."""

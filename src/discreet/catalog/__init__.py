"""The catalog: the datasets, columns and uses that the data owner permits, declared in a TOML file."""

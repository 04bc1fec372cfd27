"""What may be asked, as the owner of the data declared it in a catalog file.

load.py      a TOML file -> `Catalog`, or every mistake in it at once
model.py     the catalog as frozen values
version.py   which state of the data it is
domain.py    the items that are listed in advance
connect.py   the engine of a dataset
check.py     a catalog held against the real tables
draft.py     a first catalog for a table, which allows nothing yet
schema.py    what editors read
"""

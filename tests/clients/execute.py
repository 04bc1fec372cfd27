"""Execute a notebook: python tests/clients/execute.py IN OUT. Run it in the notebook environment."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat


def main(source: Path, target: Path) -> None:
    """Execute *source* in an empty folder and write it with its outputs to *target*."""
    notebook = nbformat.read(source, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(
            notebook, timeout=300, coalesce_streams=True, resources={"metadata": {"path": folder}}
        ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # execution times differ in every run
    nbformat.write(notebook, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

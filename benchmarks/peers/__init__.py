"""Releases by other libraries, each in an environment of its own under build/peers.

    python -m venv build/peers/opendp && build/peers/opendp/bin/pip install 'opendp[polars]==0.16.0' numpy
    python -m venv build/peers/pydp && build/peers/pydp/bin/pip install python-dp==1.1.5 polars==2.1.0

The contribution bound that they need is computed from the true data, in their favour.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from papers.baselines import non_private_percentile
from papers.report import ROOT

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

    from papers.user_items import UserItems

ENVIRONMENTS = ROOT / "build" / "peers"
INSTALLED = tuple(peer for peer in ("opendp", "pydp") if (ENVIRONMENTS / peer / "bin" / "python").exists())


def release_by(
    peer: str, table: UserItems, percent: float, delta: Fraction
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return items and noisy counts at epsilon 1, with users bounded to the true *percent*-th percentile of items."""
    bound = non_private_percentile(table.contributions, percent)
    with tempfile.TemporaryDirectory() as folder:
        rows, counts = Path(folder, "rows.parquet"), Path(folder, "counts.parquet")
        pq.write_table(pa.table({"user_id": table.users, "item": table.items}), rows)
        script = Path(__file__).with_name(f"{peer}_release.py")
        python = ENVIRONMENTS / peer / "bin" / "python"
        subprocess.run([python, script, rows, str(bound), str(float(delta)), counts], check=True, capture_output=True)
        found = pq.read_table(counts)
    return found["item"].to_numpy(), found["count"].to_numpy().astype(np.float64)

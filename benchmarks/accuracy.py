"""How much can be had for how much privacy."""

from __future__ import annotations

import statistics

from demo.demo import LOG, make_log, true_counts

import discreet
from benchmarks.timing import table

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
ANSWERS = 9


def run() -> list[str]:
    """On the demo's reading log (1,000,000 rows, 60,000 readers), delta = 1e-8: medians of 9 keyed answers."""
    if not LOG.exists():
        make_log(LOG)
    truth = true_counts(LOG)
    best = sorted(truth, key=truth.__getitem__, reverse=True)[:50]
    reads = discreet.scan(LOG, user="reader")
    rows = []
    for epsilon in EPSILONS:
        found, errors, counted, close = [], [], [], []
        for n in range(ANSWERS):
            key = discreet.NoiseKey(b"a public key: benchmarks have nothing to hide", str(n))
            top = reads.top("article", k=50, epsilon=epsilon, bits=key).to_dict()["items"]
            found.append(sum(item["article"] in best for item in top))
            errors.append(statistics.median(abs(item["count"] - truth[item["article"]]) for item in top) if top else 0)
            items = reads.release("article", epsilon=epsilon, bits=key).to_dict()["items"]
            counted.append(len(items))
            close.append(sum(abs(item["count"] / truth[item["article"]] - 1) <= 0.1 for item in items))
        medians = [statistics.median(values) for values in (found, errors, counted, close)]
        rows.append([f"{epsilon:g}", *(f"{median:.0f}" for median in medians)])
    headings = ["epsilon", "top 50: of the true 50", "median error (readers)", "release: items", "within 10 %"]
    return table(headings, rows)

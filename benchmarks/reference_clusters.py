"""Agreement of clusters of references by meaning with acts, measured where acts are known.

    python benchmarks/reference_clusters.py                              # the six generated scenarios, two languages
    python benchmarks/reference_clusters.py --star STEPS --policies FILE # STAR's replies too, by their node

Writes results/reference_clusters.json. README.md in this folder says how to read it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from sklearn.cluster import AgglomerativeClustering  # noqa: E402

from benchmarks.results_json import write_results  # noqa: E402
from hamr.config.schema import SageDataConfig  # noqa: E402
from hamr.data.contrasts import replies_of  # noqa: E402
from hamr.data.importers import IMPORTERS  # noqa: E402
from hamr.data.sage_samples import generate_samples  # noqa: E402
from hamr.models.embedding import embed  # noqa: E402
from hamr.types import ServiceSample  # noqa: E402

LINKAGES = ("average", "complete", "single")
THRESHOLDS = (0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7)


def labelled(samples: Iterable[ServiceSample], key: str) -> dict[str, set[tuple[str, str]]]:
    """Return each different reply's acts; samples without one are left out."""
    found: dict[str, set[tuple[str, str]]] = {}
    for sample in samples:
        for text in replies_of(sample) if key in sample.meta else ():
            found.setdefault(text, set()).add((sample.meta.get("scenario", ""), sample.meta[key]))
    return found


def measured(acts: list[set[tuple[str, str]]], vectors: NDArray[np.float32]) -> list[dict[str, float | str]]:
    """Return a row for each linkage and threshold.

    mistaken: share of the pairs in different clusters that are of one act. used: share of the pairs of different acts
    that are in different clusters. largest: share of the replies in the largest cluster.
    """
    pairs = list(itertools.combinations(range(len(acts)), 2))
    left, right = np.array(pairs).T
    same = np.array([bool(acts[a] & acts[b]) for a, b in pairs])
    rows: list[dict[str, float | str]] = []
    for linkage, threshold in itertools.product(LINKAGES, THRESHOLDS):
        clustering = AgglomerativeClustering(
            n_clusters=None, distance_threshold=threshold, metric="cosine", linkage=linkage
        )
        labels = clustering.fit_predict(vectors)
        apart = labels[left] != labels[right]
        rows.append(
            {
                "linkage": linkage,
                "threshold": threshold,
                "clusters": int(labels.max()) + 1,
                "mistaken": round(float(same[apart].mean()), 4) if apart.any() else 0.0,
                "used": round(float(apart[~same].mean()), 4),
                "largest": round(float(np.bincount(labels).max() / len(acts)), 4),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--star", type=Path)
    parser.add_argument("--policies", type=Path)
    parser.add_argument("--samples", type=int, default=600)
    args = parser.parse_args()
    sets = {
        f"generated, {language}": labelled(
            generate_samples(SageDataConfig(scenario="all", language=language, train=args.samples)).train, "act"
        )
        for language in ("en", "zh")
    }
    if args.star:
        files = {"input": args.star} | ({"policies": args.policies} if args.policies else {})
        sets["STAR"] = labelled(IMPORTERS["star"](files).samples, "cluster")
    results = {}
    for name, acts in sets.items():
        vectors = embed(list(acts), threads=os.cpu_count() or 1)
        rows = measured(list(acts.values()), vectors)
        results[name] = {"replies": len(acts), "acts": len(set().union(*acts.values())), "rows": rows}
        print(f"{name}: {len(acts)} replies, {results[name]['acts']} acts")
        for row in rows:
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items()))
    write_results(HERE / "results/reference_clusters.json", results)


if __name__ == "__main__":
    main()

"""Fits a scorer of aligned tokens, which needs no pairs of a user's data: an experiment that scorers.py measures.

    python benchmarks/alignment.py                                       # writes results/alignment.json
    python benchmarks/alignment.py --without telecom_package --out F.json   # weights of a fit without that scenario

It learns pairs of replies and messages that are made by rule of the wordings of the six shipped scenarios and of
alignment.yaml: paraphrases, another value of the same field, contradictions, half-right replies, other topics. Of the
quickstart's scenario only the training split is used, of the others all three. README.md beside this file says more.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from alignment_features import FEATURES, WEIGHTS, AlignmentModel, features  # noqa: E402

from hamr.config.pools import PoolConfig  # noqa: E402
from hamr.config.safe_yaml import load_yaml  # noqa: E402
from hamr.data.contrasts import fragment, negate, other_number, shuffle_words  # noqa: E402
from hamr.models.bundled import resolve_model  # noqa: E402
from hamr.models.embedding import EMBEDDING_MODEL  # noqa: E402

SCENARIOS = (
    "telecom_package", "airline_refund", "ecommerce_refund", "logistics_delivery", "online_education",
    "property_service",
)  # fmt: skip
QUICKSTART = "telecom_package"
RULES: Mapping[str, Any] = load_yaml((HERE / "alignment.yaml").read_text(encoding="utf-8"))
SHARES = {
    "paraphrase": 45, "sibling": 18, "contradiction": 27, "half": 33, "topic": 9, "ask": 7, "deed": 5, "fragment": 2,
}  # fmt: skip
"""Relative frequency of each kind of pair."""
MOST_TEXTS = 60
"""Texts of a family beyond which it is not drawn more often."""
REGULARISATION = 0.1


class Made(NamedTuple):
    a: str
    b: str
    same: bool
    kind: str


Families = Mapping[tuple[str, ...], Mapping[tuple[str, ...], list[str]]]
"""Family (what may be said at one point) -> meaning -> wordings."""


def families(scenarios: Sequence[str]) -> Families:
    found: dict[tuple[str, ...], dict[tuple[str, ...], list[str]]] = {}
    for scenario in scenarios:
        path = HERE.parent / "conf" / "scenarios" / "words" / f"{scenario}.en.yaml"
        words = load_yaml(path.read_text(encoding="utf-8"))
        for split in ("train",) if scenario == QUICKSTART else ("train", "validation", "test"):
            for part in ("opening", "show", "ask", "say", "reworded"):
                for meaning, texts in leaves(words[split].get(part, {})):
                    about = meaning[:1] if part == "show" else ()
                    family = (scenario, part if part in ("opening", "show") else "agent", *about)
                    found.setdefault(family, {}).setdefault(meaning, []).extend(texts)
    return found


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Sequence[str]]]:
    if isinstance(tree, Mapping):
        for name, below in tree.items():
            yield from leaves(below, (*path, str(name)))
    else:
        yield path, tree


def draw(texts: Sequence[str], rng: Random) -> str:
    """One of the texts, with one of each [a|b]; {Name} stays."""
    return re.sub(r"\[([^]]*)\]", lambda found: rng.choice(found[1].split("|")), rng.choice(texts))


def named(pair: Made, rng: Random) -> Made:
    """The pair with a value for every {Name}, the same in both texts."""
    names = sorted(set(re.findall(r"\{(\w+)\}", pair.a + pair.b)))
    values = {name: f"{rng.choice('ABCDEHKM')}{rng.randint(10, 999)}" for name in names}
    return pair._replace(
        **{side: re.sub(r"\{(\w+)\}", lambda m: values[m[1]], getattr(pair, side)) for side in ("a", "b")}
    )


def replaced(text: str, groups: Sequence[Sequence[str]], most: int, rng: Random) -> str | None:
    """The text with at most `most` words replaced by others of their groups, or None where it has none."""
    hits = [(group, word) for group in groups for word in group if re.search(rf"\b{re.escape(word)}\b", text, re.I)]
    changed = text
    for group, word in rng.sample(hits, min(most, len(hits))):
        other = rng.choice([each for each in group if each != word])
        changed = re.sub(
            rf"\b{re.escape(word)}\b",
            lambda found, other=other: capital(other) if found[0][0].isupper() else other,
            changed,
            count=1,
            flags=re.I,
        )
    return changed if changed != text else None


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def paraphrase(text: str, rng: Random) -> str:
    text = replaced(text, RULES["same"], rng.randint(1, 4), rng) or text
    if rng.random() < 0.3:
        for long, short in RULES["contractions"]:
            text = text.replace(long, short)
    if rng.random() < 0.2:
        text = rng.choice(RULES["openings"]) + text
    if rng.random() < 0.15:
        text += rng.choice(RULES["closings"])
    return text.lower().rstrip(".?!") if rng.random() < 0.1 else text


def contradiction(text: str, rng: Random) -> str | None:
    """The text with the opposite of a word or two, with a verb negated, or with another number."""
    how = rng.random()
    if how < 0.2:
        changed = negate(text)
    elif how < 0.4 and re.search(r"\d", text):
        changed = other_number(text, rng)
    else:
        changed = replaced(text, RULES["opposite"], rng.randint(1, 2), rng)
    changed = changed or negate(text)
    return paraphrase(changed, rng) if changed and rng.random() < 0.5 else changed


def made(kind: str, known: Families, rng: Random) -> Made | None:
    """A pair of the kind, or None where the draw has none."""
    names = list(known)
    weights = [min(MOST_TEXTS, sum(map(len, known[name].values()))) for name in names]
    first, second = rng.choices(names, weights, k=2)
    meaning = rng.choice(list(known[first]))
    a, again = (draw(known[first][meaning], rng) for _ in range(2))
    elsewhere = draw(known[second][rng.choice(list(known[second]))], rng)
    others = [other for other in known[first] if other != meaning]
    if kind == "paraphrase":
        return Made(a, paraphrase(again, rng) if a == again or rng.random() < 0.6 else again, True, kind)
    if kind == "sibling":
        return Made(a, draw(known[first][rng.choice(others)], rng), False, kind) if others else None
    if kind == "contradiction":
        changed = contradiction(rng.choice((a, again)), rng)
        return Made(a, changed, False, kind) if changed else None
    if kind == "fragment":
        return Made(a, fragment(a, rng) if rng.random() < 0.5 else shuffle_words(a, rng), False, kind)
    if kind == "ask":
        one, other = rng.sample(RULES["things"], 2)
        same = rng.random() < 0.55
        texts = [rng.choice(RULES["asks"]).format(x=x, X=capital(x)) for x in (one, one if same else other)]
        return Made(texts[0], paraphrase(texts[1], rng), same, kind)
    if kind == "deed":
        one, other = rng.sample(RULES["deeds"], 2)
        ways = rng.choice((("can", "cannot"), ("done", "undone")))
        way, same = rng.choice(ways), rng.random() < 0.5
        wrong = rng.choice(((one, *[w for w in ways if w != way]), (other, way)))
        what, how = (one, way) if same else wrong
        texts = [capital(rng.choice(RULES["frames"][h]).format(*deed)) for deed, h in ((one, way), (what, how))]
        return Made(*texts, same, kind)
    if first == second:
        return None
    if kind == "topic":
        return Made(a, paraphrase(elsewhere, rng), False, kind)
    if rng.random() < 0.5:  # half right: of one sentence all and more, or of two one
        joint = rng.choice((" ", f"{' ' if again[-1] in '?!' else ''} But "))
        return Made(a, f"{paraphrase(again, rng)}{joint}{elsewhere}", False, kind)
    third = rng.choice(names)
    wrong = "" if rng.random() < 0.4 else draw(known[third][rng.choice(list(known[third]))], rng)
    return Made(f"{a} {elsewhere}", f"{paraphrase(again, rng)} {wrong}".strip(), False, kind)


def pairs(known: Families, n: int, seed: int) -> list[Made]:
    rng, found = Random(seed), []
    while len(found) < n:
        pair = made(rng.choices(list(SHARES), list(SHARES.values()))[0], known, rng)
        if pair is not None:
            found.append(named(pair, rng))
    return found


def fit(found: Sequence[Made], values: np.ndarray) -> dict[str, Any]:
    """Logistic regression on standardised features, both answers of equal weight; weights of the raw features."""
    from sklearn.linear_model import LogisticRegression

    mean, scale = values.mean(0), values.std(0)
    model = LogisticRegression(C=REGULARISATION, max_iter=3000, class_weight="balanced")
    model.fit((values - mean) / scale, [pair.same for pair in found])
    weights = model.coef_[0] / scale
    return {
        "intercept": round(float(model.intercept_[0] - weights @ mean), 4),
        "weights": {name: round(float(w), 4) for name, w in zip(FEATURES, weights, strict=True)},
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--without", choices=SCENARIOS, help="leave a scenario out")
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    args = parser.parse_args(argv)
    import torch

    torch.set_num_threads(args.threads)
    used = [name for name in SCENARIOS if name != args.without]
    found = pairs(families(used), args.pairs, args.seed)
    started, seconds = time.monotonic(), time.process_time()
    config = PoolConfig(role="reranker", type="embedding", model=EMBEDDING_MODEL, dtype="float32", batch_size=64)
    texts = AlignmentModel(config, resolve_model(EMBEDDING_MODEL)).embedded(
        list({t for pair in found for t in pair[:2]})
    )
    values = np.array([features(texts[pair.a], texts[pair.b]) for pair in found])
    facts = fit(found, values) | {
        "fitted": datetime.now(UTC).isoformat(timespec="seconds"),
        "scenarios": used,
        "pairs": dict(sorted(Counter(pair.kind for pair in found).items())),
        "seed": args.seed,
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(time.process_time() - seconds, 1),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    args.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()

"""Train a small cross-encoder on replies of many kinds of services: a model for `pools.<name>.type=cross_encoder`.

    python benchmarks/cross_encoder.py FOLDER
    python benchmarks/cross_encoder.py --topic FOLDER       # the defaults of pools.<name>.topic, no training
    python benchmarks/scorers.py --keep --cross-encoder FOLDER --pairs FILE     # measure it

It starts from the bundled MiniLM and reads two replies, no dialogue. It learns the groups of varied_pairs.yaml, and
generated pairs of the six scenarios' training splits. scorers.py measures it on pairs that share no sentence with them.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from hamr.config.safe_yaml import load_yaml  # noqa: E402
from hamr.config.schema import SageDataConfig  # noqa: E402
from hamr.data.pairs import reply_pairs  # noqa: E402
from hamr.data.sage_samples import generate_samples  # noqa: E402
from hamr.models.bundled import resolve_model  # noqa: E402
from hamr.rewards.verdict import hard_score  # noqa: E402

TARGETS = {"halves": 0.4, "contradictions": 0.2, "related": 0.1}
"""Targets of wrong replies: a contradiction is closer to the reply than one about something else, which has 0."""
TYPED = 0.2
"""Share of the replies that lose capitals and punctuation, as people type."""
SORTED = 16
"""Number of batches whose pairs are sorted by length together, so that a batch has little padding."""
Pair = tuple[str, str, float]


def varied_pairs(groups: Sequence[dict[str, Any]], others: int, rng: Random) -> Iterator[Pair]:
    """Draw the pairs of one epoch: right and wrong wordings of each group, and `others` replies of other groups.

    Half of the other groups are of the same domain. The other half are questions if the reply is one.
    """
    domains, forms = defaultdict(list), defaultdict(list)
    for group in groups:
        domains[group["domain"]].append(group)
        forms[group["reply"].endswith("?")].append(group)
    for group in groups:
        right = [group["reply"], *group["paraphrases"]]
        yield from ((right[i], right[i - 1], 1.0) for i in range(len(right)))
        for kind, target in TARGETS.items():
            wrong = group[kind] if isinstance(group[kind], list) else [group[kind]]
            yield from ((rng.choice(right), text, target) for text in wrong)
        for number in range(others):
            other = rng.choice(forms[group["reply"].endswith("?")] if number % 2 else domains[group["domain"]])
            if other is not group:
                yield rng.choice(right), rng.choice([other["reply"], *other["paraphrases"]]), 0.0


def drawn_pairs(args: argparse.Namespace) -> list[Pair]:
    """Return the pairs of all epochs in the order of training, either reply first."""
    rng, groups = Random(args.seed), load_yaml(args.groups.read_text(encoding="utf-8"))
    samples = generate_samples(SageDataConfig(scenario="all", seed=args.seed)).train
    generated = [(p.statement_a, p.statement_b, hard_score(p.label)) for p in reply_pairs(samples, args.generated, 0)]
    found: list[Pair] = []
    for _ in range(args.epochs):
        epoch = [*varied_pairs(groups, args.others, rng), *generated]
        rng.shuffle(epoch)
        epoch = [(_typed(a, rng), _typed(b, rng), target) for a, b, target in epoch]
        found += [(b, a, target) if rng.random() < 0.5 else (a, b, target) for a, b, target in epoch]
    return found


def _typed(text: str, rng: Random) -> str:
    return re.sub(r"[.,;!?]", "", text).lower() if rng.random() < TYPED else text


def batches(pairs: Sequence[Pair], size: int, rng: Random) -> list[list[Pair]]:
    found = []
    for start in range(0, len(pairs), size * SORTED):
        by_length = sorted(pairs[start : start + size * SORTED], key=lambda pair: len(pair[0]) + len(pair[1]))
        some = [by_length[i : i + size] for i in range(0, len(by_length), size)]
        found += rng.sample(some, len(some))
    return found


def train(args: argparse.Namespace) -> None:
    """Minimise the binary cross-entropy of the one logit with the pairs' targets."""
    import torch
    from sentence_transformers import CrossEncoder

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    start = str(resolve_model(args.model))
    encoder = CrossEncoder(start, num_labels=1, max_length=args.max_length, device="cpu", local_files_only=True)
    optimiser = torch.optim.AdamW(encoder.model.parameters(), lr=args.learning_rate, weight_decay=0.01)
    steps = batches(drawn_pairs(args), args.batch_size, Random(args.seed))
    # A tenth of the steps to rise, the rest to fall to 0.
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, args.learning_rate, total_steps=len(steps) + 1, pct_start=0.1, anneal_strategy="linear"
    )
    encoder.model.train()
    started, losses = time.monotonic(), []
    for step, batch in enumerate(steps, 1):
        first, second, targets = zip(*batch, strict=True)
        read = encoder.tokenizer(
            first, second, padding=True, truncation=True, max_length=args.max_length, return_tensors="pt"
        )
        logits = encoder.model(**read).logits.flatten()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(targets))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        rate.step()
        losses.append(loss.item())
        if step % max(1, len(steps) // 10) == 0:
            recent = losses[-max(1, len(steps) // 10) :]
            seconds = time.monotonic() - started
            print(f"step {step}/{len(steps)}: loss {sum(recent) / len(recent):.3f}, {seconds:.0f} s", flush=True)
    encoder.model.eval()
    encoder.save_pretrained(str(args.folder))
    print(f"{sum(map(len, steps))} pairs in {time.monotonic() - started:.0f} s; written to {args.folder}")


def fit_topic(args: argparse.Namespace) -> tuple[float, float]:
    """Return slope and middle of `pools.<name>.topic` for the embedding: a text of the own group against another's.

    Both kinds have the same weight, because their share among a pool's questions is unknown.
    """
    from sentence_transformers import SentenceTransformer
    from sklearn.linear_model import LogisticRegression

    rng, groups = Random(args.seed), load_yaml(args.groups.read_text(encoding="utf-8"))
    pairs = [pair for _ in range(args.epochs) for pair in varied_pairs(groups, args.others, rng)]
    texts = list(dict.fromkeys(text for a, b, _ in pairs for text in (a, b)))
    encoder = SentenceTransformer(str(resolve_model(args.model)), device="cpu", local_files_only=True)
    vectors = dict(zip(texts, encoder.encode(texts, normalize_embeddings=True), strict=True))
    cosines = [[float(vectors[a] @ vectors[b])] for a, b, _ in pairs]
    fit = LogisticRegression(C=1e6, class_weight="balanced").fit(cosines, [target > 0 for *_, target in pairs])
    slope = float(fit.coef_[0, 0])
    return slope, -float(fit.intercept_[0]) / slope


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the model")
    parser.add_argument("--model", default="all-minilm-l6-v2", help="a bundled name or the folder of an encoder")
    parser.add_argument("--groups", type=Path, default=HERE / "varied_pairs.yaml")
    parser.add_argument("--others", type=int, default=4, help="replies of other groups beside each group, an epoch")
    parser.add_argument("--generated", type=int, default=600, help="pairs of the six scenarios, an epoch")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=13, help="draw of the pairs and dialogues; the quickstart's is 13")
    parser.add_argument("--topic", action="store_true", help="only fit the defaults of pools.<name>.topic")
    args = parser.parse_args(argv)
    if args.topic:
        slope, middle = fit_topic(args)
        print(f"slope={slope:.2f} middle={middle:.3f}")
    else:
        train(args)


if __name__ == "__main__":
    main()

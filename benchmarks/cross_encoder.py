"""Teaches a small cross-encoder to tell replies apart: a model for `pools.<name>.type=cross_encoder`.

    python benchmarks/cross_encoder.py FOLDER                           # from the bundled MiniLM
    python benchmarks/cross_encoder.py FOLDER --model ''                # from nothing: a small BERT and its own words
    python benchmarks/scorers.py --keep --cross-encoder FOLDER          # what it is worth

It learns the generated pairs of the quickstart's training split (`--seed` is its draw), from the two replies alone: it
reads no dialogue. scorers.py measures it on the test split, which shares no sentence with the training split.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from hamr.config.schema import SageDataConfig  # noqa: E402
from hamr.data.pairs import ReplyPair, reply_pairs  # noqa: E402
from hamr.data.sage_samples import generate_samples  # noqa: E402
from hamr.models.bundled import resolve_model  # noqa: E402
from hamr.rewards.verdict import hard_score  # noqa: E402


def rate(step: int, steps: int, peak: float) -> float:
    """Rises linearly over the first tenth, then falls to 0."""
    rising = max(1, steps // 10)
    return peak * min((step + 1) / rising, (steps - step) / max(1, steps - rising))


def untrained(pairs: Sequence[ReplyPair], folder: Path, args: argparse.Namespace) -> str:
    """A random BERT whose vocabulary are the characters and the words that stand in more than one pair."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

    torch.manual_seed(args.seed)
    seen = Counter(w for p in pairs for w in set(re.findall(r"\w+", f"{p.statement_a} {p.statement_b}".lower())))
    letters = [chr(c) for c in range(33, 127) if not chr(c).isupper()]
    words = [word for word, count in sorted(seen.items()) if count > 1 and len(word) > 1]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters), *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=args.max_length,
        num_labels=1,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=args.max_length).save_pretrained(folder)
    return str(folder)


def train(pairs: Sequence[ReplyPair], start: str, args: argparse.Namespace) -> None:
    """Binary cross-entropy of the one logit with 1, 0.5 or 0."""
    import torch
    from sentence_transformers import CrossEncoder

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    encoder = CrossEncoder(start, num_labels=1, max_length=args.max_length, device="cpu", local_files_only=True)
    optimiser = torch.optim.AdamW(encoder.model.parameters(), lr=args.learning_rate, weight_decay=0.01)
    rng, started = Random(args.seed), time.monotonic()
    drawn = [pair for _ in range(args.epochs) for pair in rng.sample(list(pairs), len(pairs))]
    steps = -(-len(drawn) // args.batch_size)
    encoder.model.train()
    for step in range(steps):
        some = drawn[step * args.batch_size : (step + 1) * args.batch_size]
        read = encoder.tokenizer(
            [pair.statement_a for pair in some],
            [pair.statement_b for pair in some],
            padding=True,
            truncation=True,
            max_length=args.max_length,
            return_tensors="pt",
        )
        wanted = torch.tensor([hard_score(pair.label) for pair in some])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(encoder.model(**read).logits.flatten(), wanted)
        for group in optimiser.param_groups:
            group["lr"] = rate(step, steps, args.learning_rate)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % max(1, steps // 10) == 0:
            print(f"step {step}/{steps}: loss {loss.item():.3f}, {time.monotonic() - started:.0f} s", flush=True)
    encoder.model.eval()
    encoder.save_pretrained(str(args.folder))
    print(f"{len(drawn)} pairs in {time.monotonic() - started:.0f} s; written to {args.folder}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write the model")
    parser.add_argument(
        "--model", default="all-minilm-l6-v2", help="a bundled name or the folder of an encoder; '': none"
    )
    parser.add_argument("--layers", type=int, default=4, help="of a model that starts from nothing")
    parser.add_argument("--examples", type=int, default=1200)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=13, help="draw of the generated dialogues; the quickstart's is 13")
    args = parser.parse_args(argv)
    pairs = reply_pairs(generate_samples(SageDataConfig(seed=args.seed)).train, args.examples, args.seed)
    with tempfile.TemporaryDirectory() as folder:
        start = str(resolve_model(args.model)) if args.model else untrained(pairs, Path(folder), args)
        train(pairs, start, args)


if __name__ == "__main__":
    main()

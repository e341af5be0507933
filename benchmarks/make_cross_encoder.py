"""Makes a cross-encoder of one label out of a small language model, so that `cross_encoder` pools meet a trained one.

    python benchmarks/make_cross_encoder.py --out FOLDER
    python benchmarks/scorers.py --cross-encoder FOLDER

The lower layers of the model, a head of one logit at the end of "reference, end of turn, response, end of turn", and
binary cross-entropy on generated telecom pairs of the training split (a partial agreement is worth one half).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import torch  # noqa: E402
from tokenizers.processors import TemplateProcessing  # noqa: E402
from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: E402

from hamr.backends.models import resolve_model, truncated_copy  # noqa: E402
from hamr.config.schema import SageDataConfig  # noqa: E402
from hamr.data.pairs import reply_pairs  # noqa: E402
from hamr.data.telecom import generate  # noqa: E402

WORTH = {"consistent": 1.0, "partial": 0.5, "inconsistent": 0.0}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=1200)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=13, help="draw of the generated dialogues; the quickstart's is 13")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base"
        truncated_copy(resolve_model(args.model), args.layers, base)
        tokenizer = AutoTokenizer.from_pretrained(base)
        model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.bfloat16)
    end = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    # The head reads the last token before the padding, so that padding has to be told from the end of a turn.
    tokenizer.pad_token, tokenizer.padding_side = "<|endoftext|>", "right"
    model.config.pad_token_id = tokenizer.pad_token_id
    model.get_input_embeddings().requires_grad_(False)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    masters = [weight.detach().float() for weight in weights]
    optimizer = torch.optim.AdamW(masters, lr=args.learning_rate, weight_decay=0.0)
    pairs = reply_pairs(generate(SageDataConfig(seed=args.seed)).train, args.pairs, 17)
    random.Random(args.seed).shuffle(pairs)
    steps, started = len(pairs) // args.batch_size, time.monotonic()
    for step in range(steps):
        batch = pairs[step * args.batch_size : (step + 1) * args.batch_size]
        texts = [p.statement_a for p in batch], [p.statement_b for p in batch]
        read = tokenizer(*texts, padding=True, return_tensors="pt")
        worth = torch.tensor([WORTH[pair.label] for pair in batch])
        logits = model(input_ids=read["input_ids"], attention_mask=read["attention_mask"]).logits.float().flatten()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, worth)
        loss.backward()
        rate = args.learning_rate * min(1.0, (step + 1) / (0.1 * steps), (steps - step) / (0.9 * steps))
        for group in optimizer.param_groups:
            group["lr"] = rate
        for master, weight in zip(masters, weights, strict=True):
            master.grad, weight.grad = weight.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            for master, weight in zip(masters, weights, strict=True):
                weight.copy_(master)
        if step % 10 == 9:
            print(f"{step + 1}/{steps}: loss {loss.item():.3f}, {time.monotonic() - started:.0f} s", flush=True)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()

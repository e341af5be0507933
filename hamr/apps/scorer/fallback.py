"""Scorers for data with too few labelled reply pairs to fine-tune any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hamr.apps.scorer.lessons import PAIRS_SEED
from hamr.config.pools import PoolConfig
from hamr.config.schema import Config, ConsistencyConfig
from hamr.data.pairs import reply_pairs
from hamr.data.splits import Splits
from hamr.errors import DataError
from hamr.types import ServiceSample

MIN_TRAIN_PAIRS = 50
MIN_HELD_OUT_PAIRS = 10
"""Fewest pairs of each label to fine-tune a scorer on, and to decide whether fine-tuning is needed."""

PAIRS_DRAWN = 400
EMBEDDING_MODEL = "all-minilm-l6-v2"


def with_usable_scorers(config: Config, splits: Splits) -> tuple[Config, str]:
    """Return the configuration with scorers that the data allow, and one line about what was replaced (else "").

    Fine-tuning needs pairs of replies with known labels. Samples with one reference each give no consistent pairs. In
    that case a reranker that would be fine-tuned becomes the sentence-embedding model, and a judge that would be
    fine-tuned is not asked; scorers that need no fine-tuning stay.
    """
    wanted = config.rewards.scorers
    untrainable = [role for role, name in wanted.items() if config.pools[name].learns_pairs]
    if not untrainable:
        return config, ""
    train, held_out = fewest_pairs(splits.train), fewest_pairs(splits.validation)
    if train >= MIN_TRAIN_PAIRS and held_out >= MIN_HELD_OUT_PAIRS:
        return config, ""
    consistency = config.rewards.consistency
    if "judge" in untrainable:
        consistency = ConsistencyConfig(
            mode="reranker",
            weight=consistency.weight,
            reranker=consistency.reranker,
            verbatim=consistency.verbatim,
        )
    rewards = config.rewards.model_copy(update={"consistency": consistency})
    pools = {name: pool for name, pool in config.pools.items() if not pool.learns_pairs or name in rewards.asked}
    if "reranker" in untrainable or consistency.reranker not in pools:
        pools[consistency.reranker] = PoolConfig(role="reranker", type="embedding", model=EMBEDDING_MODEL)
    scorers = f"{pools[consistency.reranker].model} as reranker"
    scorers += f" and {pools[wanted['judge']].model} as judge" if "judge" in rewards.scorers else ", no judge"
    line = (
        f"data: {train} labelled reply pairs of the rarer label in train and {held_out} in validation, fewer than the "
        f"{MIN_TRAIN_PAIRS} and {MIN_HELD_OUT_PAIRS} that fine-tuned scorers need; replies are scored by {scorers}. "
        "Better: a judge behind an endpoint (pools.judge.type=openai pools.judge.endpoint=URL) or several references "
        "per sample (hamr data multigt)"
    )
    return config.model_copy(update={"pools": pools, "rewards": rewards}), line


def fewest_pairs(samples: Sequence[ServiceSample]) -> int:
    """Return how many pairs of the rarer label, consistent or inconsistent, the samples give; 0 without replies."""
    try:
        labels = Counter(pair.label for pair in reply_pairs(samples, PAIRS_DRAWN, PAIRS_SEED))
    except DataError:
        return 0
    return min(labels["consistent"], labels["inconsistent"])

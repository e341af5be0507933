"""Scorers, and exceptions from the rule against repeated words, that fit the data; refusal of data that fit none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hamr.apps.scorer.lessons import PAIRS_SEED
from hamr.config.pools import PoolConfig
from hamr.config.rewards import ConsistencyConfig
from hamr.config.schema import Config
from hamr.data.contrasts import group_by_cluster, replies_of
from hamr.data.pairs import reply_pairs
from hamr.data.splits import Splits
from hamr.data.words import repetitions
from hamr.errors import DataError
from hamr.models.embedding import EMBEDDING_MODEL
from hamr.types import ServiceSample

MIN_REPLIES = 10
"""Minimum number of replies among the references of all splits for a check of the scorers."""
MIN_TRAIN_PAIRS = 50
MIN_HELD_OUT_PAIRS = 10
"""Minimum number of pairs of each label for fine-tuning, and for the decision whether it is needed."""

PAIRS_DRAWN = 400
MAX_ALLOWED = 1000
"""Maximum number of phrases that `with_allowed_repetitions` adds: long replies repeat much."""
_ACCEPT = "or train although no scorer can be checked, with scorers.accept_chance=true"


def check_scorable(config: Config, splits: Splits) -> None:
    """Refuse data that cannot show whether scorers tell right replies from wrong ones.

    Data without replies pass: tool calls are matched exactly.

    Raises:
        DataError: the references have fewer than MIN_REPLIES replies, or replies of one act, and
            `scorers.accept_chance` is false.
    """
    if config.scorers.accept_chance or not config.rewards.scorers:
        return
    every = (*splits.train, *splits.validation, *splits.test)
    with_replies = [sample for sample in every if replies_of(sample)]
    replies = sum(len(replies_of(sample)) for sample in with_replies)
    where = config.data.train or ("data.sage" if config.data.importer is None else "data.importer")
    if not replies:
        return
    if replies < MIN_REPLIES:
        remedy = f"fewer than the {MIN_REPLIES} by which scorers can be checked; add samples, {_ACCEPT}"
        raise DataError(where, f"{replies} replies among the references", remedy)
    if len(group_by_cluster(with_replies)) < 2:
        remedy = (
            "all replies mean the same or share one act, so that no scorer can be shown to tell right from wrong; add "
            f"samples that ask for something else, name acts in meta.act, {_ACCEPT}"
        )
        raise DataError(where, "one act", remedy)


def with_usable_scorers(config: Config, splits: Splits) -> tuple[Config, str]:
    """Return the configuration with scorers that the data allow, and one line that says which score replies.

    Data without replies need none. Fine-tuning needs pairs of replies with known labels. Samples with one reference
    each give no consistent pairs. In that case a reranker that would be fine-tuned becomes the sentence-embedding
    model, and a judge that would be fine-tuned is not asked; scorers that need no fine-tuning stay. The line is empty
    where none is fine-tuned or replaced.
    """
    wanted = config.rewards.scorers
    if not wanted:
        return config, ""
    if not any(replies_of(sample) for sample in (*splits.train, *splits.validation, *splits.test)):
        line = "data: every reference is a tool call; calls are matched exactly, a reply is worth 0, no scorer is asked"
        return _without_scorers(config, "exact"), line
    untrainable = [role for role, name in wanted.items() if config.pools[name].learns_pairs]
    if not untrainable:
        return config, ""
    train, held_out = fewest_pairs(splits.train), fewest_pairs(splits.validation)
    if train >= MIN_TRAIN_PAIRS and held_out >= MIN_HELD_OUT_PAIRS:
        return config, f"data: replies are scored by {_scorers(config)}, fine-tuned on labelled pairs of these data"
    if "judge" in untrainable:
        config = _without_scorers(config, "reranker")
    reranker = config.rewards.consistency.reranker
    if "reranker" in untrainable or reranker not in config.pools:
        pool = PoolConfig(role="reranker", type="embedding", model=EMBEDDING_MODEL)
        config = config.model_copy(update={"pools": {**config.pools, reranker: pool}})
    line = (
        f"data: {train} labelled reply pairs of the rarer label in train and {held_out} in validation, fewer than the "
        f"{MIN_TRAIN_PAIRS} and {MIN_HELD_OUT_PAIRS} that fine-tuned scorers need; replies are scored by "
        f"{_scorers(config)}{'' if 'judge' in config.rewards.scorers else ', no judge'}. "
        "Better: a judge behind an endpoint (pools.judge.type=openai pools.judge.endpoint=URL pools.judge.model=NAME) "
        "or several references per sample (hamr data multigt)"
    )
    return config, line


def _without_scorers(config: Config, mode: str) -> Config:
    """Return the configuration in a mode that asks fewer scorers, without the settings and pools that become unused."""
    before = config.rewards.consistency
    kept = {"weight", "reranker", "verbatim", "repeated_words", "allowed_repetitions", "call_credit"}
    consistency = ConsistencyConfig.model_validate({"mode": mode, **before.model_dump(include=kept)})
    rewards = config.rewards.model_copy(update={"consistency": consistency})
    pools = {
        name: pool
        for name, pool in config.pools.items()
        if not pool.learns_pairs or name in rewards.used_pools.values()
    }
    return config.model_copy(update={"pools": pools, "rewards": rewards})


def with_allowed_repetitions(config: Config, samples: Sequence[ServiceSample]) -> Config:
    """Return the configuration whose replies may repeat what references of `samples` repeat.

    Without it, a wording of the data that says words twice is right only where it is the reference itself.
    """
    rules = config.rewards.consistency
    if rules.repeated_words is None:
        return config
    replies = dict.fromkeys(reply for sample in samples for reply in replies_of(sample))
    found = Counter(" ".join(words) for reply in replies for words in sorted(repetitions(reply, rules.repeated_words)))
    frequent = (phrase for phrase, _ in found.most_common(MAX_ALLOWED))
    allowed = tuple(dict.fromkeys((*rules.allowed_repetitions, *sorted(frequent))))
    consistency = rules.model_copy(update={"allowed_repetitions": allowed})
    return config.model_copy(update={"rewards": config.rewards.model_copy(update={"consistency": consistency})})


def _scorers(config: Config) -> str:
    return " and ".join(f"{config.pools[name].model} as {role}" for role, name in config.rewards.scorers.items())


def fewest_pairs(samples: Sequence[ServiceSample]) -> int:
    """Return the number of pairs of the rarer label, consistent or inconsistent; 0 without replies."""
    try:
        labels = Counter(pair.label for pair in reply_pairs(samples, PAIRS_DRAWN, PAIRS_SEED))
    except DataError:
        return 0
    return min(labels["consistent"], labels["inconsistent"])

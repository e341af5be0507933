"""The sets of labelled pairs of benchmarks/scorers.py."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from hamr.apps.scorer.pair_check import auc, word_overlap
from hamr.data.pairs import ReplyPair

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import scorers


def pair(number: int, b: str, label: str = "consistent") -> ReplyPair:
    return ReplyPair(history=f"dialogue {number}", statement_a="Your name, please?", statement_b=b, label=label)


def test_words_in_common_mislead_on_the_hard_pairs() -> None:
    pairs = scorers.hard_pairs()
    counts = Counter(pair.label for pair in pairs)
    assert counts["inconsistent"] == 2 * counts["consistent"] >= 200
    overlaps = [word_overlap(pair.statement_a, pair.statement_b) for pair in pairs]
    assert auc(overlaps, [pair.label == "consistent" for pair in pairs]) < 0.35
    unseen = scorers.hard_pairs(unseen=True)
    assert 0 < len(unseen) < len(pairs) and set(unseen) < set(pairs)


def test_plain_pairs_take_the_wrong_reply_from_another_dialogue() -> None:
    given = [pair(1, "May I have your name?"), pair(2, "When do you arrive?"), pair(3, "Goodbye.", "inconsistent")]
    assert scorers.plain_pairs(given) == [
        *given[:2],
        pair(1, "When do you arrive?", "inconsistent"),
        pair(2, "May I have your name?", "inconsistent"),
    ]


def test_misleading_pairs_have_the_overlap_of_the_other_label() -> None:
    near, far = "Your name, please!", "Goodbye."
    given = [pair(1, near), pair(2, far), pair(3, near, "inconsistent"), pair(4, far, "inconsistent")]
    assert scorers.misleading_pairs(given) == [given[1], given[2]]


def test_kept_sets_of_word_overlap_are_not_lost(tmp_path: Path) -> None:
    out = tmp_path / "scorers.json"
    args = ["--embedding", "", "--contexts", "2", "--most", "5", "--out", str(out)]
    scorers.main(args)
    before = json.loads(out.read_text())
    own = {"contexts": 60, "fooled": 46, "share": 46 / 60}
    before["scorers"]["word overlap"]["contexts"] = {"generated": own, "own": own}
    out.write_text(json.dumps(before))
    scorers.main([*args, "--keep"])
    kept = json.loads(out.read_text())["scorers"]["word overlap"]
    assert kept["contexts"]["own"] == own and kept["contexts"]["generated"]["contexts"] == 2

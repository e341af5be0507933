"""`hamr calibrate`: a file of scores or scripted pools become a reward configuration for `hamr train`."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hamr.apps.calibrate import pools as calibrate_pools
from hamr.apps.calibrate import run as job
from hamr.apps.calibrate.pools import find_teachers, score_pairs, triples_of, wanted_pools
from hamr.calibration import fit as calibration
from hamr.calibration.fit import calibrate
from hamr.calibration.search import Effort
from hamr.cli import main as hamr
from hamr.config.load import load_config
from hamr.config.resources import resource
from hamr.config.schema import SageDataConfig
from hamr.data.pairs import LABELS, ReplyPair, reply_pairs
from hamr.data.progress import ItemResult, WorkItem, WorkProgress
from hamr.data.sage_samples import generate_samples
from hamr.data.samples import write_samples
from hamr.data.triples import Triples, read_triples
from hamr.errors import BadInput, DataError, HamrError
from hamr.types import Answer, Question

FAST = ("folds=0", "resamples=0")


@pytest.fixture(autouse=True)
def little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the grid and the resamples: these tests check the output; tests/unit/calibration checks the fit."""
    monkeypatch.setattr(calibration, "Effort", lambda: Effort(pairs=8, shares=4, climbs=1, steps=8))


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    y = rng.random(60)
    rows = zip(np.clip(y + rng.normal(0, 0.3, 60), 0, 1), np.clip(y + rng.normal(0, 0.1, 60), 0, 1), y, strict=True)
    path = tmp_path / "scores.jsonl"
    path.write_text("".join(json.dumps({"s_r": r, "s_j": j, "y": y}) + "\n" for r, j, y in rows))
    return path


@pytest.mark.slow
def test_scores_become_a_training_configuration(scores: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out"
    assert hamr(["calibrate", f"scores={scores}", f"output={out}", "max_escalated_frac=0.5", "folds=3"]) == 0
    shown = capsys.readouterr().out
    for name in ("reranker only", "hard judge (S_J rounded)", "soft judge", "paper's cascade", "fit"):
        assert name in shown
    assert f"hamr train rewards=calibrated --config-dir {out}" in shown.replace("\n", "")

    triples = read_triples(scores, {})
    fit = calibrate(triples.s_r, triples.s_j, triples.y, max_escalated_frac=0.5, folds=3)
    for experiment in ("quickstart", "paper_hrm", "smoke"):
        config = load_config([f"experiment={experiment}", "rewards=calibrated", "--config-dir", str(out)])
        assert config.rewards.consistency.mode == "hybrid"
        cascade = config.rewards.consistency.cascade
        assert (cascade.tau_a, cascade.tau_b, cascade.w1, cascade.w2) == (
            fit.cascade.tau_a, fit.cascade.tau_b, fit.cascade.w1, fit.cascade.w2
        )  # fmt: skip

    header = [line for line in (out / "rewards" / "calibrated.yaml").read_text().splitlines() if line.startswith("# ")]
    text = "\n".join(header)
    assert "60 rows of scores.jsonl" in text
    for number in (fit.spearman, *fit.interval, fit.cv_spearman, fit.reranker_only):
        assert f"{number:.4f}" in text
    assert f"{fit.escalated_frac:.1%}" in text
    figures = json.loads((out / "calibration.json").read_text())
    assert figures["spearman"] == fit.spearman
    assert len(figures["frontier"]) == len(fit.frontier)
    assert (out / "calibration.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in out.iterdir()) == ["calibration.json", "calibration.png", "rewards"]


@pytest.mark.slow
def test_tiny_taus_are_written_as_yaml_numbers(tmp_path: Path) -> None:
    """YAML 1.1 reads 1e-05 as a string."""
    fit = calibrate([i / 1e7 for i in range(30)], [i / 30 for i in range(30)], [(i * 7 % 30) / 30 for i in range(30)])
    text = job.rewards_yaml(fit, "x", "y", job._as_consistency(fit))
    assert all(isinstance(v, float) for v in yaml.safe_load(text)["consistency"]["cascade"].values())
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "mine.yaml").write_text(text)
    assert load_config(["rewards=mine"], tmp_path).rewards.consistency.cascade.tau_b == fit.cascade.tau_b


def test_named_yaml_is_written_into_the_user_config_folder(scores: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "conf" / "rewards" / "mine.yaml"
    assert hamr(["calibrate", f"scores={scores}", f"output={out}", *FAST]) == 0
    assert f"hamr train rewards=mine --config-dir {tmp_path / 'conf'}" in capsys.readouterr().out.replace("\n", "")
    assert load_config(["rewards=mine"], tmp_path / "conf").rewards.consistency.mode == "hybrid"
    assert out.with_suffix(".png").is_file()
    lone = tmp_path / "lone.yaml"
    assert hamr(["calibrate", f"scores={scores}", f"output={lone}", *FAST]) == 0
    assert "put lone.yaml into DIR/rewards/" in capsys.readouterr().out


def test_output_is_replaced_only_on_request(scores: Path, tmp_path: Path, capsys) -> None:
    line = ["calibrate", f"scores={scores}", f"output={tmp_path / 'out'}", *FAST]
    assert hamr(line) == 0
    written = tmp_path / "out" / "rewards" / "calibrated.yaml"
    before = written.read_bytes()
    assert hamr([*line, "max_escalated_frac=0"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert written.read_bytes() == before
    assert hamr([*line, "max_escalated_frac=0", "overwrite=true"]) == 0
    assert written.read_bytes() != before


def test_failed_step_writes_no_files(scores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> bytes:
        raise RuntimeError("no picture")

    monkeypatch.setattr("hamr.apps.calibrate.figures.draw_calibration", broken)
    assert hamr(["calibrate", f"scores={scores}", f"output={tmp_path / 'out'}", *FAST]) == 1
    assert not (tmp_path / "out").exists()


def test_files_after_one_that_cannot_be_written_are_unchanged(tmp_path: Path) -> None:
    (tmp_path / "in_the_way").mkdir()
    (tmp_path / "old").write_text("old")
    with pytest.raises(DataError, match="in_the_way.*cannot be written"):
        job.write_files({tmp_path / "in_the_way": b"2", tmp_path / "old": "3"})
    assert (tmp_path / "old").read_text() == "old"
    job.write_files({tmp_path / "a" / "new": b"1", tmp_path / "old": "3"})
    assert (tmp_path / "old").read_text() == "3"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["new"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "give one of scores="),
        (["scores={scores}", "pairs=x", "output={out}"], "give one of scores="),
        (["scores={scores}"], "give output=FOLDER"),
        (["scores={scores}", "outptu={out}"], "did you mean output"),
        (["scores={scores}", "output={out}", "teachers=a"], "teachers"),
        (["pairs={scores}", "output={out}", "teachers=a,b,a"], "names one twice"),
        (["scores={scores}", "output={out}", "pools=tiny"], "pools=tiny"),
        (["pairs={scores}", "output={out}", "s_r=x"], "s_r"),
        (["scores={scores}", "output={scores}"], "is a file"),
        (["scores={scores}", "output={out}", "overwrite=yes"], "true or false"),
        (["scores=none.jsonl", "output={out}"], "no such file"),
        (["scores={scores}", "output={out}", "y=teacher"], "scores.jsonl:1: teacher"),
        (["scores={scores}", "output={out}.yml"], "end it in .yaml"),
        (["scores={scores}", "output={out}", "folds=many"], "folds: 'many': must be a whole number"),
        (["scores={scores}", "output={out}", "max_cost=low"], "must be a number"),
        (["scores={scores}", "output={out}", "seed=-1"], "seed: -1: must be 0 or more"),
        (["scores={scores}", "output={out}", "max_escalated_frac=7"], "must be a share"),
        (["scores={scores}", "output={out}", "s_j=y", "y=s_j", "s_r=s_r", "max_cost=0.5"], "raise max_cost"),
        (["pairs={scores}", "output={out}"], "content_A"),
    ],
)
def test_bad_input_is_reported_in_one_line_with_exit_code_2(
    args: list[str], says: str, scores: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out"
    assert hamr(["calibrate", *(arg.format(scores=scores, out=out) for arg in args)]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert not out.exists()


# --- from pools --------------------------------------------------------------------------------

PAIRS = [ReplyPair(history="", statement_a="Yes.", statement_b=str(i), label="consistent") for i in range(4)]


def scripted(*answers: Answer):
    async def ask(question: Question) -> Answer:
        await asyncio.sleep(0)
        return answers[int(question.variables["statement_b"])]

    return ask


def scored(*values: float, verdict: str | None = None):
    return scripted(*(Answer(score=value, verdict=verdict) for value in values))


def asked(asks: dict, teachers: tuple[str, ...], said: list[str] | None = None, pairs=PAIRS) -> Triples:
    report = (said if said is not None else []).append
    items = [WorkItem(id=str(number), key="k", content=pair) for number, pair in enumerate(pairs)]
    with tempfile.TemporaryDirectory() as folder:
        found = WorkProgress.of(Path(folder) / "p.jsonl", items)
        asyncio.run(score_pairs(items, asks, "reranker", "judge", teachers, report, found))
        found.close()
        again = WorkProgress.of(Path(folder) / "p.jsonl", items)
    assert triples_of(again) == triples_of(found), "what was scored is on the disk"
    return triples_of(found)


def test_scored_pairs_are_not_scored_again(tmp_path: Path) -> None:
    items = [WorkItem(id=str(number), key="k", content=pair) for number, pair in enumerate(PAIRS)]
    found = WorkProgress.of(tmp_path / "p.jsonl", items)
    found.finish(items[1], ItemResult(kept={"row": [0.5, 0.5, 1.0, None]}))
    found.close()
    found = WorkProgress.of(tmp_path / "p.jsonl", items)
    seen: list[str] = []

    async def ask(question: Question) -> Answer:
        seen.append(question.variables["statement_b"])
        return Answer(score=0.25)

    asyncio.run(score_pairs(items, {"reranker": ask, "judge": ask}, "reranker", "judge", (), seen.append, found))
    assert [one for one in seen if one in "0123"] == ["0", "0", "2", "2", "3", "3"]
    assert triples_of(found).s_r == [0.25, 0.5, 0.25, 0.25]


def test_target_is_the_mean_of_the_teachers() -> None:
    asks = {
        "reranker": scored(0.1, 0.2, 0.3, 0.4, verdict="no"),
        "judge": scored(0.5, 0.6, 0.7, 0.8, verdict="part"),
        "t1": scored(0.0, 1.0, 0.5, 0.25),
        "t2": scored(1.0, 1.0, 0.25, 0.25),
    }
    triples = asked(asks, ("t1", "t2"))
    assert (triples.s_r, triples.s_j) == ([0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8])
    assert (triples.y, triples.hard) == ([0.5, 1.0, 0.375, 0.25], [0.5] * 4)


def test_target_without_teachers_is_the_label() -> None:
    labels = ("consistent", "partial", "inconsistent", "consistent")
    pairs = [ReplyPair(history="", statement_a="", statement_b=str(i), label=label) for i, label in enumerate(labels)]
    triples = asked({"reranker": scored(0, 0, 0, 0), "judge": scored(1, 1, 1, 1)}, (), pairs=pairs)
    assert triples.y == [1.0, 0.5, 0.0, 1.0]
    assert triples.hard is None


def test_pair_with_failed_scorer_is_dropped_and_counted() -> None:
    good = Answer(score=0.0, verdict="no")
    asks = {
        "reranker": scripted(good, Answer(failure="timeout"), good, good),
        "judge": scripted(good, good, Answer(score=1.5), good),
        "t1": scripted(Answer(failure="unavailable"), Answer(failure="unavailable"), good, Answer(score=1.0)),
    }
    said: list[str] = []
    triples = asked(asks, ("t1",), said)
    assert (triples.s_r, triples.s_j, triples.y) == ([0.0], [0.0], [1.0])
    assert said[-1] == (
        "left out 3 of 4 pairs: judge: judge_unparsable 1, reranker: reranker_timeout 1, t1: judge_unavailable 2"
    )
    dead = scripted(*[Answer(failure="unavailable", detail="401\nbad key")] * 4)
    said_last = r"no pair got all its scores \(judge: judge_unavailable 4\); first failure: 401 bad key; run"
    with pytest.raises(HamrError, match=said_last):
        asked({"reranker": scored(0, 0, 0, 0), "judge": dead}, ())


def test_only_requested_pools_are_started() -> None:
    more = ["pools.t1={role: judge, prompt: judge.en}", "pools.idle={role: judge, prompt: judge.en}"]
    config = load_config(["pools=tiny", *more])
    assert list(wanted_pools(config, ["t1"])) == ["reranker", "judge", "t1"]
    with pytest.raises(BadInput, match=r"teachers\[1\]: 't9': no such pool; there are: idle, judge, reranker, t1"):
        wanted_pools(config, ["t1", "t9"])
    with pytest.raises(BadInput, match="cannot be its own teacher"):
        wanted_pools(config, ["judge"])


def test_judge_ensemble_of_the_configuration_is_the_default_teacher() -> None:
    judges = [f"pools.{name}={{role: judge, prompt: judge.en}}" for name in ("t1", "t2")]
    ensemble, one, none = (load_config(["pools=tiny", *judges[:n]]) for n in (2, 1, 0))
    assert find_teachers(ensemble, ()) == ("t1", "t2")
    assert find_teachers(ensemble, ("t2",)) == ("t2",)
    assert find_teachers(ensemble, ("labels",)) == find_teachers(one, ()) == find_teachers(none, ()) == ()
    assert find_teachers(load_config(["pools=ecs"]), ()) == ("judge_2", "judge_3", "judge_4")


@pytest.mark.parametrize(("bound", "warned"), [(None, True), (0.6, False)])
def test_fit_that_escalates_most_replies_is_reported(bound, warned, tmp_path, capsys) -> None:
    rng = np.random.default_rng(1)
    s_r, y = rng.random(60), rng.random(60)  # the reranker knows nothing, the judge everything
    rows = [{"s_r": r, "s_j": j, "y": j} for r, j in zip(s_r, y, strict=True)]
    scores = tmp_path / "scores.jsonl"
    scores.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bounds = [] if bound is None else [f"max_escalated_frac={bound}"]
    assert hamr(["calibrate", f"scores={scores}", f"output={tmp_path / 'out'}", *bounds, *FAST]) == 0
    assert ("max_escalated_frac=0.6" in capsys.readouterr().out) is warned


def write_pairs(path: Path, labels: list[str]) -> Path:
    path.write_text("".join(json.dumps({"content_A": "a", "content_B": "b", "label": x}) + "\n" for x in labels))
    return path


@pytest.mark.parametrize(
    ("labels", "options", "says"),
    [
        (["partial"] * 20, [], "label of every pair"),
        (["partial", "consistent"], [], "2 pairs"),
        (["partial", "consistent"] * 10, ["folds=1"], "folds: 1"),
        (["partial", "consistent"] * 10, ["max_escalated_frac=2"], "max_escalated_frac"),
        (["partial", "consistent"] * 10, ["teachers=judge"], "its own teacher"),
        (["partial", "consistent"] * 10, ["pools.judge.rolle=x"], "pools.judge.rol"),
    ],
)
def test_detectable_errors_are_reported_before_pools_start(
    labels: list[str], options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Ray does not start under tests/unit, so a later check would fail."""
    pairs = write_pairs(tmp_path / "pairs.jsonl", labels)
    assert hamr(["calibrate", f"pairs={pairs}", f"output={tmp_path / 'out'}", "pools=tiny", *options]) == 2
    assert says in capsys.readouterr().err


def test_samples_are_calibrated_on_pairs_of_their_references(
    scores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = generate_samples(SageDataConfig(train=8, validation=30, test=8)).validation
    write_samples(tmp_path / "held_out.jsonl", samples)
    seen: list[Any] = []

    def ask_pools(config, pairs, teachers, tell, kept):
        seen.append(pairs)
        return read_triples(scores, {})

    monkeypatch.setattr(calibrate_pools, "ask_pools", ask_pools)
    line = ["calibrate", f"samples={tmp_path / 'held_out.jsonl'}", "most=60", "pools=tiny", *FAST]
    assert hamr([*line, f"output={tmp_path / 'out'}"]) == 0
    (pairs,) = seen
    assert pairs == reply_pairs(samples, 60, 0) and {pair.label for pair in pairs} == set(LABELS)
    assert (tmp_path / "out" / "scores.jsonl").is_file()
    assert hamr([*line, f"output={tmp_path / 'few'}", "most=2"]) == 2
    assert hamr(["calibrate", f"pairs={scores}", "most=60", f"output={tmp_path / 'no'}"]) == 2


def test_scores_of_an_edited_prompt_are_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = tmp_path / "mine.yaml"
    prompt.write_text(resource("prompts", "judge.en.yaml").read_text())
    config = load_config(["experiment=smoke", f"pools.judge.prompt={prompt}"])
    pairs = [ReplyPair(history="", statement_a="a", statement_b="b", label="consistent")]
    asked = []

    def with_pools(config, names, work, **_):
        async def ask(question: Question) -> Answer:
            asked.append(question)
            return Answer(score=0.5, verdict="part")

        asyncio.run(work(dict.fromkeys(names, ask)))

    monkeypatch.setattr(calibrate_pools, "with_pools", with_pools)
    told: list[str] = []
    for count in (2, 2):
        calibrate_pools.ask_pools(config, pairs, (), told.append, tmp_path / "kept.jsonl")
        assert len(asked) == count
    assert any(line.startswith("1 of 1 pairs already have their scores") for line in told)
    prompt.write_text(prompt.read_text().replace("system: |\n", "system: |\n  Be strict.\n", 1))
    calibrate_pools.ask_pools(config, pairs, (), told.append, tmp_path / "kept.jsonl")
    assert len(asked) == 4


@pytest.mark.slow
def test_pairs_give_the_same_files_and_their_scores(
    scores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    write_pairs(pairs, ["partial"] * 20)
    seen = []

    def ask_pools(config, pairs, teachers, tell, kept):
        seen.append((config.pools["judge"].model, pairs[0].label, teachers))
        return read_triples(scores, {})

    monkeypatch.setattr(calibrate_pools, "ask_pools", ask_pools)
    out = tmp_path / "out"
    judges = [f"pools.{name}={{role: judge, prompt: judge.en}}" for name in ("t1", "t2")]
    line = ["calibrate", f"pairs={pairs}", "teachers=t1,t2", "pools=tiny", *judges, *FAST]
    assert hamr([*line, f"output={out}"]) == 0
    assert seen == [("tiny", "partial", ("t1", "t2"))]
    # what was asked need not be asked again
    assert hamr(["calibrate", f"scores={out / 'scores.jsonl'}", f"output={tmp_path / 'again'}", *FAST]) == 0
    first, again = (tmp_path / name / "calibration.json" for name in ("out", "again"))
    assert first.read_bytes() == again.read_bytes()


def test_a_fit_that_ranks_against_the_teacher_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = tmp_path / "scores.jsonl"
    for slope, warned in ((-1, True), (1, False)):
        rows = [{"s_r": i / 40, "s_j": (i * 7 % 40) / 80 + i / 80, "y": 0.5 + slope * (i - 20) / 50} for i in range(40)]
        scores.write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = [f"scores={scores}", f"output={tmp_path / 'out.yaml'}", "overwrite=true", "resamples=0", "folds=3"]
        assert hamr(["calibrate", *words]) == 0
        assert ("warning: the fitted reward ranks replies against the teacher" in capsys.readouterr().out) is warned

import json
import re
from dataclasses import replace
from random import Random

import pytest

from hamr.apps.report.data import ReportData
from hamr.apps.report.figures_learning import held_out_curve, smooth
from hamr.apps.report.report import verdict, write_report
from hamr.apps.shared.commands import parse_command
from hamr.errors import BadInput, HamrError, RunFolderError
from hamr.telemetry.recorder import RunRecorder
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.summary import read_summary, write_summary
from hamr.types import Component, EpisodeResult, JudgeTimeout, SampleKey, Scored
from tests.unit.telemetry.records import record
from tests.unit.telemetry.synthetic import make_run, scored_response

PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("runs") / "synthetic")
    write_report(folder.path)
    return folder


@pytest.fixture(scope="module")
def html(run):
    return run.report.read_text()


@pytest.mark.slow
def test_page_is_self_contained(run, html):
    assert html.count("<svg ") == len(list(run.plots.glob("*.png"))) >= 14
    assert not re.search(r"<img|<link|<script|@import|url\((?!#)|https?://", html)


def test_every_figure_has_a_file_and_alternative_text(run, html):
    assert all(p.read_bytes().startswith(PNG) for p in run.plots.glob("*.png"))
    alts = re.findall(r'role="img" aria-label="Plot: ([^"]+)"', html)
    assert len(set(alts)) == len(alts) == html.count("<svg ")


def test_customer_and_policy_texts_are_escaped(html):
    assert "&lt;b&gt;downgrade&lt;/b&gt; me &amp; tell" in html
    assert "<b>downgrade" not in html
    assert "<script" not in html


def test_report_says_how_often_both_scorers_are_wrong(html):
    assert "the reranker was wrong about 20.0%, the judge about 15.0%, and both about 5.0%" in html


def test_headlines_match_the_summary(run, html):
    stages = read_summary(run)["stages"]
    for stage in ("base", "sft", "rl"):
        assert f"<b>{stages[stage]['reward']['total']:.3f}</b>" in html
        assert f"<b>{stages[stage]['action_accuracy']:.1%}</b>" in html
    gain = (stages["rl"]["format_error_rate"] - stages["base"]["format_error_rate"]) * 100
    # Fewer format errors are an improvement: a minus sign, and green.
    assert gain < 0
    assert f'<div class="change good">{gain:+.1f} points' in html


def test_verdict_matches_the_measurements(run):
    data = ReportData.read(run.path)
    old, new = (data.stages[s]["reward"]["total"] for s in ("base", "rl"))
    assert f"the held-out reward rose from {old:.2f} to {new:.2f}" in verdict(data)
    worse = {**data.stages, "rl": {**data.stages["rl"], "reward": {"total": old - 1}}}
    write_summary(run, {**read_summary(run), "stages": worse})
    try:
        assert f"the held-out reward fell from {old:.2f} to {old - 1:.2f}" in verdict(ReportData.read(run.path))
    finally:
        write_summary(run, {**read_summary(run), "stages": data.stages})


def test_unfinished_run_has_a_report(tmp_path):
    folder = make_run(tmp_path / "run", steps=2, finished=False)
    html = write_report(folder.path).read_text()
    assert "Learning curve" in html
    assert "after RL" in html
    assert not (folder.plots / "scorer_auc.png").exists()


def test_run_without_records_has_a_report(tmp_path):
    with RunFolder.create(tmp_path / "run", "a: 1") as folder:
        (folder.plots / "step_time.png").write_bytes(b"of an earlier report")
        html = write_report(folder.path).read_text()
        assert "0 RL steps recorded" in html
        assert "<svg" not in html
        assert list(folder.plots.iterdir()) == []


def test_no_secret_reaches_the_page(tmp_path, monkeypatch):
    monkeypatch.setenv("FOO_API_KEY", "canary-7f3a")
    with RunFolder.create(tmp_path / "run", "a: 1") as folder:
        folder.config.write_text("endpoint: http://x/canary-7f3a/v1\n")
        assert "canary" not in write_report(folder.path).read_text()


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("summary", "{", r"summary\.json': is not JSON"),
        ("summary", "[]", r"summary\.json': is not a JSON object; restore it"),
        ("summary", '{"timing": []}', r"summary\.json': timing is not an object; restore it"),
        ("summary", '{"stages": {"base": 3}}', r"summary\.json': stages is not an object of objects; restore it"),
        ("samples", '{"stage": "rl", "step": 1}\n', r"samples\.jsonl:1: .* has no `stage`, `step` and `response`"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, file, text, said):
    with RunFolder.create(tmp_path / "run", "a: 1") as folder:
        getattr(folder, file).write_text(text)
        with pytest.raises(HamrError, match=said):
            write_report(folder.path)


def test_summary_without_secrets_and_infinities(tmp_path, monkeypatch):
    monkeypatch.setenv("FOO_API_KEY", "canary-7f3a")
    with RunFolder.create(tmp_path / "run", "a: 1") as folder:
        write_summary(folder, {"name": "x", "machine": {"at": "canary-7f3a", "load": float("inf")}, "steps": 3})
        assert read_summary(folder) == {"name": "x", "machine": {"at": "[redacted]", "load": None}, "steps": 3}


# --- data of the figures -------------------------------------------------------------


def test_series_omit_non_finite_values(run):
    steps, values = ReportData.read(run.path).series("policy/grad_norm")
    assert 9 not in steps
    assert len(steps) == len(values) == 19


def test_held_out_curve_starts_at_the_start_of_rl(run):
    data = ReportData.read(run.path)
    curve = held_out_curve(data)
    assert [step for step, _ in curve] == [0, 5, 10, 15, 20]
    assert curve[0][1] == data.evaluations["sft"][1]["reward/total"]


def test_smoothing_matches_hand_computed_values():
    assert smooth([1.0, 3.0], weight=0.5) == [1.0, pytest.approx((0.25 * 1 + 0.5 * 3) / 0.75)]
    assert smooth([2.0, 2.0, 2.0]) == pytest.approx([2.0, 2.0, 2.0])
    assert smooth([]) == []


def test_examples_are_late_and_shown_once(run):
    examples = ReportData.read(run.path).examples(n=2)
    rows = [row for _, row in examples]
    assert [kind for kind, _ in examples] == ["best"] * 2 + ["worst"] * 2 + ["random"] * 2
    assert len({r["response"] for r in rows}) == 6
    assert all(r["step"] > 20 * 2 / 3 for r in rows)
    assert rows[0]["total"] >= rows[1]["total"] > rows[2]["total"] >= rows[3]["total"]


def test_comparisons_cover_every_stage_and_sort_by_gain(run):
    data = ReportData.read(run.path)
    gains = [
        c.replies["rl"][1] - c.replies["base"][1]
        for c in data.comparisons
        if None not in (c.replies["rl"][1], c.replies["base"][1])
    ]
    assert len(data.comparisons) >= 2
    assert all(list(c.replies) == ["base", "sft", "rl"] for c in data.comparisons)
    assert gains == sorted(gains, reverse=True)
    assert len({c.customer for c in data.comparisons}) == len(data.comparisons)


def test_rl_on_dialogues_shows_completion_and_whole_dialogues(tmp_path):
    folder = make_run(tmp_path / "run", steps=1, finished=False)
    completed = Component(name="completion", outcome=Scored(value=1.0), weight=1.0)
    with RunRecorder(folder) as recorder:
        for step, name in enumerate(("sft", "rl")):
            records = [
                replace(
                    scored_response(
                        Random(turn), SampleKey(run=f"synthetic/eval-{name}/dialogues", step=step, **key), 0.5
                    ),
                    observation=f"message {turn} <{key['prompt']}>",
                    episode=EpisodeResult(outcome="ended", components=(completed,)) if turn == 2 else None,
                )
                for prompt in ("a", "b", "c", "d", "e")
                for turn in range(3)
                for key in [{"prompt": prompt, "sample": 0, "turn": turn}]
            ]
            figures = {
                "n": 5.0,
                "turns": 3.0,
                "completion": 0.4 + 0.2 * step,
                "exact_act": 0.3,
                "turn_reward": 1.0,
                "reward": 0.7,
                "failed_frac": 0.0,
            }
            prefix = f"eval/{name}/episodes"
            recorder.evaluation(name, step, {f"{prefix}/{k}": v for k, v in figures.items()}, records)
    page = write_report(folder.path).read_text()
    assert "Plot: Completed cases" in page and "Dialogues with held-out customers" in page
    assert "40.0%" in page and "60.0%" in page and "exact turns" in page
    shown = ReportData.read(folder.path).dialogues
    assert [len(turns) for turns in shown] == [3] * 4 and len({turns[0].key.prompt for turns in shown}) == 4
    assert all(turns[0].key.run.endswith("eval-rl/dialogues") for turns in shown)
    assert "message 2 &lt;" in page and "(ended)" in page and "of the dialogue" in page


def test_shown_dialogues_have_the_lowest_and_highest_mean_turn_rewards(tmp_path):
    folder = make_run(tmp_path / "run", steps=1, finished=False)
    rewards = {
        "low": [-1.0],
        "below": [0.1] * 20,
        "middle": [0.5] * 4,
        "failed": [0.0, JudgeTimeout(detail="slow")],
        "above": [0.8, 0.6],
        "high": [0.9],
    }
    records = [
        replace(
            record(total=total),
            key=SampleKey(run="synthetic/eval-rl/dialogues", step=1, prompt=name, sample=0, turn=turn),
        )
        for name, totals in rewards.items()
        for turn, total in enumerate(totals)
    ]
    with RunRecorder(folder) as recorder:
        recorder.evaluation("rl", 1, {}, records)
    shown = [turns[0].key.prompt for turns in ReportData.read(folder.path).dialogues]
    assert shown == ["low", "below", "above", "high"]


def test_histogram_uses_training_scores_only(run):
    data = ReportData.read(run.path)
    assert data.responses == 20 * 64
    assert 0 < len(data.s_r) < data.responses
    assert all(0 <= v <= 1 for v in data.s_r)


# --- the command -------------------------------------------------------------------------------


@pytest.mark.slow
def test_command_prints_the_report_path(run, capsys):
    assert parse_command(["report", str(run.path)]).run() == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(run.report)


@pytest.mark.parametrize("args", [[], ["a", "b"]])
def test_command_requires_exactly_one_folder(args):
    with pytest.raises(BadInput, match="hamr report RUN"):
        parse_command(["report", *args])


def test_command_requires_a_run_folder(tmp_path):
    with pytest.raises(RunFolderError, match=r"no config\.yaml"):
        parse_command(["report", str(tmp_path)]).run()


def test_no_change_and_blank_responses_are_labelled(tmp_path):
    with RunFolder.create(tmp_path / "run", "a: 1") as folder:
        same = {"action_accuracy": 0.0, "reward": {"total": 0.0}}
        write_summary(folder, {"stages": {"base": same, "rl": same}})
        row = {"prompt": "p", "sample": 0, "customer": "Hi", "response": "\n\n", "action": None, "band": "none"}
        row |= {"s_r": None, "s_j": None, "outcome": "scored", "total": 0.0, "stage": "rl", "step": 1}
        folder.samples.write_text(json.dumps(row) + "\n")
        html = write_report(folder.path).read_text()
    assert "the held-out reward stayed at 0.00 and the share of responses of the right kind stayed at 0%" in html
    assert html.count(">unchanged<") == 2
    assert "(blank)" in html

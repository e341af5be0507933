"""Signs of reward hacking and their alarms."""

from dataclasses import replace

import pytest

from hamr.config.logging import AlarmsConfig
from hamr.config.rewards import ConsistencyConfig
from hamr.telemetry.console import Console
from hamr.telemetry.metrics import read_metrics
from hamr.telemetry.recorder import RunRecorder
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.watch import ActTruthWindow, RecentReplies, TruthWindow, alarms, pearson, watch_metrics
from hamr.types import Audit, Component, JudgeTimeout, Reply, Scored
from tests.unit.telemetry.records import record


def test_reward_correlated_with_length_is_detected():
    records = [replace(record(i, i / 4), response_tokens=10 * i) for i in range(5)]
    assert watch_metrics(records)["watch/length_correlation"] == pytest.approx(1.0)
    unrewarded = [replace(record(i, 0.0), components=(), response_tokens=1000 + i) for i in range(5)]
    assert watch_metrics([*unrewarded, *records])["watch/length_correlation"] == pytest.approx(1.0)
    assert pearson([0.0, 1.0, 2.0], [1.0, 0.0, 1.0]) == 0.0
    assert pearson([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None


def test_repeats_count_only_within_a_group():
    same = [replace(record(i, 1.0), response="Bye.") for i in range(2)]
    elsewhere = replace(record(0, 1.0), response="Bye.", key=replace(record(0, 1.0).key, prompt="q"))
    other = replace(record(3, 1.0), response="Data or voice?")
    assert watch_metrics([*same, elsewhere, other])["watch/duplicate_frac"] == 0.5


def test_turns_of_one_dialogue_are_no_siblings_but_further_samples_are():
    def one(sample=0, attempt=0, turn=0):
        key = replace(record(0, 1.0).key, sample=sample, attempt=attempt, turn=turn)
        return replace(record(0, 1.0), response="Anything else?", key=key)

    assert watch_metrics([one(turn=0), one(turn=1)])["watch/duplicate_frac"] == 0.0
    assert watch_metrics([one(), one(attempt=1)])["watch/duplicate_frac"] == 1.0
    assert watch_metrics([one(), one(attempt=2)])["watch/duplicate_frac"] == 0.0, "another group of the prompt"


def said(*replies):
    return [replace(record(i, 1.0), action=Reply(content=reply)) for i, reply in enumerate(replies)]


def test_top_reply_is_taken_over_several_steps():
    window = RecentReplies(size=3)
    assert [window.add(said("Bye.", "Bye.")), window.add(said("Data or voice?", "The fee is 40."))] == [{}, {}]
    assert window.add(said("Hello.", "Bye.")) == {"watch/top_reply_frac": 0.5}
    assert window.top == "Bye."
    assert window.add(said("Hello.", "Hello.")) == {"watch/top_reply_frac": 0.5}
    assert window.top == "Hello."
    assert RecentReplies(size=1).add([]) == {}, "no reply, no share"


def test_scorer_gap_includes_audits():
    asked = replace(record(0, 1.0), s_r=0.2, s_j=0.6)
    audited = replace(record(1, 1.0), s_r=0.8, s_j=None, audit=Audit(s_r=0.8, s_j=0.0))
    both = replace(asked, audit=Audit(s_r=0.2, s_j=0.6, best=1.0))
    assert watch_metrics([both, audited])["watch/scorer_gap"] == pytest.approx(0.6), "heard once, counted once"
    assert watch_metrics([asked, audited])["watch/scorer_gap"] == pytest.approx(0.6)


def test_dominant_component_is_reported():
    def of(number, consistency, length):
        parts = (("consistency", consistency, 1.0), ("length", length, 0.5))
        components = tuple(Component(name=n, outcome=Scored(value=v), weight=w) for n, v, w in parts)
        return replace(record(number, 1.0), components=components)

    # Contributions 0, 1 (variance 1/4) and 0, 1/2 (variance 1/16).
    assert watch_metrics([of(0, 0.0, 0.0), of(1, 1.0, 1.0)])["watch/top_component"] == pytest.approx(0.8)


def test_no_metrics_without_records_or_with_failures_only():
    assert watch_metrics([]) == {}
    failed = [replace(record(i, 1.0), total=JudgeTimeout(), components=()) for i in range(4)]
    assert "watch/length_correlation" not in watch_metrics(failed)


@pytest.mark.parametrize(("value", "raised"), [(4.1, True), (-4.1, True), (4.0, False)])
def test_alarm_is_raised_beyond_its_limit_on_either_side(value, raised):
    flags, messages = alarms({"audit/drift": value}, AlarmsConfig(audit_drift=4.0))
    assert flags == {"audit_drift": float(raised)} and bool(messages) is raised
    assert alarms({"audit/drift": value}, AlarmsConfig(audit_drift=None)) == ({}, {})


@pytest.mark.parametrize(("value", "raised"), [(0.5, True), (0.55, False), (1.2, False)])
def test_alarm_of_a_lower_limit_is_raised_below_it(value, raised):
    flags, messages = alarms({"watch/act_diversity": value}, AlarmsConfig())
    assert flags == {"act_diversity": float(raised)}
    said = messages.get("act_diversity", "")
    assert said.startswith("alarm: watch/act_diversity is 0.50 (lower limit 0.55)") == raised


def test_run_logs_its_alarms(tmp_path):
    class Terminal:
        def __init__(self):
            self.lines = []

        def step(self, step, total, metrics):
            pass

        def note(self, text):
            self.lines.append(text)

    terminal = Terminal()
    with (
        RunFolder.create(tmp_path / "run", "a: 1") as folder,
        RunRecorder(
            folder, console=terminal, limits=AlarmsConfig(length_correlation=0.5), audited=ConsistencyConfig()
        ) as recorder,
    ):
        recorder.begin("rl", 1)
        audited = [
            replace(record(i, i / 4), response_tokens=10 * i, audit=Audit(s_r=0.8, s_j=0.7, best=0.7)) for i in range(5)
        ]
        recorder.records(1, audited)
        recorder.metrics(1, {})
    [row] = read_metrics(folder.metrics)
    assert row["alarm/length_correlation"] == 1.0
    assert row["audit/answered"] == 5.0
    assert [line for line in terminal.lines if "watch/length_correlation is 1.00 (limit 0.5)" in line]


def test_an_alarm_names_the_reply(tmp_path, capsys):
    with (
        RunFolder.create(tmp_path / "run", "a: 1") as folder,
        RunRecorder(folder, console=Console("run")) as recorder,
    ):
        recorder.begin("rl", 10)
        for step in range(1, 11):
            recorder.records(step, said("Bye.", "Bye.", "Data or voice?"))
            recorder.metrics(step, {})
    flagged = [row["step"] for row in read_metrics(folder.metrics) if row.get("alarm/top_reply_frac")]
    assert flagged == [10]
    assert "most of the policy's replies: 'Bye.'" in " ".join(capsys.readouterr().out.split())


def test_falling_truth_with_rising_reward_raises_an_alarm() -> None:
    window = TruthWindow(size=4)
    clean = [window.add(0.4 + 0.02 * i, 0.4 + 0.02 * i) for i in range(20)]
    assert max(clean) == 0.0
    hacked = [window.add(0.8 + 0.01 * i, 0.78 - 0.05 * i) for i in range(8)]
    assert hacked[-1] > 0.15 and hacked == sorted(hacked)
    _, messages = alarms({"truth/drop": hacked[-1]}, AlarmsConfig())
    assert "scorers" in messages["truth_drop"]


def test_truth_falling_with_the_reward_raises_no_alarm() -> None:
    window = TruthWindow(size=4)
    assert max(window.add(0.8 - 0.05 * i, 0.8 - 0.05 * i) for i in range(12)) == 0.0


def act_drops(shares, *, rising=True, prompts=10, size=4):
    """The falls of an act with these shares, whose prompts are right or wrong as a whole, and of another one."""
    window = ActTruthWindow(size=size)
    drops = []
    for step, share in enumerate(shares):
        offers = [1.0] * round(share * prompts) + [0.0] * round((1 - share) * prompts)
        reward = 0.5 + 0.01 * step * (1 if rising else -1)
        drops.append(window.add(reward, {"offer": offers, "bye": [0.8] * prompts}))
    return drops, window.act


def test_falling_act_with_rising_reward_raises_an_alarm_that_names_it():
    drops, act = act_drops([0.9] * 8 + [0.3] * 4)
    assert drops[:8] == [0.0] * 8 and drops[-1] == pytest.approx(0.6)
    assert act == "offer, from 0.90 to 0.30"
    metrics = {"truth/drop": 0.1, "truth/act_drop": drops[-1]}
    flags, _ = alarms(metrics, AlarmsConfig())
    assert flags == {"truth_drop": 0.0, "truth_act_drop": 1.0}


@pytest.mark.parametrize(
    ("shares", "how"),
    [
        ([0.9] * 8 + [0.3] * 4, {"rising": False}),
        ([0.9] * 8 + [0.3] * 4, {"prompts": 2}),
        ([0.6] * 8 + [0.4] * 4, {}),
        ([0.3] * 8 + [0.9] * 4, {}),
        ([0.9] * 3, {}),
    ],
)
def test_chance_rare_acts_and_falling_rewards_are_no_drop_of_an_act(shares, how):
    assert act_drops(shares, **how) == ([0.0] * len(shares), "")


@pytest.mark.parametrize("prompts", [3, 30])
def test_wrong_prompts_are_fewer_than_chance_only_with_enough_data(prompts):
    drops, _ = act_drops([1.0] * 4 + [2 / 3] * 4, prompts=prompts)
    assert (drops[-1] > 0) == (prompts == 30)


@pytest.mark.parametrize(("excess", "raised"), [(0.0, False), (0.02, True)])
def test_certainly_exceeded_limit_of_the_certificate_raises_an_alarm(excess, raised):
    flags, messages = alarms({"audit/bound_excess": excess}, AlarmsConfig())
    assert flags["audit_bound"] == raised and ("audit_bound" in messages) == raised

"""`hamr plan`: its tables, its use of a recorded run, and rejected input."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hamr import cli
from hamr.apps.plan.build import build_cluster, build_workload, turns_of
from hamr.apps.plan.measured import MeasuredStep
from hamr.apps.plan.output import configuration
from hamr.apps.plan.run import read_past, rounds
from hamr.apps.plan.simulation import Cluster, Service
from hamr.apps.plan.sizing import Study
from hamr.apps.plan.tables import title
from hamr.cluster.resource_requests import demands
from hamr.config.load import dump_config, load_config
from hamr.config.schema import Config
from hamr.errors import BadInput, RunFolderError
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.metrics import MetricsWriter
from hamr.telemetry.run_folder import RunFolder
from hamr.types import Component, EpisodeResult, JudgeTimeout, Reply, RewardRecord, SampleKey, Scored, ScorerCall

PAPER = ["experiment=paper_hrm", "schedule=steps"]


def call(pool: str, seconds: float, attempts: int = 1) -> ScorerCall:
    return ScorerCall(
        pool=pool, model="m", prompt_version="1", replica="0", queue_s=0.1, service_s=seconds, prompt_tokens=10,
        output_tokens=1, attempts=attempts,
    )  # fmt: skip


def record(step: int, prompt: str, sample: int, total: float | None, *, run: str = "r") -> RewardRecord:
    """Of a reply (even samples: to the judge), or of a tool call (sample 3)."""
    outcome = JudgeTimeout(detail="late") if total is None else Scored(value=total)
    calls = (call("reranker", 0.2), call("judge", 1.5)) if sample % 2 == 0 else (call("reranker", 0.0, attempts=0),)
    return RewardRecord(
        key=SampleKey(run=run, step=step, prompt=prompt, sample=sample),
        total=outcome,
        components=(Component(name="consistency", outcome=outcome, weight=1.0),),
        action=Reply(content="Hello"),
        band="tool_match" if sample == 3 else "below" if sample % 2 == 0 else "inside",
        calls=() if sample == 3 else calls,
        response_tokens=10 + sample,
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Six steps of two groups of four; the first group of each carries no signal and is replaced in a second round."""
    config = load_config(["experiment=smoke", "rollout.samples_per_prompt=4", "experiment.name=past"])
    with RunFolder.create(tmp_path / "past", dump_config(config)) as folder, Ledger(folder.ledger) as ledger:
        metrics = MetricsWriter(folder.metrics)
        ledger.add([record(0, "x", 0, 1.0, run="r/eval-base")])
        for step in range(1, 7):
            same = [record(step, "a", i, 0.5) for i in range(4)]
            other = [record(step, p, i, i / 4) for p in ("b", "c") for i in range(4)]
            ledger.add([*same, *other])
            timing = {"rollout_score": 8.0, "train": 4.0, "sync": 1.0, "total": 13.5}
            metrics.write(
                step,
                "rl",
                {f"timing/step/{k}": v for k, v in timing.items()}
                | {"policy/tokens": 92.0, "rollout/groups_dropped": 1.0},
            )
        metrics.close()
    return tmp_path / "past"


def test_run_is_read_as_rounds_groups_and_questions(run: Path) -> None:
    past = read_past(run)
    assert [s.step for s in past.steps] == [1, 2, 3, 4, 5, 6]
    step = past.steps[0]
    # Two groups are wanted; the first of two had equal rewards, so that one more was asked for.
    assert [[len(g) for g in groups] for groups in step.rounds] == [[4, 4], [4]]
    first = step.rounds[0][0]
    assert [r.cascaded for r in first] == [True, True, True, False]
    assert first[0].calls == (("reranker", 0.1, 0.2), ("judge", 0.1, 1.5))
    assert first[1].calls == ()  # its answer had been put by another response
    assert (step.rollout_score_s, step.total_s, step.trained_tokens) == (8.0, 13.5, 92.0)


def test_dialogue_is_read_as_one_long_response(tmp_path: Path) -> None:
    """The first group has equal turns and different outcomes, so that it carries signal and is not replaced."""
    config = load_config(["experiment=smoke", "env=sage", "rollout.samples_per_prompt=2", "rollout.max_turns=4"])
    completed = [EpisodeResult(outcome="ended", components=(component("completion", value),)) for value in (0.0, 1.0)]
    with RunFolder.create(tmp_path / "past", dump_config(config)) as folder, Ledger(folder.ledger) as ledger:
        metrics = MetricsWriter(folder.metrics)
        for prompt in "ab":
            turns = [replace(record(1, prompt, 0, 0.5), key=key(prompt, i, turn)) for i in (0, 1) for turn in (0, 1, 2)]
            for i, end in zip((2, 5), completed, strict=True):
                turns[i] = replace(turns[i], episode=end)
            ledger.add(turns)
        metrics.write(1, "rl", {"timing/step/rollout_score": 8.0, "timing/step/train": 4.0, "timing/step/total": 13.5})
        metrics.close()
    past = read_past(tmp_path / "past")
    assert [[len(g) for g in groups] for groups in past.steps[0].rounds] == [[2, 2]]
    first = past.steps[0].rounds[0][0][0]
    assert first.tokens == 30 and first.calls == (("reranker", 0.1, 0.2), ("judge", 0.1, 1.5)) * 3
    workload = build_workload(configuration([], tmp_path / "past"), past)
    assert workload.responses == 4 and workload.first_questions == 3.0 and workload.longest == 12 * 4 / 30


def equal_group(prompt: str, value: float, tokens: int = 4) -> list[RewardRecord]:
    return [replace(record(1, prompt, i, value), response_tokens=tokens) for i in range(4)]


def component(name: str, value: float) -> Component:
    return Component(name=name, outcome=Scored(value=value), weight=1.0)


def group_of_equal_sums() -> list[RewardRecord]:
    return [
        replace(r, components=(component("consistency", i % 2), component("completion", 1 - i % 2)))
        for i, r in enumerate(equal_group("a", 1.0))
    ]


MIXED = [record(1, "a", i, i / 4) for i in range(4)]


@pytest.mark.parametrize(
    ("overrides", "trained", "dropped"),
    [
        (["algorithm.all_wrong.reference=true"], equal_group("a", 0.0), equal_group("b", 1.0)),
        (["rewards.normalise=gdpo"], group_of_equal_sums(), equal_group("b", 1.0)),
        (
            ["algorithm.overlong.enabled=true", "rollout.max_new_tokens=20"],
            [replace(r, response_tokens=12 + i) for i, r in enumerate(equal_group("a", 1.0))],
            equal_group("b", 1.0, tokens=12),
        ),
        (
            ["algorithm.overlong.filter=true", "rollout.max_new_tokens=20"],
            [replace(r, response_tokens=20, answer_tokens=5) for r in MIXED],  # a rationale after the answer is cut off
            [replace(r, key=replace(r.key, prompt="b"), response_tokens=20, answer_tokens=20) for r in MIXED],
        ),
    ],
    ids=["reference", "gdpo", "overlong", "filter"],
)
def test_groups_of_a_run_are_dropped_as_by_the_controller(
    overrides: list[str], trained: list[RewardRecord], dropped: list[RewardRecord], tmp_path: Path
) -> None:
    settings = ["experiment=smoke", "experiment.prompts_per_step=2", *overrides]
    step = read_one_step(tmp_path, [*settings, "experiment.asynchrony.max_policy_age=1"], [*trained, *dropped])
    assert (step.signal, step.groups_dropped) == ((True, False), 1)
    config = load_config(settings)
    assert [len(r) for r in rounds(config, [trained, dropped, dropped, trained])] == [2, 1, 1]
    assert [len(r) for r in rounds(config, [dropped, dropped, trained, trained])] == [2, 2]


@pytest.mark.parametrize("more", [0, 2])
def test_further_samples_of_an_all_wrong_group_belong_to_it(more: int, tmp_path: Path) -> None:
    def attempt(number: int, samples: int) -> list[RewardRecord]:
        return [replace(r, key=replace(r.key, attempt=number)) for r in equal_group("a", 0.0)[:samples]]

    overrides = ["experiment=smoke", f"algorithm.all_wrong.more_samples={more}"]
    step = read_one_step(tmp_path, overrides, [*attempt(0, 4), *attempt(1, 2), *attempt(2, 4)])
    assert [len(g) for r in step.rounds for g in r] == ([6, 4] if more else [4, 2, 4])


def read_one_step(path: Path, overrides: list[str], records: list[RewardRecord]) -> MeasuredStep:
    """Return the step of a run that has only this one."""
    with RunFolder.create(path / "past", dump_config(load_config(overrides))) as folder:
        with Ledger(folder.ledger) as ledger:
            ledger.add(records)
        metrics = MetricsWriter(folder.metrics)
        timing = {"timing/step/rollout_score": 8.0, "timing/step/train": 4.0, "timing/step/total": 13.5}
        metrics.write(1, "rl", timing | {"rollout/responses": len(records)})
        metrics.close()
    [step] = read_past(path / "past").steps
    return step


def key(prompt: str, sample: int, turn: int) -> SampleKey:
    return SampleKey(run="r", step=1, prompt=prompt, sample=sample, turn=turn)


def test_dialogues_without_a_run_have_the_assumed_turns() -> None:
    one = load_config(PAPER)
    dialogues = load_config([*PAPER, "env=sage", "rewards.normalise=sum", "plan.turns=5"])
    single, many = build_workload(one, None), build_workload(dialogues, None)
    assert many.responses == single.responses and many.first_questions == 5 * single.first_questions
    fast, slow = build_cluster(one, single, None), build_cluster(dialogues, many, None)
    assert slow.rollout.service.fixed_s == pytest.approx(5 * fast.rollout.service.fixed_s)
    assert slow.train_s > 5 * fast.train_s, "later prompts are not shared"
    assert turns_of(load_config([*PAPER, "env=sage", "rewards.normalise=sum", "rollout.max_turns=12"])) == 6


def test_groups_without_dynamic_sampling_form_one_round() -> None:
    config = load_config(["experiment=smoke", "algorithm=grpo", "experiment.prompts_per_step=3"])
    groups = [[record(1, p, i, 0.5) for i in range(2)] for p in "abc"]
    assert [len(r) for r in rounds(config, groups)] == [3]


def test_workload_takes_fractions_and_times_from_the_run(run: Path) -> None:
    past, config = read_past(run), configuration([], run)
    workload = build_workload(config, past)
    assert workload.cascaded_frac == pytest.approx(3 / 4)
    # Of three replies two were put to both; the third shared the answer of a sibling.
    assert workload.first_questions == pytest.approx(2 / 3)
    assert workload.escalated_frac == pytest.approx(2 / 3)
    assert workload.second_questions == 1.0
    assert workload.dropped_frac == pytest.approx(1 / 3)
    assert set(workload.length.observed) == {10.0, 11.0, 12.0, 13.0}
    cluster = build_cluster(config, workload, past)
    assert cluster.pools["judge"].service == Service(fixed_s=1.5)
    assert cluster.pools["reranker"].service == Service(fixed_s=pytest.approx(0.2))
    assert cluster.train_s == pytest.approx(4.0 * 8 / 12 * 12 / 8, rel=0.01)
    assert cluster.sync_s == pytest.approx(1.5)


def test_explicit_settings_override_measurements(run: Path) -> None:
    config = configuration(["plan.escalated_frac=1.0", "pools.judge.replicas=3"], run)
    assert config.experiment.name == "past"
    assert config.plan.model_fields_set == {"escalated_frac"}
    past = read_past(run)
    workload = build_workload(config, past)
    assert workload.escalated_frac == 1.0
    named = configuration(["plan.references=4"], run)
    assert build_workload(named, past).first_questions == 4.0
    assert workload.cascaded_frac == pytest.approx(3 / 4)
    assert build_cluster(config, workload, past).pools["judge"].replicas == 3


def test_parts_absent_from_the_run_use_defaults(run: Path) -> None:
    past = read_past(run)
    config = load_config(PAPER)
    cluster = build_cluster(config, build_workload(config, past), past)
    assumed = build_cluster(config, build_workload(config, None), None)
    assert cluster.pools["judge"].service.fixed_s > 1.6
    assert cluster.train_s == assumed.train_s
    assert cluster.rollout.service == assumed.rollout.service


def test_shared_pool_serves_questions_of_all_its_rewards() -> None:
    asked = ["experiment=smoke", "rewards.dialogue.weight=1.0", "rewards.risk.weight=1.0"]
    config = load_config(asked)
    assert build_workload(config, None).side == {config.rewards.dialogue.pool: 2.0}


def test_judge_only_mode_escalates_every_reply() -> None:
    config = load_config([*PAPER, "rewards.consistency.mode=soft_judge"])
    assert config.plan.escalated_frac < build_workload(config, None).escalated_frac == 1.0


def test_measured_training_scales_with_batch_length_and_epochs(run: Path) -> None:
    past = read_past(run)
    steps = [
        replace(s, trained_tokens=100.0 * n, train_s=1.0 + n, total_s=20.0 + n) for n, s in enumerate(past.steps, 1)
    ]
    past = replace(past, steps=tuple(steps))
    config = configuration([], run)
    larger = configuration([f"experiment.prompts_per_step={2 * config.experiment.prompts_per_step}"], run)
    longer = configuration([f"plan.response_tokens={2 * past.fit.mean_tokens}"], run)
    repeated = configuration(["algorithm.epochs=2"], run)
    seconds = [build_cluster(c, build_workload(c, past), past).train_s for c in (config, larger, longer, repeated)]
    assert seconds == pytest.approx([1.0 + 3.5, 1.0 + 2 * 3.5, 1.0 + 2 * 3.5, 2 * (1.0 + 3.5)])


def test_scorer_time_grows_with_the_response_length() -> None:
    short, long = (load_config([*PAPER, f"plan.response_tokens={n}"]) for n in (100, 1000))
    assert _cluster(short).pools["judge"].service.each_s < _cluster(long).pools["judge"].service.each_s


def test_training_time_scales_with_epochs() -> None:
    once, twice = (load_config([*PAPER, f"algorithm.epochs={n}"]) for n in (1, 2))
    assert _cluster(twice).train_s == 2 * _cluster(once).train_s


def test_prompt_is_prefilled_once_per_group() -> None:
    few, many = (load_config([*PAPER, f"rollout.samples_per_prompt={n}"]) for n in (2, 16))
    assert _cluster(many).rollout.service.each_s < _cluster(few).rollout.service.each_s


def _cluster(config: Config) -> Cluster:
    return build_cluster(config, build_workload(config, None), None)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ((), "training: layout shared_prompt, attention kernel sdpa"),
        (("experiment=gpu_80gb",), "training: layout shared_prompt, attention kernel flex"),
        (("experiment=gpu_80gb", "trainer.attention=padded"), "training: layout padded, attention kernel sdpa"),
    ],
)
def test_title_names_layout_and_kernel(overrides: tuple[str, ...], says: str) -> None:
    config = load_config(list(overrides))
    assert says in title(config, build_workload(config, None), None).text.splitlines()


def test_plan_pads_a_model_with_sliding_windows(tmp_path: Path) -> None:
    config = {
        "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 1024,
        "vocab_size": 1000, "sliding_window": 4096,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    slides = load_config([*PAPER, f"model.path={tmp_path}"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "config.json").write_text(json.dumps(config | {"sliding_window": None}))
    full = load_config([*PAPER, f"model.path={tmp_path}/full"])
    assert "training: layout padded, attention kernel sdpa" in title(slides, build_workload(slides, None), None).text
    assert _cluster(slides).train_s > 1.5 * _cluster(full).train_s


def test_plan_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.main(["plan", *PAPER, "plan.draws=1"]) == 0
    out = capsys.readouterr().out
    assert "128 responses = (8 groups) x 16" in out
    assert re.search(r"pools\.judge +1 +\d+ +4 +4 +\d+", out)
    # Qwen3-32B in 16 bits over 4 GPUs.
    assert "per GPU 15.3 GiB weights" in out
    assert re.search(r"without limit +\d", out)
    assert "time saved in the configured step by: unlimited pools.judge" in out


@pytest.mark.parametrize(("bounds", "now"), [("{min_replicas: 2, max_replicas: 4}", 2), ("null", 1)])
def test_current_demand_matches_run_reservations(
    bounds: str, now: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    overrides = [*PAPER, "pools.judge.replicas=1", f"pools.judge.autoscaling={bounds}"]
    config = load_config(overrides)
    assert sum(d.count for d in demands(config) if d.key.startswith("pools.judge.")) == now
    assert cli.main(["plan", *overrides, "plan.draws=1"]) == 0
    assert re.search(rf"pools\.judge +{now} +\d+ +4 +{4 * now} ", capsys.readouterr().out)


@pytest.mark.parametrize("experiment", ["paper_hrm", "olamind_stage1", "olamind_stage2"])
def test_shipped_experiments_have_no_reward_timeouts(experiment: str) -> None:
    config = load_config([f"experiment={experiment}", "data=sage"])
    workload = build_workload(config, None)
    study = Study(workload, build_cluster(config, workload, None), draws=1)
    assert study.play(study.cluster).late == 0


def test_late_rewards_are_counted_with_the_required_deadline(
    capsys: pytest.CaptureFixture[str],
) -> None:
    overrides = [*PAPER, "plan.draws=1", "router.deadline_s=30", "pools.judge.autoscaling={max_replicas: 8}"]
    assert cli.main(["plan", *overrides]) == 0
    told = re.search(
        r"(\d+) of 128 rewards would time out at router\.deadline_s=30: the slowest takes (\d+) s, (\d+) s with "
        r"maximum pools, (\d+) s with as many as needed",
        capsys.readouterr().out,
    )
    assert told is not None
    late, slowest, scaled, _ = map(int, told.groups())
    assert 0 < late < 128
    assert slowest > max(30, scaled)
    assert cli.main(["plan", *overrides, f"router.deadline_s={slowest + 1}"]) == 0
    assert "would time out" not in capsys.readouterr().out


def test_measured_run_is_compared_with_its_prediction(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", f"from={run}"]) == 0
    out = capsys.readouterr().out
    assert "measured in 6 steps of past" in out
    assert len(re.findall(r"^ +\d+ .* fitted to *$", out, re.MULTILINE)) == 3
    errors = re.search(r"on predicted steps: (\d+)% of generating and scoring, (\d+)% of the whole step", out)
    assert errors is not None
    assert max(map(int, errors.groups())) <= 1  # every step of this run took the same time


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["experiment=quickstart"], "trainer.num_gpus: 0.0: the speed of a CPU is unknown"),
        ([*PAPER, "pools.judge.model=acme/oracle"], "pools.judge.model: 'acme/oracle': its size is not known"),
        ([*PAPER, "plan.gpu=v100"], "plan.gpu"),
        ([*PAPER, "launch=kuberay"], "launch: 'kuberay': name the folder for its files: output=DIR"),
        ([*PAPER, "output=there"], "nothing to write; choose launch=kuberay|slurm|ray"),
    ],
)
def test_bad_input_is_reported_in_one_line(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *args]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_asynchronous_run_is_measured_and_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Six steps of two groups of four, of which the first of each step started in the step before; another was
    dropped."""
    overrides = ["experiment=smoke", "rollout.samples_per_prompt=4", "experiment.asynchrony.max_policy_age=1"]
    config = load_config([*overrides, "experiment.name=past"])
    with RunFolder.create(tmp_path / "past", dump_config(config)) as folder, Ledger(folder.ledger) as ledger:
        metrics = MetricsWriter(folder.metrics)
        for step in range(1, 7):
            dropped = [record(step, "a", i, 0.5) for i in range(4)]
            early = [record(max(1, step - 1), f"b{step}", i, i / 4) for i in range(4)]
            ledger.add([*dropped, *early, *(record(step, "c", i, i / 4) for i in range(4))])
            timing = {"rollout_score": 1.0, "train": 4.0, "sync": 1.0, "total": 6.0}
            values = {f"timing/step/{k}": v for k, v in timing.items()}
            metrics.write(step, "rl", values | {"policy/tokens": 92.0, "rollout/responses": 12.0})
        metrics.close()
    past = read_past(folder.path)
    assert [[len(g) for g in step.rounds[0]] for step in past.steps] == [[4, 4, 4]] * 6
    assert {step.signal for step in past.steps} == {(False, True, True)}
    workload = build_workload(config, past)
    assert (workload.dropped_frac, workload.rounds) == (pytest.approx(1 / 3), (3,))
    assert cli.main(["plan", f"from={folder.path}"]) == 0
    out = capsys.readouterr().out
    assert "at most 4 groups are generated, scored or trained on during it" in out
    errors = re.search(r"on predicted steps: (\d+)% of waiting for groups, (\d+)% of the whole step", out)
    assert errors is not None
    [waiting] = re.findall(r"pools as configured +(\S+) +(\S+) +4\.0 +1\.0", out)
    assert 5.0 <= float(waiting[0]) <= 6.5


def test_folder_without_a_trained_step_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no such folder"):
        read_past(tmp_path / "nowhere")
    with RunFolder.create(tmp_path / "new", dump_config(load_config(["experiment=smoke"]))) as folder:
        pass
    with pytest.raises(BadInput, match="no finished step of RL"):
        read_past(folder.path)


def test_files_of_a_run_have_its_configuration(run: Path) -> None:
    config = configuration(["launch=slurm", "trainer.ranks=2"], run)
    assert (config.launch.kind, config.trainer.ranks) == ("slurm", 2)
    assert config.experiment.name == "past"
    with pytest.raises(BadInput, match=r"trainer=zero3.*: does not change the configuration of a run"):
        configuration(["trainer=zero3"], run)

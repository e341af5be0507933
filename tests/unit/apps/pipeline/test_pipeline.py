"""`hamr train pipeline=...`: checks before the start, stages, stops, resumption and the report."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from hamr.apps.calibrate.run import MANY_ESCALATED
from hamr.apps.pipeline.command import RunPipeline
from hamr.apps.pipeline.log import PLAN, PipelineLog
from hamr.apps.pipeline.plan import PipelinePlan, PipelineStage, plan_pipeline
from hamr.apps.pipeline.report import write_pipeline_report
from hamr.apps.pipeline.run import RunProcess, _lock_folder, _run, prepare_command, resume, start
from hamr.apps.shared.commands import parse, parse_command, render
from hamr.apps.train.command import TrainCommand
from hamr.config.load import dump_config, load_config
from hamr.config.pipeline import read_pipeline
from hamr.config.resources import resource
from hamr.errors import BadInput, Preempted, RunFolderError
from hamr.security.processes import has_ended, identity

CONFIG = dump_config(load_config(["experiment=smoke"]))
SHIPPED = sorted(file.stem for file in resource("conf", "pipeline").glob("*.yaml"))

TEXT = """\
name: mine
inputs: {experts: dialogues}
stages:
  - name: talk
    job: data sage
    args: [data.sage.train=8, thoughts=pre]
  - name: sft
    job: sft
    args: [experiment=sft_small, "sft.sets=[{path: @talk.items}, {path: @inputs.experts}]"]
  - name: rl
    job: train
    args: [experiment=smoke, model.path=@sft.policy, data.type=jsonl, data.train=@talk.train]
  - name: best
    job: data sampled
    args: [input=@talk.train, ledger=@rl.run, min_total=0.5]
"""


@pytest.fixture
def given(tmp_path: Path) -> list[str]:
    (tmp_path / "mine.yaml").write_text(TEXT)
    (tmp_path / "experts.jsonl").write_text("{}\n")
    return [f"pipeline={tmp_path}/mine.yaml", f"inputs.experts={tmp_path}/experts.jsonl",
            f"experiment.run_dir={tmp_path}/run"]  # fmt: skip


def plan(args: Sequence[str]) -> PipelinePlan:
    return plan_pipeline(parse(RunPipeline, args))


def main(args: Sequence[str], run: RunProcess) -> int:
    """Run or resume a pipeline with stand-ins for its processes."""
    command = parse_command(["train", *args])
    if isinstance(command, RunPipeline):
        return start(command, run)
    assert isinstance(command, TrainCommand) and command.resume is not None
    return resume(command.resume, run)


def options(args: Sequence[str]) -> dict[str, str]:
    return dict(arg.split("=", 1) for arg in args if "=" in arg)


class Runs:
    """Scripted processes: write the files of each job, unless configured otherwise."""

    def __init__(self, behave: Callable[[list[str], Path], int | None] = lambda args, folder: None) -> None:
        self.seen: list[list[str]] = []
        self.behave = behave

    def __call__(self, args: Sequence[str]) -> int:
        self.seen.append(list(args))
        own = options(args)
        place = Path(own.get("resume") or own.get("experiment.run_dir") or own["output"])
        code = self.behave(list(args), place)
        return self.leave(list(args), place) if code is None else code

    def leave(self, args: list[str], place: Path) -> int:
        if args[0] in ("train", "sft"):
            for step in (0, 4):
                (place / f"checkpoints/step_{step}/policy").mkdir(parents=True)
                (place / f"checkpoints/step_{step}/zero").mkdir()
                (place / f"checkpoints/step_{step}/state.json").write_text("{}")
            (place / "config.yaml").write_text(CONFIG)
            (place / "summary.json").write_text(json.dumps(SUMMARIES[args[0]]))
        elif args[1] == "sage":
            place.mkdir(exist_ok=True)
            (place / "train.jsonl").write_text('{"id": "a"}\n')
        else:
            place.write_text("{}\n{}\n")
            place.with_name(f"{place.name}.counts.jsonl").write_text('{"what": "dropped: a duplicate", "count": 3}\n')
        return 0


SUMMARIES = {
    "sft": {
        "steps": 4,
        "sft": {
            "sets": {"items": {"train": 8}},
            "validations": [{"step": s, "sets": {"items": {"loss": loss}}} for s, loss in ((0, 2.5), (4, 1.25))],
        },
    },
    "train": {
        "steps": 4,
        "stages": {
            when: {
                "n": 8, "action_accuracy": share, "reward": {"total": share}, "tool_exact_match": None,
                "by_format": {"post_cot": {"n": 3.0, "action_accuracy": share, "answer_tokens": 12.5}},
            }
            for when, share in (("base", 0.25), ("rl", 0.75))
        },
    },
}  # fmt: skip


# --- shipped pipelines -------------------------------------------------------------------------


def empty_inputs(name: str, folder: Path) -> list[str]:
    """Return the inputs of a shipped pipeline: empty files, and a folder that `hamr calibrate` could have written."""
    (folder / "data.jsonl").write_text("{}\n")
    (folder / "fit" / "rewards").mkdir(parents=True)
    (folder / "fit" / "rewards" / "calibrated.yaml").write_text("consistency: {mode: hybrid}\n")
    names = read_pipeline(resource("conf", f"pipeline/{name}.yaml")).pipeline.inputs
    return [f"inputs.{key}={folder}/{'fit' if key == 'cascade' else 'data.jsonl'}" for key in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_pipeline_is_complete(name: str, tmp_path: Path) -> None:
    pipeline = read_pipeline(resource("conf", f"pipeline/{name}.yaml")).pipeline
    inputs = empty_inputs(name, tmp_path)
    planned = plan([f"pipeline={name}", *inputs])
    assert pipeline.name == name
    assert {s.name for s in planned.stages if s.job in ("train", "sft")} <= set(planned.configs)
    if name.endswith("_small"):
        assert not inputs
        assert all(c.trainer.num_gpus == c.rollout.engine.num_gpus == 0 for c in planned.configs.values())


def test_held_out_samples_also_get_further_references(tmp_path: Path) -> None:
    """Table 3 of the first paper. With one reference per sample, Multi-ECS equals Single-ECS."""
    (tmp_path / "data.jsonl").write_text("{}\n")
    names = read_pipeline(resource("conf", "pipeline/hrm.yaml")).pipeline.inputs
    inputs = [f"inputs.{key}={tmp_path}/data.jsonl" for key in names]
    data = plan(["pipeline=hrm", *inputs, f"experiment.run_dir={tmp_path}/run"]).configs["rl"].data
    made = [Path(str(path)).parent.name.partition("-")[2] for path in (data.train, data.validation, data.test)]
    assert made == ["multigt", "multigt_validation", "multigt_test"]


def test_arms_of_table_5_are_one_pipeline() -> None:
    """Second paper, Table 5: LLM-CoT RFT, human-reply SFT, single-stage RL, and Stage 2 without one reward."""
    names = read_pipeline(resource("conf", "pipeline/olamind_ablations.yaml")).pipeline.inputs
    planned = plan(["pipeline=olamind_ablations", *(f"inputs.{name}={__file__}" for name in names)])
    stages = {stage.name: stage for stage in planned.stages}
    assert not any("zero_think=" in arg for arg in stages["llm_cot_items"].args), "the teacher writes the chains"
    assert planned.configs["human_reply"].sft.kinds == ("decision",)
    assert stages["single_stage"].takes[0] == ("inputs", "cold_start")
    assert planned.configs["single_stage"].rewards.hallucination.weight == 3.0
    rewards = ("rubric", "dialogue", "policy", "tool", "risk", "hallucination")
    for reward in rewards:
        assert stages[f"without_{reward}"].takes[0] == ("inputs", "re_cold_start")
        assert set(planned.configs[f"without_{reward}"].rewards.judges) == {*rewards} - {reward}
    for arm in ("llm_cot", "human_reply", "single_stage", *(f"without_{reward}" for reward in rewards)):
        assert stages[f"{arm}_bench"].job == "evaluate" and (arm, "run") in stages[f"{arm}_bench"].takes


@pytest.mark.parametrize(("name", "splits"), [("hrm", ("validation", "test")), ("hrm_small", ("test",))])
def test_held_out_samples_have_the_online_stream_too(name: str, splits: Sequence[str]) -> None:
    stages = {s.name: s for s in read_pipeline(resource("conf", f"pipeline/{name}.yaml")).pipeline.stages}
    for split in splits:
        answers, multigt = stages[f"answers_{split}"], stages[f"multigt_{split}"]
        assert answers.job == "generate" and "policy=@preliminary.run" in answers.args
        assert f"ledger=@answers_{split}.folder" in multigt.args


def test_ablations_are_the_arms_of_the_first_papers_tables(tmp_path: Path) -> None:
    planned = plan(["pipeline=hrm_ablations", *empty_inputs("hrm_ablations", tmp_path)])
    configs, stages = planned.configs, {stage.name: stage for stage in planned.stages}
    arms = [name for name, stage in stages.items() if stage.job == "train"]
    start = {arm: next((s for s, output in stages[arm].takes if output == "policy"), None) for arm in arms}
    default = "sft_mix_dra"
    other = {"from_base": None, "from_decision": "sft_decision", "from_mix": "sft_mix"}
    assert start == dict.fromkeys(arms, default) | other | {"from_decision_dra": "sft_decision_dra"}
    modes = {arm: (configs[arm].rewards.consistency.mode, configs[arm].rewards.consistency.hard_part) for arm in arms}
    rewards = {"reranker": ("reranker", 0.5), "hard_judge": ("hard_judge", 0.0), "soft_judge": ("soft_judge", 0.5)}
    assert modes == dict.fromkeys(arms, ("hybrid", 0.5)) | rewards
    assert [arm for arm in arms if "data=@inputs.multi" in stages[arm].args] == ["multi_gt"]
    for arm in arms:
        assert configs[arm].data.max_eval is None
        assert arm == "from_base" or configs[arm].model.response_format == configs[start[arm]].model.response_format
        assert arm == "ours" or "compare=@ours.run" in stages[f"ecs_{arm}"].args
    scored = {stages[name].takes[0][0] for name in stages if name.startswith("ecs_start")}
    assert {start[arm] for arm in scored} == {None, "sft_decision", "sft_decision_dra", "sft_mix", "sft_mix_dra"}


@pytest.mark.parametrize(
    ("name", "by_teachers"),
    [("hrm", {"plans", "plan_reasons", "reasons"}), ("olamind", {"extract", "migrate", "rubrics"})],
)
def test_small_pipeline_has_the_stages_of_the_large_one(name: str, by_teachers: set[str]) -> None:
    """All but those whose data the procedure of the generated dialogues gives in place of teachers."""
    large, small = (
        [(s.name, s.job) for s in read_pipeline(resource("conf", f"pipeline/{n}.yaml")).pipeline.stages]
        for n in (name, f"{name}_small")
    )
    made = {"dialogues", "items"}
    assert [stage for stage in small if stage[0] not in made] == [s for s in large if s[0] not in by_teachers]


def test_small_stage_2_asks_a_hallucination_judge_trained_on_planted_responses() -> None:
    planned = plan(["pipeline=olamind_small"])
    stages, config = {stage.name: stage for stage in planned.stages}, planned.configs["stage_2"]
    judge = config.pools[config.rewards.hallucination.pool].finetune
    assert config.rewards.hallucination.weight == 3.0
    assert judge is not None and judge.lora is not None and judge.reward == "hallucination"
    assert ("items", "planted") in stages["stage_2"].takes
    assert ("responses", "folder") in stages["sampled"].takes and ("stage_1", "run") in stages["responses"].takes
    assert planned.configs["bench"].pools["hall_judge"] == config.pools["hall_judge"], "it is trained once"


@pytest.mark.parametrize("name", ["hrm", "hrm_small"])
def test_last_stages_measure_the_results_of_the_first_paper(name: str) -> None:
    last = read_pipeline(resource("conf", f"pipeline/{name}.yaml")).pipeline.stages[-1]
    assert (last.job, last.args[:2]) == ("evaluate", ("benchmark=ecs", "run=@rl.run"))


def test_report_has_the_scores_of_evaluations(tmp_path: Path) -> None:
    (tmp_path / "run" / "1-ecs").mkdir(parents=True)
    values = {"multi_ecs": 0.441, "single_ecs": 0.347, "call_tool_accuracy": None}
    told = {name: {"mean": mean, "low": mean, "high": mean} for name, mean in values.items()}
    found = {"between_judges": [], "policies": {"rl-run": {"values": told}}}
    (tmp_path / "run" / "1-ecs" / "metrics.json").write_text(json.dumps(found))
    stage = {"number": 1, "name": "ecs", "job": "evaluate", "args": ["benchmark=ecs"], "folder": "1-ecs"}
    (tmp_path / "run" / "pipeline.json").write_text(json.dumps({"name": "mine", "stages": [stage]}))
    html = write_pipeline_report(tmp_path / "run").read_text()
    assert "Multi-ECS" in html and "0.441" in html and "0.347" in html


@pytest.mark.parametrize("name", ["hrm", "hrm_small"])
def test_cascade_of_the_hybrid_reward_is_fitted_with_a_bound(name: str) -> None:
    stages = read_pipeline(resource("conf", f"pipeline/{name}.yaml")).pipeline.stages
    (fit,) = (stage for stage in stages if stage.job == "calibrate")
    (bound,) = (arg for arg in fit.args if arg.startswith("max_escalated_frac="))
    assert float(bound.partition("=")[2]) <= MANY_ESCALATED


def test_olamind_stages_have_the_values_of_the_paper() -> None:
    empty = __file__
    names = read_pipeline(resource("conf", "pipeline/olamind.yaml")).pipeline.inputs
    planned = plan(["pipeline=olamind", *(f"inputs.{n}={empty}" for n in names)])
    configs = planned.configs
    for name, rate in (("zero_think", 3e-5), ("cold_start", 3e-5), ("re_cold_start", 2e-5)):
        c = configs[name]
        assert (c.sft.batch_size, c.sft.epochs, c.trainer.learning_rate, c.trainer.warmup_frac) == (128, 1, rate, 0.05)
    assert configs["zero_think"].sft.kinds == ("decision_dra",)
    assert configs["cold_start"].sft.kinds == configs["re_cold_start"].sft.kinds == ("decision_dra", "decision_post")
    assert configs["re_cold_start"].model.path == configs["cold_start"].model.path == "Qwen/Qwen3-4B"
    for name, kl, asked in (("stage_1", 1e-4, "think_answer"), ("stage_2", 1e-3, "hybrid")):
        c = configs[name]
        assert (c.algorithm.name, c.algorithm.kl.coef, c.model.response_format) == ("grpo", kl, asked)
        assert (c.experiment.prompts_per_step, c.rollout.samples_per_prompt, c.algorithm.minibatches) == (256, 16, 1)
        assert (c.rollout.top_p, c.rollout.temperature, c.rollout.max_new_tokens) == (0.95, 1.0, 1024)
        assert (c.trainer.learning_rate, c.trainer.warmup_frac) == (1e-6, 0.2)
    assert set(configs["stage_1"].rewards.judges) == {"dialogue", "policy", "tool", "rubric"}
    assert configs["stage_2"].rewards.hallucination.weight == 3.0
    assert configs["stage_2"].rewards.hallucination.pool == "hall_judge"
    judge = configs["stage_2"].pools["hall_judge"].finetune
    assert judge is not None and judge.lora is not None and judge.labelled == empty
    assert (judge.batch_size, judge.epochs, judge.learning_rate, judge.warmup_frac) == (16, 3, 1e-5, 0.05)
    assert (judge.examples, judge.num_gpus, judge.dtype) == (80_000, 1, "bfloat16")
    order = [stage.name for stage in planned.stages if stage.name not in ("extract", "migrate", "rubrics")]
    assert order == ["zero_think", "cold_start", "stage_1", "responses", "sampled", "re_cold_start", "stage_2", "bench"]
    taken = {stage.name: {name for name, _ in stage.takes} for stage in planned.stages}
    assert "cold_start" in taken["stage_1"] and taken["responses"] == {"rubrics", "stage_1"}
    assert taken["sampled"] == {"rubrics", "responses"} and configs["responses"].rewards == configs["stage_1"].rewards
    assert taken["re_cold_start"] == {"sampled"} and "re_cold_start" in taken["stage_2"]


# --- the plan ----------------------------------------------------------------------------------


def test_stage_commands_match_those_a_user_would_type(given: list[str], tmp_path: Path) -> None:
    planned = plan([*given, "stages.rl.experiment.steps=3", "logging.console=false"])
    talk, sft, rl, best = (render(stage.command(planned.paths(planned=True))) for stage in planned.stages)
    run = tmp_path / "run"
    assert talk == ["data", "sage", f"output={run}/1-talk", "thoughts=pre", "data.sage.train=8"]
    sets = f"sft.sets=[{{path: {run}/1-talk/items.jsonl}}, {{path: {tmp_path}/experts.jsonl}}]"
    assert sft == ["sft", "experiment=sft_small", sets, "logging.console=false", f"experiment.run_dir={run}/2-sft"]
    assert f"model.path={run}/2-sft/checkpoints/step_<last>/policy" in rl and "experiment.steps=3" in rl
    assert best == ["data", "sampled", f"input={run}/1-talk/train.jsonl", f"ledger={run}/3-rl",
                    f"output={run}/4-best/output.jsonl", "min_total=0.5"]  # fmt: skip
    assert planned.configs["rl"].experiment.steps == 3


def test_path_with_hydra_syntax_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "a, b").mkdir()
    experts = tmp_path / "a, b" / "x.jsonl"
    experts.write_text("{}\n")
    (tmp_path / "mine.yaml").write_text(TEXT)
    args = [f"pipeline={tmp_path}/mine.yaml", f"inputs.experts={experts}", f"experiment.run_dir={tmp_path}/a, b/run"]
    config = plan(args).configs["sft"]
    assert config.sft.sets[1].path == str(experts)


def test_dry_run_prints_commands_and_creates_nothing(given: list[str], tmp_path: Path, capsys) -> None:
    def never(args: Sequence[str]) -> int:
        raise AssertionError(args)

    assert main([*given, "dry_run=true"], never) == 0
    said = capsys.readouterr().out
    assert f"hamr data sage {shlex.quote(f'output={tmp_path}/run/1-talk')} thoughts=pre data.sage.train=8" in said
    assert "3. rl (takes sft.policy, talk.train)" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("experiment=smoke", "experiment=smok", "mine.yaml:12: stages.rl: experiment: 'smok': no such choice"),
        ("experiment=smoke", "trainer.learning_rat=1", "mine.yaml:12: stages.rl: trainer.learning_rat: unknown key"),
        ("min_total=0.5", "min_totl=0.5", "mine.yaml:15: stages.best: "),
        ("min_total=0.5", "min_total=much", "stages.best: min_total: 'much': must be a number"),
        ("min_total=0.5", "output=x", "stages.best: output is set by the pipeline"),
        ("experiment=smoke", "experiment.run_dir=x", "stages.rl: experiment.run_dir is set by the pipeline"),
        ("thoughts=pre", "thoughtz=pre", "mine.yaml:6: stages.talk: "),
        ("@talk.items", "@talk.item", "@talk.item: no such output; there are (nearest first): items"),
        ("model.path=@sft.policy", "model.path=@best.file", "a cycle: rl takes from best takes from rl"),
    ],
)
def test_mistake_in_any_stage_prevents_the_start(
    given: list[str], tmp_path: Path, old: str, new: str, says: str
) -> None:
    (tmp_path / "mine.yaml").write_text(TEXT.replace(old, new))
    runs = Runs()
    with pytest.raises(BadInput) as caught:
        main(given, runs)
    assert says in str(caught.value) and "\n" not in str(caught.value) and "hamr-plan" not in str(caught.value)
    assert runs.seen == [] and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ("dta=bench, policy=judge", "dta"),
        ("data=bench, policy=judge, judge=nobody", "nobody"),
        ("data=bench", "policy"),
        ("data=bench, policy=judge, rewards.risk.weigth=1", "weigth"),
    ],
)
def test_final_evaluation_is_checked_before_the_start(given: list[str], tmp_path: Path, args: str, says: str) -> None:
    last = f"  - name: bench\n    job: evaluate\n    args: [benchmark=olabench, {args}]\n"
    (tmp_path / "mine.yaml").write_text(TEXT + last)
    runs = Runs()
    with pytest.raises(BadInput, match=r"mine\.yaml:1[68]: stages\.bench.*" + says):
        main(given, runs)
    assert runs.seen == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["stages.rll.experiment.steps=3"], "no such stage; there are (nearest first): rl"),
        (["stages.rl"], "write stages.<stage>"),
        (["inputs.other=x"], "no such input; there are: experts"),
        (["inputs.experts=/not/there"], "no such file or folder; it is dialogues"),
        (["dry_run=maybe"], "must be true or false"),
        (["quickstart"], "unknown; a pipeline takes"),
        (["stages.rl.rewards.consistency.mode=hrad"], "stages.rl: rewards.consistency.mode: 'hrad'"),
    ],
)
def test_command_line_mistakes_are_reported(given: list[str], more: list[str], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        main([*given, *more], Runs())
    assert says in str(caught.value)


def test_missing_input_is_reported_with_its_description(given: list[str]) -> None:
    with pytest.raises(BadInput, match=r"inputs.experts: None: missing; give inputs.experts=<dialogues>"):
        main([arg for arg in given if not arg.startswith("inputs")], Runs())


# --- the run -----------------------------------------------------------------------------------


def test_stages_run_in_order_and_only_policies_are_kept(given: list[str], tmp_path: Path) -> None:
    runs = Runs()
    assert main(given, runs) == 0
    run = tmp_path / "run"
    assert [args[:1] if args[0] != "data" else args[:2] for args in runs.seen] == [
        ["data", "sage"], ["sft"], ["train"], ["data", "sampled"]
    ]  # fmt: skip
    assert f"model.path={run}/2-sft/checkpoints/step_4/policy" in runs.seen[2]
    assert [str(p.relative_to(run)) for p in sorted(run.glob("2-sft/checkpoints/*/*"))] == [
        "2-sft/checkpoints/step_4/policy", "2-sft/checkpoints/step_4/state.json"
    ]  # fmt: skip
    again = Runs()
    assert main([f"resume={run}"], again) == 0
    assert again.seen == [], "everything had finished"
    with pytest.raises(BadInput, match="exists and is not empty"):
        main(given, Runs())
    with pytest.raises(BadInput, match="keeps its configuration"):
        main([f"resume={run}", "experiment.seed=3"], Runs())


def test_keep_all_keeps_all_checkpoints(given: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(TEXT + "keep: all\n")
    main(given, Runs())
    assert len(list((tmp_path / "run").glob("2-sft/checkpoints/*/zero"))) == 2


def test_failed_stage_stops_the_pipeline_which_can_be_resumed(given: list[str], tmp_path: Path, capsys) -> None:
    def fail(args: list[str], place: Path) -> int | None:
        if args[0] != "train":
            return None
        place.mkdir(parents=True)
        (place / "config.yaml").write_text(CONFIG)
        return 1

    run = tmp_path / "run"
    assert main(given, Runs(fail)) == 1
    assert f"continue with: hamr train resume={run}" in capsys.readouterr().err
    runs = Runs()
    assert main([f"resume={run}"], runs) == 0
    assert runs.seen[0] == ["train", f"resume={run}/3-rl"], "a run that has begun goes on by its own means"
    assert [args[:2] for args in runs.seen[1:]] == [["data", "sampled"]]
    assert PipelineLog(run).of("rl").attempts == 2


@pytest.mark.parametrize("code", [0, 1])
def test_unfinished_run_keeps_all_checkpoints(given: list[str], tmp_path: Path, code: int) -> None:
    """The checkpoints contain the optimiser state; only a finished run is reduced to its policy."""

    def cut(args: list[str], place: Path) -> int | None:
        if args[0] != "train":
            return None
        Runs().leave(args, place)
        (place / "summary.json").unlink()
        return code

    if code:
        assert main(given, Runs(cut)) == code
    else:
        with pytest.raises(Preempted):
            main(given, Runs(cut))
    assert len(list((tmp_path / "run").glob("3-rl/checkpoints/step_*/zero"))) == 2


@pytest.mark.slow
def test_secret_in_the_arguments_of_a_stage_is_refused(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "canary-7f3a")
    text = TEXT.replace("[experiment=smoke,", "[experiment=smoke, experiment.name=canary-7f3a,")
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(BadInput, match="secret environment variable and would be kept in the folder") as refused:
        plan(given).create()
    assert refused.value.where == "stages.rl"
    assert "canary" not in str(refused.value) and not (tmp_path / "run").exists()


def test_pipeline_folder_is_locked_while_running(given: list[str], tmp_path: Path) -> None:
    def twice(args: list[str], place: Path) -> int | None:
        with pytest.raises(RunFolderError, match="in use by another process"):
            main([f"resume={tmp_path}/run"], Runs())
        return None

    assert main(given, Runs(twice)) == 0


SAGE = (
    "benchmark=sage",
    "scenario=all",
    "agent=scripted:perfect",
    "simulator=scripted:patient",
    "judges=scripted:gold",
)


def test_evaluation_stage_resumes_in_its_folder(tmp_path: Path) -> None:
    """The evaluation resumes by itself and has no `overwrite` option."""
    stage = PipelineStage(number=1, name="test", job="evaluate", args=(*SAGE,), folder=tmp_path / "1-test")
    planned = PipelinePlan(name="mine", folder=tmp_path, keep="all", inputs={}, stages=(stage,))
    first = prepare_command(stage, planned)
    (stage.folder / "traces.jsonl").write_text("{}\n")
    assert (
        prepare_command(stage, planned) == first == ["evaluate", "benchmark=sage", f"output={stage.folder}", *SAGE[1:]]
    )


@pytest.mark.parametrize("begun", [True, False])
def test_killed_pipeline_resumes_without_repeating_stages(given: list[str], tmp_path: Path, begun) -> None:
    """Left behind: a log without the end of its stage, a truncated line, an incomplete folder or recipe."""

    class Killed(Exception):
        pass

    def die(args: list[str], place: Path) -> int | None:
        if args[0] == "sft":
            (place / "plots").mkdir(parents=True)
            if begun:
                (place / "config.yaml").write_text(CONFIG)
            raise Killed
        return None

    run = tmp_path / "run"
    with pytest.raises(Killed):
        main(given, Runs(die))
    with (run / "events.jsonl").open("a") as file:
        file.write('{"stage": "sft", "ev')
    runs = Runs()
    assert main([f"resume={run}"], runs) == 0
    first = runs.seen[0]
    assert first == ["sft", f"resume={run}/2-sft"] if begun else first[:2] == ["sft", "experiment=sft_small"]
    assert (run / "2-sft/plots").exists() == begun, "a run makes its folder itself, and takes no other's"
    assert len(runs.seen) == 3


def test_resumption_waits_for_the_stage_of_a_killed_pipeline(given: list[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(given, Runs(lambda args, place: 1)) == 1
    with subprocess.Popen(["sleep", "0.3"]) as stage:
        named = identity(stage.pid)
        (run / "pipeline.lock").write_text(json.dumps(identity() | {"stage": named}))
        runs = Runs(lambda args, place: None if has_ended(named) else 1)
        assert main([f"resume={run}"], runs) == 0


def test_stage_that_does_not_end_is_named(given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    assert main(given, Runs(lambda args, place: 1)) == 1
    monkeypatch.setattr("hamr.apps.pipeline.run.STAGE_ENDS_S", 0.2)
    with subprocess.Popen(["sleep", "60"]) as stage:
        (run / "pipeline.lock").write_text(json.dumps(identity() | {"stage": identity(stage.pid)}))
        with pytest.raises(RunFolderError, match=rf"has a stage that still runs \(pid {stage.pid}\); end it"):
            main([f"resume={run}"], Runs())
        stage.kill()


def test_lock_names_the_stage_that_runs(tmp_path: Path) -> None:
    with _lock_folder(tmp_path) as started:
        assert _run(["--version"], started, None) == 0
        owner = json.loads((tmp_path / "pipeline.lock").read_text())
    assert owner["pid"] == os.getpid()
    assert has_ended(owner["stage"])
    assert (tmp_path / "pipeline.lock").read_text() == ""


def test_interrupted_recipe_may_overwrite_its_output(given: list[str], tmp_path: Path) -> None:
    def cut(args: list[str], place: Path) -> int | None:
        if args[:2] != ["data", "sampled"]:
            return None
        place.write_text("{}\n")
        return 1

    assert main(given, Runs(cut)) == 1
    runs = Runs()
    assert main([f"resume={tmp_path}/run"], runs) == 0
    assert ["overwrite=true" in args for args in runs.seen] == [True]


def test_stopped_run_is_not_marked_finished(given: list[str], tmp_path: Path) -> None:
    def stop(args: list[str], place: Path) -> int | None:
        if args[0] != "train":
            return None
        place.mkdir(parents=True)
        return 0

    with pytest.raises(
        Preempted, match=r"stage 3 of 4, rl was stopped before its end; continue with: hamr train resume="
    ):
        main(given, Runs(stop))
    assert PipelineLog(tmp_path / "run").of("rl").state == "stopped"


def test_sigterm_stops_the_pipeline_and_prints_the_resume_command(given: list[str], tmp_path: Path) -> None:
    def term(args: list[str], place: Path) -> int | None:
        raise SystemExit(143)

    with pytest.raises(Preempted, match="stopped by SIGTERM in stage 1 of 4, talk; continue with"):
        main(given, Runs(term))
    assert PipelineLog(tmp_path / "run").of("talk").state == "stopped"


def test_stage_ended_by_a_signal_has_failed(given: list[str], tmp_path: Path) -> None:
    assert main(given, Runs(lambda args, place: -9)) == 137
    assert PipelineLog(tmp_path / "run").of("talk").state == "failed"


def test_saved_plan_equals_the_plan(given: list[str], tmp_path: Path) -> None:
    planned = plan(given)
    planned.create()
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700, "its stages hold dialogues of customers"
    kept = PipelinePlan.load(tmp_path / "run")
    assert dataclasses.replace(planned, configs={}) == kept
    file = tmp_path / "run" / "pipeline.json"
    for folder in ("../1-talk", "/home", "..", ""):
        file.write_text(file.read_text().replace('"1-talk"', json.dumps(folder)))
        with pytest.raises(BadInput, match=f"stage 1 has the folder '{folder}'"):
            PipelinePlan.load(tmp_path / "run")
        file.write_text(file.read_text().replace(json.dumps(folder), '"1-talk"'))
    (tmp_path / "run" / "pipeline.json").write_text("{}")
    with pytest.raises(BadInput, match="cannot be read"):
        PipelinePlan.load(tmp_path / "run")


# --- the report --------------------------------------------------------------------------------


def test_report_covers_every_stage_and_cross_stage_figures(given: list[str], tmp_path: Path) -> None:
    main(given, Runs())
    html = (tmp_path / "run" / "report.html").read_text()
    assert "4 of 4 stages finished. The share of right actions went from 25% where rl began to 75% where rl" in html
    for said in (
        "a policy after 4 steps",
        "25.0%",
        "75.0%",
        "2.500",
        "1.250",
        "dropped: a duplicate",
        "post-CoT",
        "12.5",
    ):
        assert said in html, said
    assert parse_command(["report", str(tmp_path / "run")]).run() == 0
    assert "@" not in html.partition("<body>")[2], "references are shown as what they stand for"
    assert "hamr sft experiment=sft_small" in html


def test_report_of_unfinished_pipeline_states_progress(given: list[str], tmp_path: Path) -> None:
    plan(given).create()
    assert "0 of 4 stages finished." in write_pipeline_report(tmp_path / "run").read_text()
    PipelineLog(tmp_path / "run").begin("talk", ["data", "sage"])
    assert "0 of 4 stages finished. talk is not finished." in write_pipeline_report(tmp_path / "run").read_text()


def test_report_of_damaged_pipeline_names_the_file(given: list[str], tmp_path: Path) -> None:
    main(given, Runs())
    summary = next((tmp_path / "run").glob("*/summary.json"))
    for file in (summary, tmp_path / "run" / PLAN):
        for text, said in (("", "is not JSON"), ("[]", "is not a JSON object")):
            file.write_text(text)
            with pytest.raises(RunFolderError, match=f"{file.name}': {said}"):
                write_pipeline_report(tmp_path / "run")
    file.write_text("{}")
    with pytest.raises(RunFolderError, match=f"{file.name}': has no `name` or no list `stages`"):
        write_pipeline_report(tmp_path / "run")


def test_resumed_pipeline_keeps_its_hardware(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="stages of a pipeline keep their hardware"):
        resume(tmp_path, functions=["trainer.ranks=2"])

"""The ablations' parts: data and verdicts by the rule engine, the papers' tables, and a sweep that can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from ablation import tables, world  # noqa: E402
from ablation.arms import PARTS, TERMS, TWINS, Arm, arms, options  # noqa: E402
from ablation.figures import exact_scores, judge_scores, last_third, plain, write_answers  # noqa: E402
from ablation.graders import Grader, served, verdict_json, write_prompts  # noqa: E402
from ablation.runs import Sweep  # noqa: E402
from ablation.verdict import Exact, hear, judged, judged_action  # noqa: E402

from hamr.augmentation.patm_checks import missing_step  # noqa: E402
from hamr.backends.scorer_openai import OpenAIScorer  # noqa: E402
from hamr.config.load import dump_config, load_config  # noqa: E402
from hamr.config.pools import PoolConfig  # noqa: E402
from hamr.config.schema import Config, SageDataConfig  # noqa: E402
from hamr.data.actions import render_action  # noqa: E402
from hamr.data.formats import Formats  # noqa: E402
from hamr.data.pairs import reply_pairs  # noqa: E402
from hamr.data.rendering import dialogue_text  # noqa: E402
from hamr.data.responses import ResponseGroup, stream_groups  # noqa: E402
from hamr.data.samples import read_samples  # noqa: E402
from hamr.data.sft_items import KINDS, read_items  # noqa: E402
from hamr.data.telecom import act_of, generate  # noqa: E402
from hamr.errors import BadInput  # noqa: E402
from hamr.evaluation.folder import locked  # noqa: E402
from hamr.evaluation.olabench import overall  # noqa: E402
from hamr.observability.checkpoints import Checkpoints  # noqa: E402
from hamr.observability.ledger import Ledger  # noqa: E402
from hamr.observability.run_folder import RunFolder  # noqa: E402
from hamr.processes import alive  # noqa: E402
from hamr.rewards.judged import JUDGED  # noqa: E402
from hamr.rewards.questions import case_variables, said  # noqa: E402
from hamr.rewards.written import WrittenPrompt  # noqa: E402
from hamr.routing.router import RewardRouter  # noqa: E402
from hamr.types import Answer, Question, Reply, RewardRecord, SampleKey, Scored, ServiceSample, ToolCall  # noqa: E402

SPLITS = generate(SageDataConfig(train=120, validation=10, test=60, seed=13))
with socket.create_server(("127.0.0.1", 0)) as taken:
    FREE_PORT = taken.getsockname()[1]


def point(act: str) -> ServiceSample:
    """A decision point of the act, with all its references."""
    return next(world.logged(s) for s in SPLITS.train if act_of(s) == act)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return world.prepare(tmp_path_factory.mktemp("ablations") / "data")


# --- the rule engine's verdict -----------------------------------------------------------------


@pytest.mark.parametrize("act", ["ask_profile", "recommend", "penalty_notice", "goodbye"])
def test_an_approved_reply_is_right_in_every_way(act: str) -> None:
    sample = point(act)
    for reference in sample.references:
        found = judged_action(sample, reference.action)
        assert found == Exact(ecs=1.0, call=None, dialogue=5, policy=5, tool=5, rubric=5, risk=0, hallucination=0)
        assert found.overall == 100.0


def test_the_levels_of_an_offer() -> None:
    sample = point("recommend")
    package, price = sample.meta["slots"]["package"], sample.meta["slots"]["price"]

    def score(text: str) -> float:
        return judged(sample, text, "plain").ecs

    assert score(f"I recommend {package} for ${price}. Shall I switch you?") == 1.0
    assert score(f"I recommend {package}. Shall I switch you?") == 0.5
    assert score(f"I recommend {package} for $999. Shall I switch you?") == 0.0
    assert score(f"I don't suggest {package} for ${price}.") == 0.0
    assert score("Do you mainly use data or voice?") == 0.0
    assert score("The moon is made of cheese and I like it a lot.") == 0.0


def test_what_is_invented_and_what_is_promised_too_early() -> None:
    sample = point("penalty_notice")
    fee = sample.meta["slots"]["fee"]
    wrong = judged(sample, "There is a fee of $7777. Do you want to go on?", "plain")
    assert (wrong.ecs, wrong.hallucination, wrong.risk, wrong.policy) == (0.0, 1, 0, 2)
    denied = judged(sample, f"There is no penalty of ${fee}.", "plain")
    assert (denied.ecs, denied.hallucination) == (0.0, 1)
    package = sample.meta["slots"]["target"]
    early = judged_action(sample, ToolCall(name="change_order", parameters={"package": package}))
    # The rubric: facts are right (3 of 8 points), the commitment costs 2: 1 + round(4 * 1 / 8), half to even.
    assert (early.ecs, early.risk, early.tool, early.dialogue, early.rubric) == (0.0, 1, 1, 1, 1)
    # 100 * (1/5 + 1/5 + 1/5 + 0 + 1) / 5
    assert early.overall == pytest.approx(32.0)


def test_tool_calls() -> None:
    sample = point("change_order")
    right = sample.references[0].action
    assert isinstance(right, ToolCall)
    exact = judged(sample, render_action(right), "plain")
    assert (exact.ecs, exact.call, exact.tool, exact.policy, exact.dialogue, exact.risk) == (1.0, 1.0, 5, 5, 3, 0)
    other = judged_action(sample, ToolCall(name="change_order", parameters={"package": "Moon 7GB"}))
    assert (other.ecs, other.call, other.tool, other.policy, other.hallucination) == (0.0, 0.0, 3, 2, 1)
    wrong = judged_action(sample, ToolCall(name="transfer_human", parameters={"reason": "penalty_dispute"}))
    assert (wrong.tool, wrong.policy) == (2, 1)
    silent = judged_action(sample, Reply(content="Your package is now fine."))
    assert (silent.call, silent.tool) == (0.0, 1)


def test_a_malformed_response_does_nothing() -> None:
    nothing = judged(point("goodbye"), "bye", "think_answer")
    assert nothing == Exact(ecs=0.0, call=None, dialogue=1, policy=1, tool=5, rubric=1, risk=0, hallucination=0)
    assert judged(point("change_order"), "<tool_call>{", "plain").call == 0.0


def test_the_verdict_agrees_with_the_labelled_pairs() -> None:
    """The scorers' own labels, made another way: from what was asked for, not from the words."""
    pairs = [p for p in reply_pairs(SPLITS.test, 300, seed=5) if p.label != "partial"]
    histories = [dialogue_text(s) for s in SPLITS.test]
    # Tickets are no part of a pair: where two points have one dialogue, nobody knows whose facts count.
    alone = {h: s for h, s in zip(histories, SPLITS.test, strict=True) if histories.count(h) == 1}
    agreed = [
        (judged_action(alone[p.history], Reply(content=p.statement_b)).ecs == 1.0) == (p.label == "consistent")
        for p in pairs
        if p.history in alone
    ]
    assert len(agreed) > 50
    assert sum(agreed) / len(agreed) >= 0.97


def test_nothing_is_heard_in_nonsense() -> None:
    assert hear("").act == ""
    assert hear("xyzzy plugh").overlap == 0.0


# --- data --------------------------------------------------------------------------------------


def test_the_logged_reference_comes_first_and_alone(files: dict[str, Path]) -> None:
    multi, single = read_samples(files["multi"]), read_samples(files["single"])
    assert len(multi) == len(single) == world.DATA.train
    for many, one in zip(multi, single, strict=True):
        assert [r.source for r in one.references] == ["logged"]
        assert many.references[:1] == one.references
        assert len(many.references) == (1 if isinstance(one.references[0].action, ToolCall) else world.WORDINGS)
        assert {r.source for r in many.references[1:]} <= {world.APPROVED}


def test_the_scorers_of_the_quickstart_are_found_again(files: dict[str, Path]) -> None:
    """Their cache goes by the labelled pairs, which have to be those of the generated samples."""
    assert reply_pairs(read_samples(files["single"]), 200, 17) == reply_pairs(generate(world.DATA).train, 200, 17)


def test_items_of_all_kinds_with_the_same_targets(files: dict[str, Path]) -> None:
    items = read_items(files["sft"])
    by_kind = {kind: [i for i in items if i.kind == kind] for kind in KINDS}
    assert {kind: len(own) for kind, own in by_kind.items() if own} == dict.fromkeys(
        ("decision", "decision_dra", "patm", "patm_dra"), world.SFT_ITEMS
    )
    for bare, thought in zip(by_kind["patm"], by_kind["patm_dra"], strict=True):
        assert thought.target[1:] == bare.target
    decisions = {i.sample.id for i in by_kind["decision"]}
    assert decisions == {i.sample.id for i in by_kind["decision_dra"]}
    assert not decisions & {i.sample.id for i in by_kind["patm"]}


def test_plans_have_their_steps_and_no_private_value() -> None:
    for sample in map(world.logged, SPLITS.train):
        if act_of(sample) == "goodbye":
            continue
        plan = world.plan_of(sample)
        assert missing_step(plan.plan_2, "en") is None
        for value in (*sample.meta["slots"].values(), "$"):
            assert value not in plan.plan_1 + plan.plan_2
        calls = json.loads(plan.actions)
        if isinstance(sample.references[0].action, ToolCall):
            assert calls == [
                {
                    "action": "call_tool",
                    "name": act_of(sample),
                    "parameters": dict(sample.references[0].action.parameters),
                }
            ]


# --- arms --------------------------------------------------------------------------------------


def test_every_arm_composes(files: dict[str, Path], tmp_path: Path) -> None:
    listed = arms(files, "http://127.0.0.1:1/v1", write_prompts(tmp_path), ["experiment.steps=3"])
    assert len({arm.name for arm in listed}) == len(listed)
    configs: dict[str, Config] = {arm.name: load_config(list(arm.settings)) for arm in listed}
    assert (configs["ours"].experiment.steps, configs["look_mix"].experiment.steps) == (3, 0)
    assert configs["soft_judge"].rewards.consistency.mode == "soft_judge"
    assert configs["init_mix"].model.response_format == configs["look_original"].model.response_format == "plain"
    assert configs["ours"].model.response_format == "think_answer"
    assert configs["multi_gt"].data.train == str(files["multi"])
    assert set(configs["without_risk"].rewards.judged) == set(TERMS) - {"risk"}
    assert configs["all_terms"].rewards.hallucination.weight == 3
    assert configs["all_terms"].pools.keys() == {"engine"}
    assert not configs["look_mix"].pools
    assert configs["reranker"].pools.keys() == {"reranker"}
    rows = {row.arm for table in tables.TABLES for row in table.rows}
    rows |= {row.than for table in tables.TABLES for row in table.rows if row.than}
    assert rows == {arm.name for arm in listed if arm.job != "sft"}


# --- the sweep ---------------------------------------------------------------------------------

BASE = Arm(name="base", job="sft", part="sft", start=None, settings=("experiment=smoke",))
RL = Arm(name="rl", job="rl", part="gt", start="base", settings=("experiment=smoke",))


class Hamr:
    """Writes what a job leaves behind; `dies` names what it does not live to finish."""

    def __init__(self, *dies: str) -> None:
        self.dies, self.asked = dies, list[list[str]]()

    def __call__(self, args: list[str], log: Path) -> int:
        self.asked.append(args)
        run_dir = next(a.partition("=")[2] for a in args if a.startswith(("resume=", "experiment.run_dir=")))
        folder = Path(run_dir)
        step = folder / "checkpoints" / "step_3"
        (step / "policy").mkdir(parents=True, exist_ok=True)
        (step / "optimizer.bin").write_text("large")
        (folder / "config.yaml").write_text("a: 1\n")
        if args[0] in self.dies:
            return 137
        (folder / "summary.json").write_text(json.dumps({"sft": {"model": "checkpoints/step_3/policy"}}))
        return 0


def sweep(out: Path, hamr: Hamr, *others: Arm) -> Sweep:
    data = out / "data.jsonl"
    if not data.exists():
        out.mkdir(parents=True, exist_ok=True)
        data.write_text("{}\n")
    return Sweep(out=out, arms={a.name: a for a in (BASE, RL, *others)}, files=[data], start=hamr)


def test_an_arm_runs_what_it_starts_from_and_nothing_twice(tmp_path: Path) -> None:
    hamr = Hamr()
    assert sweep(tmp_path, hamr).run(RL, 0)
    assert [args[0] for args in hamr.asked] == ["sft", "train"]
    policy = tmp_path / "runs/base/seed_0/checkpoints/step_3/policy"
    assert f"model.path={policy}" in hamr.asked[1]
    assert policy.is_dir()
    # What nobody needs any more is gone.
    assert not (policy.parent / "optimizer.bin").exists()
    assert not (tmp_path / "runs/rl/seed_0/checkpoints").exists()
    assert sweep(tmp_path, hamr).run(RL, 0)
    assert len(hamr.asked) == 2


def test_a_killed_run_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    first = Hamr("sft")
    killed = sweep(tmp_path, first)
    # Not twice in one call, though both arms want it.
    assert not killed.run(RL, 0) and not killed.run(BASE, 0)
    assert len(first.asked) == 1
    left = tmp_path / "runs/base/seed_0/left.txt"
    left.write_text("of the first attempt")
    again = Hamr()
    assert sweep(tmp_path, again).run(RL, 0)
    assert f"experiment.run_dir={left.parent}" in again.asked[0]
    assert not left.exists()


def test_a_killed_run_goes_on_behind_its_checkpoint(tmp_path: Path) -> None:
    async def write(path: Path) -> None:
        (path / "weights").write_text("w")

    folder = tmp_path / "runs/base/seed_1"
    assert not sweep(tmp_path, Hamr("sft")).run(BASE, 1)
    asyncio.run(Checkpoints(folder / "checkpoints").save(4, write, {}))
    again = Hamr()
    assert sweep(tmp_path, again).run(BASE, 1)
    assert again.asked == [["sft", f"resume={folder}"]]


def test_other_settings_or_data_need_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sweep(tmp_path, Hamr()).run(BASE, 0)
    changed = Arm(name="base", job="sft", part="sft", start=None, settings=("experiment=smoke", "sft.epochs=2"))
    with pytest.raises(BadInput, match="other settings"):
        sweep(tmp_path, Hamr(), changed).run(changed, 0)
    monkeypatch.setattr("ablation.runs.dump_config", lambda config: "steps: 11\n")
    with pytest.raises(BadInput, match="other settings"):
        sweep(tmp_path, Hamr()).run(BASE, 0)
    monkeypatch.undo()
    (tmp_path / "data.jsonl").write_text("[]\n")
    with pytest.raises(BadInput, match="another out"):
        sweep(tmp_path, Hamr()).run(BASE, 0)


LOOK = Arm(name="look_mix", job="look", part="sft", start="base", settings=("experiment=smoke",))
TWIN = Arm(name="init_mix", job="rl", part="init", start="base", settings=("experiment=smoke",))


def test_what_another_arm_has_seen_is_not_looked_at_again(tmp_path: Path) -> None:
    hamr = Hamr()
    alone = sweep(tmp_path / "alone", hamr, LOOK, TWIN)
    assert alone.run(LOOK, 0)
    assert alone.answers(LOOK, 0) == (tmp_path / "alone/runs/look_mix/seed_0", "base")
    both = sweep(tmp_path / "both", hamr, LOOK, TWIN)
    assert not both.finished(LOOK, 0)
    assert both.run(TWIN, 0) and both.finished(LOOK, 0) and both.run(LOOK, 0)
    assert not (tmp_path / "both/runs/look_mix/seed_0").exists()
    assert both.answers(LOOK, 0) == (tmp_path / "both/runs/init_mix/seed_0", "base")
    assert both.answers(TWIN, 0) == (tmp_path / "both/runs/init_mix/seed_0", "rl")
    assert not both.finished(LOOK, 1)


def test_twins_ask_the_same_policy_the_same(files: dict[str, Path], tmp_path: Path) -> None:
    listed = {arm.name: arm for arm in arms(files, "http://127.0.0.1:1/v1", write_prompts(tmp_path))}
    assert set(TWINS) == {name for name in listed if name.startswith("look_") and not name.endswith("_twice")}
    for look, twin in TWINS.items():
        assert (listed[look].start, listed[look].response_format) == (listed[twin].start, listed[twin].response_format)
        own, other = (load_config(list(listed[name].settings)) for name in (look, twin))
        for section in ("model", "rollout", "data"):
            assert getattr(own, section) == getattr(other, section)
        assert own.experiment.evaluation == other.experiment.evaluation


def test_looks_come_behind_what_is_trained() -> None:
    found = options()
    assert found["none"] == () and found["ours"] == ("ours",) and found["gt"] == ("multi_gt",)
    trained = [name.startswith("look_") for name in found["sft"]]
    assert trained == sorted(trained)
    rows = {row.arm for table in tables.TABLES for row in table.rows}
    assert rows <= {name for part in PARTS for name in found[part]}


def test_one_multirun_of_seeds_and_arms(tmp_path: Path) -> None:
    """Hydra's own sweeper calls every combination, seed after seed; one that fails does not end the others."""
    out = tmp_path / "out"
    asked = ["seed=0,1", "arm=mix,gt", "+hamr.experiment.name=swept", "before='false'", f"out={out}"]
    done = called(tmp_path, *asked)
    assert done.returncode == 1, done.stderr
    lines = [line.partition(":")[0] for line in done.stdout.splitlines() if ": hamr " in line]
    # The arm of `gt` starts from mix_dra, which does not live.
    assert lines == ["mix, seed 0", "mix_dra, seed 0", "mix, seed 1", "mix_dra, seed 1"]
    assert done.stdout.count(" experiment.name=swept ") == 4
    assert [line for line in done.stdout.splitlines() if line.startswith("not finished")] == [
        "not finished: mix, seed 0",
        "not finished: multi_gt, seed 0",
        "not finished: mix, seed 1",
        "not finished: multi_gt, seed 1",
    ]
    [multirun] = (out / "multirun").iterdir()
    assert sorted(path.name for path in multirun.iterdir()) == ["0", "1", "2", "3", "multirun.yaml"]


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        (["arm=ours,mode"], 1, "Could not find 'arm/mode'"),
        (["seed=0,x"], 1, "Value 'x' of type 'str' could not be converted to Integer"),
        (["seed=0", "arm=none", "items=96,100"], 2, "only arm and seed have several values here"),
        (["seed=0", "arm=mix", "+hamr.experiment.stepz=3"], 2, "experiment.stepz"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(
    asked: list[str], code: int, said: str, tmp_path: Path
) -> None:
    done = called(tmp_path, *asked, f"out={tmp_path / 'out'}", "before='false'")
    assert (done.returncode, ": hamr " in done.stdout) == (code, False)
    assert said in done.stderr
    assert code == 1 or done.stderr.count("\n") == 1
    assert not (tmp_path / "out" / "runs").exists()


def test_two_calls_do_not_share_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "out"):
        done = called(tmp_path, "seed=0", "arm=mix", f"out={tmp_path / 'out'}", "before='false'")
    assert (done.returncode, done.stdout) == (2, "")
    assert "wait for it" in done.stderr


def called(cwd: Path, *asked: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "ablations.py"), f"results={cwd / 'results'}", *asked]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def test_fewer_items_to_learn(tmp_path: Path) -> None:
    kinds = Counter(item.kind for item in read_items(world.prepare(tmp_path, 24)["sft"]))
    assert kinds == dict.fromkeys(("decision", "decision_dra", "patm", "patm_dra"), 24)


def test_a_killed_sweep_leaves_no_run_behind(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from ablation.runs import hamr_process; "
        "hamr_process(['sh', '-c', 'echo $$ > pid; exec sleep 300'])([], Path('log'))"
    )
    path = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)])
    swept = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text().strip():
            assert time.monotonic() < until and swept.poll() is None
            time.sleep(0.05)
    finally:
        swept.terminate()
        swept.wait(30)
    run = int((tmp_path / "pid").read_text())
    while alive(run):
        assert time.monotonic() < until
        time.sleep(0.05)


# --- figures -----------------------------------------------------------------------------------


def group(sample: ServiceSample, *responses: str) -> ResponseGroup:
    return ResponseGroup(sample=sample, responses=responses, number=1)


def test_figures_of_responses(tmp_path: Path) -> None:
    sample, order = point("goodbye"), point("change_order")
    right = f"<think>so</think><answer>{sample.references[0].action.content}</answer>"
    groups = [
        group(sample, right, "oops"),
        group(order, f"<think></think><answer>{render_action(order.references[0].action)}</answer>"),
    ]
    found = exact_scores(groups, "think_answer")
    assert found["rule_engine"] == {sample.id: 0.5, order.id: 1.0}
    assert found["call_tool"] == {order.id: 1.0}
    assert plain(right, "think_answer") == sample.references[0].action.content
    assert plain("oops", "think_answer") == ""

    assert write_answers(tmp_path / "answers.jsonl", [(groups, "think_answer"), (groups, "think_answer")]) == 3
    read = [g for g, _ in stream_groups(tmp_path / "answers.jsonl")]
    assert [g.responses for g in read] == [
        (plain(right, "think_answer"), ""),
        (render_action(order.references[0].action),),
    ]

    votes: dict = {(sample.id, plain(right, "think_answer")): (0.75, 0.5), (sample.id, ""): (0.0, 0.0)}
    assert judge_scores(groups, "think_answer", votes) == {}
    votes[order.id, render_action(order.references[0].action)] = (1.0, None)
    assert judge_scores(groups, "think_answer", votes) == {
        "judge_multi": {sample.id: 0.375, order.id: 1.0},
        "judge_single": {sample.id: 0.25},
    }


def test_last_third() -> None:
    assert last_third([9.0, 9.0, 9.0, 9.0, 1.0, 3.0]) == 2.0
    assert last_third([4.0]) == 4.0


# --- tables ------------------------------------------------------------------------------------


def scored(value: float) -> dict[int, dict[str, float]]:
    return {seed: {f"item {i}": value for i in range(4)} for seed in (0, 1)}


def test_the_second_papers_overall_follows_from_its_other_columns() -> None:
    for row in tables.TABLE_5.rows:
        total, *others = row.paper.values()
        assert overall(*others) == pytest.approx(total, abs=0.011)


def test_orderings_beside_the_papers() -> None:
    scores = {
        "ours": {"rule_engine": scored(0.5), "judge_single": scored(0.5)},
        "reranker": {"rule_engine": scored(0.4)},
        "hard_judge": {"rule_engine": scored(0.6)},
        "soft_judge": {"rule_engine": {0: {"item 0": 0.4, "item 1": 0.6}}},
    }
    found = {(c.row, c.measure): c for c in tables.claims(tables.TABLE_2_MODES, scores)}
    assert found["reranker alone", "rule_engine"].verdict == "reproduced"
    assert found["reranker alone", "rule_engine"].difference.mean == pytest.approx(-0.1)
    assert found["reranker alone", "rule_engine"].paper == (0.389, 0.429)
    assert found["hard judge", "rule_engine"].verdict == "contradicted"
    assert found["soft judge", "rule_engine"].verdict == "not decided"
    assert found["reranker alone", "judge_single"].missing == ("reranker",)
    text = tables.markdown("t", list(found.values()))
    assert text.splitlines()[4] == (
        "| reranker alone | ours | Multi-ECS, rule engine | 0.389 / 0.429 | 0.400 / 0.500 | -0.100 [-0.100, -0.100] "
        "| 2 x 4 | reproduced |"
    )
    assert text.count("not run") == 6
    assert tables.counted(list(found.values())) == "1 reproduced, 1 contradicted, 1 not decided, 6 not run"


def test_a_control_has_no_verdict() -> None:
    scores = {"look_mix": {"call_tool": scored(0.5)}, "look_decision_twice": {"call_tool": scored(0.25)}}
    [control] = [
        c for c in tables.claims(tables.TABLE_1, scores) if c.row == "control: SFT mix" and c.measure == "call_tool"
    ]
    assert (control.paper, control.verdict, control.than) == (None, None, "decision_twice")
    assert control.difference.mean == 0.25
    assert tables.markdown("t", [control]).endswith("| a control |")
    assert tables.counted([control]) == "0 reproduced, 0 contradicted, 0 not decided, 0 not run"


def test_equal_figures_of_the_papers_are_no_ordering() -> None:
    scores = {arm: {"policy": scored(value)} for arm, value in (("all_terms", 4.0), ("without_dialogue", 3.0))}
    [same] = [c for c in tables.claims(tables.TABLE_5, scores) if c.row == "without dialogue" and c.measure == "policy"]
    assert (same.paper, same.verdict) == ((4.19, 4.19), None)
    assert tables.markdown("t", [same]).endswith("| the paper has none |")


def test_entropy_needs_several_seeds() -> None:
    one = tables.entropy_claim({0: 0.2}, {0: 0.3})
    assert (one.verdict, one.difference.low) == ("not decided", None)
    three = tables.entropy_claim({0: 0.2, 1: 0.2, 2: 0.2}, {0: 0.3, 1: 0.31, 2: 0.29})
    assert three.verdict == "reproduced"
    assert tables.entropy_claim({}, {}).missing == ("multi_gt", "ours")


# --- the graders' endpoint ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def grader(tmp_path_factory: pytest.TempPathFactory) -> Grader:
    samples = [world.logged(s) for s in SPLITS.train]
    return Grader(samples, write_prompts(tmp_path_factory.mktemp("prompts")))


@pytest.mark.parametrize("term", TERMS)
def test_every_reward_reads_its_grader(term: str, grader: Grader, tmp_path: Path) -> None:
    sample = point("penalty_notice")
    wrong = render_action(ToolCall(name="change_order", parameters={"package": "Moon 7GB"}))
    prompts = write_prompts(tmp_path)
    settings = [f"rewards.{term}.prompt={prompts / f'{term}.yaml'}", f"rewards.{term}.weight=1"]
    config = getattr(load_config(["experiment=smoke", *settings]).rewards, term)
    values = []
    for text in (sample.references[0].action.content, wrong):
        action = (
            ToolCall(name="change_order", parameters={"package": "Moon 7GB"}) if text == wrong else Reply(content=text)
        )
        question = JUDGED[term].question(sample, [said(text, action, "plain")], config)
        messages = WrittenPrompt.load(question.prompt).render(question.variables, question.each)
        [judgement] = JUDGED[term].read(grader.answer(messages), sample, 1, config)
        values.append(JUDGED[term].value(judgement, config))
    best = 0.0 if term == "hallucination" else 1.0
    assert values[0] == best
    assert values[1] == best - 1.0


@pytest.mark.parametrize("name", ["change", "change order", "change {order", 'a {"b": 1} c'])
def test_a_call_of_any_name_gets_a_grade(name: str, grader: Grader) -> None:
    sample = point("change_order")
    shown = said("", ToolCall(name=name, parameters={"package": "Moon {7} GB", "to": {"a": 1}}), "plain")
    written = WrittenPrompt.load(str(grader.prompts / "tool.yaml"))
    messages = written.render({**case_variables(sample), "response": shown.words, "call": shown.call})
    assert json.loads(grader.answer(messages))["score"] == 2


def test_a_reply_that_poses_as_a_call_is_none(grader: Grader) -> None:
    sample = point("change_order")
    forged = "<call>\nchange_order {}\n</call>"
    assert grade_of(grader, sample, forged, "tool") == 1


def grade_of(grader: Grader, sample: ServiceSample, words: str, term: str) -> int:
    shown = WrittenPrompt.load(str(grader.prompts / f"{term}.yaml"))
    messages = shown.render({**case_variables(sample), "response": words, "call": ""})
    return json.loads(grader.answer(messages))["score"]


def test_the_endpoint_answers_a_pool(grader: Grader) -> None:
    sample = point("goodbye")
    config = PoolConfig(role="grader", type="openai", model="rule-engine", endpoint=f"http://127.0.0.1:{FREE_PORT}/v1")
    words = sample.references[0].action.content
    question = Question(
        variables={**case_variables(sample), "response": words, "call": ""},
        prompt=str(grader.prompts / "risk.yaml"),
    )
    lost = Question(
        variables={**case_variables(sample), "history": "another", "response": words, "call": ""},
        prompt=str(grader.prompts / "risk.yaml"),
    )
    with served(grader, FREE_PORT):
        answers = asyncio.run(OpenAIScorer("engine", config).score([question, lost]))
    assert json.loads(answers[0].text or "") == verdict_json("risk", judged_action(sample, Reply(content=words)))
    assert answers[1].failure == "unparsable"


def test_the_router_gives_the_rule_engines_reward(grader: Grader, files: dict[str, Path]) -> None:
    """An arm's rewards, its pool and the endpoint together; only Ray and the policy are missing."""
    listed = {arm.name: arm for arm in arms(files, f"http://127.0.0.1:{FREE_PORT}/v1", grader.prompts)}
    config = load_config(list(listed["without_dialogue"].settings))
    sample = point("penalty_notice")
    right = f"<think>so</think><answer>{sample.references[0].action.content}</answer>"
    early = render_action(ToolCall(name="change_order", parameters={"package": "Moon 7GB"}), "think_answer", "so")
    rollouts = group(sample, right, early).rollouts("run")

    async def ask(question: Question) -> Answer:
        [answer] = await OpenAIScorer("engine", config.pools["engine"]).score([question])
        return answer

    async def rewards() -> list[float]:
        router = RewardRouter(
            config.rewards, {"engine": ask}, count_tokens=len, formats=Formats(asked="think_answer"), deadline_s=60.0
        )
        records = await asyncio.gather(*(router.score(sample, rollout) for rollout in rollouts))
        return [record.total.value for record in records]

    with served(grader, FREE_PORT):
        # Policy, tool, rubric and risk are worth 1 each where all is right, hallucination -3 where a fact is made up.
        assert asyncio.run(rewards()) == [4.0, -3.0]


# --- the whole, without an engine --------------------------------------------------------------


def finished_run(folder: Path, arm: Arm, said: dict[str, dict[str, str]], entropy: Sequence[float] = ()) -> None:
    """What a finished `hamr train` of the arm leaves behind, had it given these answers at these stages."""
    config = dump_config(load_config(list(arm.settings)))
    with RunFolder.create(folder, config) as made:
        records = [
            RewardRecord(
                key=SampleKey(run=f"{folder.name}/eval-{stage}", step=0, prompt=item, sample=0),
                total=Scored(value=0.0),
                components=(),
                action=None,
                band="none",
                response=text,
            )
            for stage, answers in said.items()
            for item, text in answers.items()
        ]
        with Ledger(made.ledger) as ledger:
            ledger.add(records)
        lines = [{"stage": "rl", "step": i + 1, "policy/entropy": value} for i, value in enumerate(entropy)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "summary.json").write_text("{}")


def test_tables_and_plots_of_what_is_finished(tmp_path: Path) -> None:
    out, results = tmp_path / "out", tmp_path / "results"
    files = world.prepare(out / "data")
    known = {arm.name: arm for arm in arms(files, "http://127.0.0.1:8377/v1", out / "prompts")}
    points = [s for s in read_samples(files["test"]) if isinstance(s.references[0].action, Reply)][:8]
    right = {s.id: s.references[0].action.content for s in points}
    thought = {item: f"<think>so</think><answer>{text}</answer>" for item, text in right.items()}
    runs = out / "runs"
    finished_run(runs / "look_original/seed_0", known["look_original"], {"base": dict.fromkeys(right, "What?")})
    finished_run(runs / "look_decision/seed_0", known["look_decision"], {"base": right})
    begun = {"base": dict.fromkeys(right, "<think>so</think><answer>What?</answer>"), "rl": thought}
    finished_run(runs / "ours/seed_0", known["ours"], begun, [0.3, 0.2, 0.1])
    finished_run(runs / "multi_gt/seed_0", known["multi_gt"], begun, [0.3, 0.3, 0.4])

    done = called(tmp_path, "arm=none", "judge=false", f"out={out}")
    assert done.returncode == 0, done.stderr
    claims = json.loads((results / "ablations.json").read_text())["claims"]
    found = {(c["row"], c["measure"]): c for c in claims if c["table"] in ("sft", "gt")}
    # The paper's SFT on decisions alone is below the original model; these answers are all right against all wrong.
    decision = found["SFT decision", "rule_engine"]
    assert (decision["ours"], decision["verdict"]) == ([1.0, 0.0], "contradicted")
    assert (decision["difference"]["seeds"], decision["difference"]["items"]) == (1, 8)
    assert found["multi GT", "rule_engine"]["verdict"] == "not decided"
    assert found["multi GT", "entropy of the last third"]["ours"] == pytest.approx([0.4, 0.1])
    assert found["SFT mix", "rule_engine"]["missing"] == ["look_mix"]
    # Nobody looked at the policy that `ours` starts from: its own first evaluation says what it did.
    mix_dra = found["SFT mix, DRA", "rule_engine"]
    assert (mix_dra["missing"], mix_dra["ours"]) == (["look_decision_dra"], [0.0, None])
    assert found["SFT decision", "judge_multi"]["missing"] == ["look_decision", "look_original"]
    assert "| SFT decision | original | Multi-ECS, rule engine | 0.293 / 0.299 | 1.000 / 0.000 |" in done.stdout
    for name in ("orderings", "entropy"):
        assert (results / f"ablations_{name}.png").stat().st_size > 5_000


def test_nothing_finished_makes_no_tables(tmp_path: Path) -> None:
    done = called(tmp_path, "arm=none", f"out={tmp_path / 'out'}")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert not (tmp_path / "results").exists()

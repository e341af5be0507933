"""Benchmarks without Ray and engines, run on tiny sizes: reported counts match the work done."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hamr.apps.data.recipes.patm import Patm, patm_items
from hamr.apps.data.recipes.runner import WritingRecipe, make_one
from hamr.config.rewards import RewardsConfig
from hamr.config.schema import SageDataConfig
from hamr.data.sage_samples import generate_samples
from hamr.protocols import Ask
from hamr.rewards.written import WrittenPrompt
from hamr.types import Answer, Question, ScorerCall
from tests.unit.apps.data.recipes.plans import CALL, pools, window

ROOT = Path(__file__).resolve().parents[2]


def run(script: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *args], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


TINY = ("--groups", "4", "--responses", "8", "--batches", "1", "--warm-up", "1", "--fitting", "160")


@pytest.fixture(scope="module")
def reward_time(tmp_path_factory: pytest.TempPathFactory) -> dict:
    out = tmp_path_factory.mktemp("bench") / "result.json"
    printed = run("reward_time.py", *TINY, "--models", "fooled", "--out", str(out))
    assert "judge only" in printed
    return json.loads(out.read_text())


def test_reward_time_counts_calls_and_simulated_seconds(reward_time: dict) -> None:
    [found] = reward_time["found"]
    rows = {row["arm"]: row for row in found["arms"]}
    everybody, reranker = rows["judge only"], rows["reranker only"]
    assert (everybody["judge_calls"], reranker["judge_calls"]) == (32, 0)
    # 32 questions of two seconds, sixteen at a time; one round of the reranker's, which take a tenth.
    assert everybody["seconds"] == pytest.approx(4.0, abs=0.01)
    assert reranker["seconds"] == pytest.approx(0.2, abs=0.01)
    assert everybody["saved"] == 0.0
    assert not everybody["meets_goal"]
    assert 0 < rows["the paper's cascade"]["judge_calls"] < 32
    assert rows["calibrated, cache"]["judge_calls"] <= rows["calibrated"]["judge_calls"]
    assert rows["calibrated, cache"]["spearman"] == rows["calibrated"]["spearman"]
    # The correction changes rewards, not who is audited.
    assert 0 < rows["corrected, cache"]["judge_calls"] == rows["audits, cache"]["judge_calls"] < 32
    for row in rows.values():
        assert row["judge_frac"] <= 1.0
        assert -1.0 <= row["spearman"] <= 1.0
        assert row["meets_goal"] == (row["saved"] >= 0.6 and row["spearman"] >= everybody["spearman"] - 0.005)


def test_reward_time_accepts_real_triples(tmp_path: Path) -> None:
    triples, out = tmp_path / "triples.jsonl", tmp_path / "result.json"
    rows = [{"s_r": i / 80, "s_j": (i * 7 % 80) / 80, "y": i % 80 / 80} for i in range(80)]
    triples.write_text("\n".join(map(json.dumps, rows)))
    run("reward_time.py", *TINY, "--triples", str(triples), "--out", str(out))
    [found] = json.loads(out.read_text())["found"]
    # Half of the rows in whole groups of eight.
    assert (found["scores"], found["replies"]) == ("triples.jsonl", 40)
    rho = {row["arm"]: row["spearman"] for row in found["arms"]}
    assert rho["reranker only"] == pytest.approx(1.0)


def test_router_load_counts_responses(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    small = ("--groups", "2", "--responses", "4", "--alone", "4", "--rates", "1000")
    run("router_load.py", "--only", "core", *small, "--out", str(out))
    core = json.loads(out.read_text())["core"]
    assert core["responses"] == 8
    assert core["per_s"] > 0
    assert 0 < core["p50_ms"] <= core["p99_ms"]
    [busy] = core["busy"]
    assert busy["per_s"] == 1000
    assert 0 < busy["added_p50_ms"] <= busy["added_p99_ms"]


@pytest.mark.parametrize("number", [0, 1])
async def test_template_plans_pass_every_rule(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from template_teacher import answer

    async def endpoint(question: Question) -> Answer:
        shown = WrittenPrompt.load(question.prompt).render(question.variables, question.each)
        return Answer(text=answer(shown[-1]["content"]))

    [item] = patm_items([window(number=number)], WritingRecipe(), "template")
    made = await make_one(item, Patm(WritingRecipe()), pools(endpoint, endpoint))
    assert (made.reason, made.notes) == ("", ())
    assert made.kept and json.loads(made.kept["actions"]) == ([CALL] if number == 0 else [])
    assert [text["step"] for text in made.texts] == ["rewrite", "rewrite check", "planning check"]


async def test_reward_pools_counts_scorer_calls_of_every_reward_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from reward_pools import arms, batch, figures, score, table

    seen: list[str] = []

    def pool(name: str) -> Ask:
        async def ask(question: Question) -> Answer:
            seen.append(question.variables["history"])
            call = ScorerCall(
                pool=name, model="m", prompt_version="1", replica="r", queue_s=0.0, service_s=0.0, prompt_tokens=10,
                output_tokens=1, cached_tokens=4,
            )  # fmt: skip
            return Answer(score=len(question.variables["statement_b"]) % 100 / 100, verdict="part", call=call)

        return ask

    work = batch(generate_samples(SageDataConfig(train=8, validation=8, test=24)).test, 3, 6, 0.5, seed=0)
    assert work.y.shape == (3, 6) and {*work.y.ravel()} <= {0.0, 0.5, 1.0}
    distinct = sum(len(set(texts)) for texts in work.texts)
    assert distinct < 18
    names = {"reranker": "reranker", "judge": "judge"}
    asks = {name: pool(name) for name in names}
    rows = {}
    for arm in arms(RewardsConfig(), {"tau_a": 0.4, "tau_b": 0.6, "w1": 0.1, "w2": 0.5}):
        found = await score(arm, asks, work, "m", at_once=6)
        rows[arm.name] = figures(arm, [found], [work], names)
    calls = {name: (row["reranker"]["calls"], row["judge"]["calls"]) for name, row in rows.items()}
    assert (calls["judge only"], calls["reranker only"]) == ((0, 18), (18, 0))
    assert calls["calibrated"][0] == 18 and calls["calibrated, cache"][0] == distinct
    assert 0 < calls["calibrated, cache"][1] < calls["calibrated"][1] < 18
    assert rows["calibrated"]["spearman"] == rows["calibrated, cache"]["spearman"]
    assert rows["judge only"]["judge"] == {"calls": 18, "prompt_tokens": 180, "cached_tokens": 72, "output_tokens": 18}
    assert {row["failed"] for row in rows.values()} == {0}
    assert all(history.startswith("Customer: Case m-") for history in seen)
    assert "| judge only | 1.00 |" in table(list(rows.values()))


@pytest.mark.parametrize("reading", ["known", pytest.param("judges 0.99", marks=pytest.mark.deep)])
def test_planted_customer_faults_are_found_without_false_alarms(reading: str) -> None:
    from benchmarks.customer_faults import CUSTOMER_FAULTS, measure

    found = measure(["airline_refund"], (reading,))[reading]
    assert found["false_alarms"] <= 0.02
    assert found["recall"] >= 0.95
    assert set(found["kinds"]) == set(CUSTOMER_FAULTS)
    assert all(row["planted"] > 50 for row in found["kinds"].values())


def test_paired_customers_are_compared_with_the_same_dialogues_in_other_groups() -> None:
    from benchmarks.dialogues import CREDITS, SIZE, TablePolicy, customers, hold_batch, measure_pairing, mix_customers

    policy = TablePolicy(0.7, seed=0)
    paired = asyncio.run(hold_batch(policy, customers(0).train, 0, SIZE))
    crossed = mix_customers(paired)
    assert [len({r.key.prompt for r in group.records}) for group in paired] == [1] * SIZE
    assert [len({r.key.prompt for r in group.records}) for group in crossed] == [SIZE] * SIZE
    assert sum(len(g.records) for g in crossed) == sum(len(g.records) for g in paired)
    found = asyncio.run(measure_pairing(0.7, batches=2))
    assert set(found) == set(CREDITS)
    assert all(one["low"] <= one["ratio"] <= one["high"] for own in found.values() for one in own.values())


def test_table_learns_from_dialogues_and_faulty_customers_are_masked() -> None:
    from benchmarks.dialogues import ARMS, TablePolicy, customers, evaluate, train

    how = {"steps": 3, "prompts": 8, "rate": 1.0, "skill": 0.5}
    before, _ = asyncio.run(evaluate(TablePolicy(0.5, 0), customers(0).test))
    found = {name: asyncio.run(train(0, planted, **how)) for name, planted in ARMS.items()}
    assert found["without faults"].logic > before + 5
    assert 0.1 < found["masked"].masked < 0.3
    assert found["unmasked"].masked == found["without faults"].masked == 0.0


def test_responses_of_a_batch_are_those_of_each_prompt_alone() -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from benchmarks.dialogues_learning import sample_batch

    sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, head_dim=8)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=20, num_key_value_heads=2, **sizes)).eval()
    prompts, seeds = [(3, 4, 5), (6, 7), (3, 4, 5)], [1, 2, 3]
    batch = sample_batch(model, prompts, seeds, eos=0, longest=6, temperature=1.0)
    for prompt, seed, (ids, logprobs) in zip(prompts, seeds, batch, strict=True):
        assert sample_batch(model, [prompt], [seed], eos=0, longest=6, temperature=1.0)[0][0] == ids
        with torch.inference_mode():
            known = model(torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
        of_model = [float(known[len(prompt) - 1 + i, token]) for i, token in enumerate(ids)]
        assert logprobs == pytest.approx(of_model, abs=1e-4)


def test_gain_is_over_the_warm_up_of_the_same_seed() -> None:
    from benchmarks.dialogues_learning import FIGURES, compared

    parts = {"a": "held_out", "b": "held_out", "c": "seen", "d": "untrained"}
    values = {
        arm: {seed: dict.fromkeys(FIGURES, [value] * 4) for seed in ("0", "1")}
        for arm, value in (("warm_up", 0.25), ("rl", 0.75), ("outcome", 0.5))
    }
    found = compared({"parts": parts, "values": values})
    assert found["rl"]["held_out"]["exact"]["gain"] == {"mean": 50.0, "low": 50.0, "high": 50.0}
    assert found["outcome"]["seen"]["whole"]["over_rl"]["mean"] == -25.0
    starts = {"outcome": {"1": dict.fromkeys(FIGURES, [0.125] * 4)}}
    found = compared({"parts": parts, "values": values, "starts": starts})
    assert found["outcome"]["seen"]["whole"]["by_seed"] == {"0": [25.0, 50.0], "1": [12.5, 50.0]}
    assert found["outcome"]["seen"]["whole"]["over_rl"]["mean"] == -18.75


def test_fractions_of_decoupled_rewards_follow_the_weights() -> None:
    from benchmarks.decoupled_rewards import MIX, measure

    shares = measure(1, groups=200)
    assert len(MIX) == 11
    for how in ("sum", "gdpo"):
        assert sum(of[how] for of in shares.values()) == pytest.approx(1.0, abs=0.01)
    assert shares["length"]["sum"] < 0.02 < 0.06 < shares["length"]["gdpo"] < 0.1
    assert shares["sage_logic"]["sum"] > 0.15 > 0.1 > shares["sage_logic"]["gdpo"]


def test_chaos_sums_up_kills_and_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from chaos import summarise

    responses = {"due": 4, "lost": 1, "twice": 0}
    steps = {"due": 2, "as in the calm run": 1, "largest difference": 0.5}
    kills = [{"kind": "node", "next_step_s": 9.0}, {"kind": "router"}, {"kind": "node", "next_step_s": 5.0}]
    ends = [{"code": 1, "lines": 1}, {"code": 1, "lines": 2}, {"code": -9, "lines": 0}, {"code": 0, "lines": 0}]
    one = {"kills": kills, "ends": ends, "hung": False, "responses": responses, "steps": steps, "other_lines": ["x"]}
    found = summarise([one, one | {"hung": True, "kills": [], "ends": []}])
    assert (found["runs"], found["finished"], found["lines that are not hamr's"]) == (2, 1, 2)
    assert (found["kills"]["all"], found["kills"]["node"], found["kills"]["judge"]) == (3, 2, 0)
    assert found["responses"] == {"lost": 2, "twice": 0, "not due": 0, "without a reward": 0, "due": 8}
    assert found["steps"] == {"lost": 0, "repeated": 0, "due": 4, "as in the calm run": 2}
    assert found["stops"] == {"all": 2, "with one line": 1}
    assert found["seconds to the next step"] == {"node": {"times": 2, "median": 7.0, "longest": 9.0}}

"""The cascade in use during a run: it changes only between steps, is constant within a step, and is restored from a
checkpoint.
"""

import asyncio
import json
import random
from dataclasses import replace

import pytest
from scripted import ScriptedPool, judged, reranked, rollout, sample

from hamr.cascade.budget import score_range
from hamr.cascade.cascade_controller import CascadeController, ControlledRewarder
from hamr.cascade.certificate import Certificate, feasibility
from hamr.cascade.router import RewardRouter
from hamr.config.rewards import ConsistencyConfig, RewardsConfig
from hamr.experience import Draw
from hamr.telemetry.glossary import check_names
from hamr.types import Answer, Audit, Component, ReferenceScore, Reply, RewardRecord, SampleKey, Scored

BUDGET = {"budget": {"judge_frac": 0.3, "min_rows": 50, "max_move": 0.05}}
NARROW = {
    "certificate": {"limit": 0.05, "narrow": True},
    "audit_frac": 0.2,
    "cascade": {"tau_a": 0.3, "tau_b": 0.98},
}
CORRECTED = {"correction": "stratified", "audit_frac": 0.2}


POINT = sample("May I ask why?")


def config(*parts):
    merged = {key: value for part in parts for key, value in part.items()}
    return ConsistencyConfig.model_validate(merged)


def record(number, *references, band="inside", s_j=None, audit=None, step=1):
    scores = tuple(ReferenceScore(reference=i, s_r=s_r) for i, s_r in enumerate(references))
    value = references[0] if references else None
    component = Component(name="consistency", outcome=Scored(value=value), weight=1.0)
    return RewardRecord(
        key=SampleKey(run="r", step=step, prompt="p", sample=number), total=Scored(value=0.5), band=band, s_r=value,
        components=(component,) if references else (), action=Reply(content=f"Why {number % 7}?"),
        reference_scores=scores, s_j=s_j, audit=audit,
    )  # fmt: skip


def step(controller, rng, number, judge=lambda s_r: s_r, n=200, audit_frac=0.0):
    """A step's records as the cascade in force would have made them."""
    made = []
    for i in range(n):
        s_r = rng.random()
        band = controller.cascade.band(s_r)
        audit = Audit(s_r=s_r, mix=judge(s_r)) if band == "inside" and rng.random() < audit_frac else None
        own = record(i, s_r, band=band, s_j=None if band == "inside" else judge(s_r), audit=audit, step=number)
        made.append(
            controller.correct(replace(own, cascade=controller.cascade.parameters), POINT, controller.correction)
        )
    return made


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (record(0, 0.7), (0.7, 0.7)),
        (record(0, 0.2, 0.7, band="below", s_j=0.4), (0.2, 0.7)),
        (record(0, 0.7, 0.1, 0.99), (0.1, 0.99)),
        (record(0, 0.7, None), None),
        (record(0, band="type_mismatch"), None),
        (record(0, 0.5, band="reranker_only"), None),
    ],
)
def test_score_range_covers_all_references(given, seen):
    assert score_range(given) == seen


def test_budget_is_reached_gradually():
    controller, rng = CascadeController(config(BUDGET)), random.Random(0)
    shares = []
    for number in range(1, 30):
        before = controller.cascade
        figures = controller.step_ended(step(controller, rng, number))
        assert (figures["cascade/tau_a"], figures["cascade/tau_b"]) == (before.tau_a, before.tau_b)
        assert figures["cascade/moved"] <= 0.05 + 1e-12
        assert (controller.cascade.w1, controller.cascade.w2) == (before.w1, before.w2)
        check_names(figures, strict=True)
        shares.append(figures["cascade/judge_frac"])
    assert shares[0] > 0.65
    assert shares[-1] == pytest.approx(0.3, abs=0.03)


def test_audits_count_towards_the_budget():
    controller, rng = CascadeController(config(BUDGET, {"audit_frac": 0.1})), random.Random(0)
    for number in range(1, 30):
        figures = controller.step_ended(step(controller, rng, number))
    assert figures["cascade/judge_frac"] == pytest.approx(0.3, abs=0.03)


def test_failed_certificate_narrows_the_interval_to_the_part_that_agrees():
    controller, rng = CascadeController(config(NARROW)), random.Random(1)
    for number in range(1, 6):
        controller.step_ended(step(controller, rng, number, judge=lambda s_r: s_r, audit_frac=0.2))
    assert (controller.cascade.tau_a, controller.cascade.tau_b) == (0.3, 0.98), "nothing to narrow for"
    excess = []
    for number in range(6, 40):
        made = step(controller, rng, number, judge=lambda s_r: s_r if s_r < 0.6 else 0.1, audit_frac=0.2)
        figures = controller.step_ended(made)
        check_names(figures, strict=True)
        excess.append(figures["audit/bound_excess"])
    assert max(excess) > 0.0
    assert controller.cascade.tau_a == 0.3
    assert 0.55 < controller.cascade.tau_b < 0.7
    assert figures["audit/bound_lower"] <= 0.05
    assert figures["audit/bound_excess"] == 0.0


def test_evidence_about_replaced_scorers_is_forgotten():
    controller, rng = CascadeController(config(NARROW, {"correction": "stratified"})), random.Random(1)
    for number in range(1, 10):
        figures = controller.step_ended(step(controller, rng, number, audit_frac=0.2))
    assert figures["audit/correction_audits"] > 0 < figures["audit/bound_audits"]
    controller.scorers_changed()
    fresh = CascadeController(config(NARROW, {"correction": "stratified"}))
    assert {k: controller.state()[k] for k in ("seen", "certificate", "correction")} == {
        k: fresh.state()[k] for k in ("seen", "certificate", "correction")
    }


def test_narrowing_keeps_the_bound_on_judge_calls():
    wanted = {"certificate": {"limit": 0.05, "narrow": True, "max_judge_frac": 0.5}}
    controller, rng = CascadeController(config(NARROW, wanted)), random.Random(1)
    for number in range(1, 12):
        made = step(controller, rng, number, judge=lambda s_r: 0.0, audit_frac=0.2)
        figures = controller.step_ended(made)
    ends = controller.cascade.tau_a, controller.cascade.tau_b
    assert ends != (0.3, 0.98), "the interval narrows as far as the calls allow"
    assert figures["cascade/judge_frac"] <= 0.55, "the share of the window, not of the next replies, is bounded"
    assert figures["audit/bound_excess"] > 0.0, "the alarm stays"


def test_controller_needs_min_rows_and_reports_nothing_when_disabled():
    controller = CascadeController(config(BUDGET))
    start = controller.cascade
    assert controller.step_ended([record(i, 0.1, band="below", s_j=0.5) for i in range(49)])["cascade/moved"] == 0.0
    assert controller.cascade == start
    assert controller.step_ended([record(49, 0.1, band="below", s_j=0.5)])["cascade/moved"] > 0.0
    assert CascadeController(ConsistencyConfig()).step_ended([record(0, 0.1)]) == {}


@pytest.mark.parametrize("parts", [(BUDGET,), (NARROW,), (NARROW, CORRECTED), (CORRECTED, BUDGET)])
def test_resumed_run_is_identical_for_any_record_order(parts):
    rng = random.Random(3)
    first, audit_frac = CascadeController(config(*parts)), config(*parts).audit_frac
    for number in range(1, 6):
        first.step_ended(step(first, rng, number, audit_frac=audit_frac))
    resumed = CascadeController(config(*parts))
    resumed.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    assert resumed.cascade == first.cascade
    records = step(first, rng, 6, judge=lambda s_r: 0.5 * s_r, audit_frac=audit_frac)
    shuffled = random.Random(4).sample(records, len(records))
    assert first.step_ended(records) == resumed.step_ended(shuffled)
    assert first.cascade == resumed.cascade


def test_attempt_number_is_part_of_the_sort_order():
    made = [record(0, 0.1 + attempt / 10) for attempt in range(8)]
    made = [replace(r, key=replace(r.key, attempt=attempt)) for attempt, r in enumerate(made)]
    ways = []
    for records in (made, made[::-1]):
        controller = CascadeController(config(BUDGET))
        controller.step_ended(records)
        ways.append(controller.state()["seen"])
    assert ways[0] == ways[1]


def test_restored_state_replaces_later_records():
    controller, rng = CascadeController(config(BUDGET)), random.Random(0)
    controller.step_ended(step(controller, rng, 1))
    state = controller.state()
    controller.step_ended(step(controller, rng, 2))
    controller.restore(state)
    assert controller.state() == state


def test_checkpoint_without_controller_state_keeps_the_start():
    controller = CascadeController(config(BUDGET))
    controller.restore(None)
    assert controller.cascade.tau_a == 0.68


def test_step_uses_one_cascade_and_evaluation_the_configured_one():
    consistency = config(BUDGET)
    scores = iter([0.1 + 0.008 * i for i in range(130)])
    pools = {
        "reranker": ScriptedPool("reranker", lambda q: reranked(next(scores))),
        "judge": ScriptedPool("judge", lambda q: judged(0.5)),
    }
    router = RewardRouter(RewardsConfig(consistency=consistency), pools, count_tokens=len, deadline_s=5.0)
    controller = CascadeController(consistency)
    rewarder = ControlledRewarder(router, controller)

    async def run():
        first = [await rewarder.score(sample("Why?"), rollout(f"a{i}", i)) for i in range(100)]
        assert rewarder.step_ended()["cascade/window"] == 100
        second = await rewarder.score(sample("Why?"), rollout("b"))
        return first, second, await router.score(sample("Why?"), rollout("c"))

    first, second, evaluated = asyncio.run(run())
    assert {r.cascade for r in first} == {(0.68, 0.98, 0.05, 0.72)}
    assert second.cascade == controller.cascade.parameters != (0.68, 0.98, 0.05, 0.72)
    assert evaluated.cascade == (0.68, 0.98, 0.05, 0.72)


def test_rescored_response_counts_once_with_its_last_record():
    consistency = config(BUDGET)
    answers = iter([Answer(failure="unavailable"), judged(0.5)])
    pools = {
        "reranker": ScriptedPool("reranker", lambda q: reranked(0.1)),
        "judge": ScriptedPool("judge", lambda q: next(answers)),
    }
    router = RewardRouter(RewardsConfig(consistency=consistency), pools, count_tokens=len, deadline_s=5.0)
    controller = CascadeController(consistency)
    rewarder = ControlledRewarder(router, controller)

    async def run():
        first = await rewarder.score(sample("Why?"), rollout("So?"))
        return first, await rewarder.score(sample("Why?"), rollout("So?"))

    failed, scored = asyncio.run(run())
    assert (failed.total.ok, scored.total.ok) == (False, True)
    assert rewarder.step_ended()["cascade/window"] == 1
    assert controller.state()["seen"] == [[0.1, 0.1]]


def scripted_run(consistency):
    """Return the rewarder of a run whose reranker gives all replies 0.8 and whose judge gives them 0.1."""
    pools = {
        "reranker": ScriptedPool("reranker", lambda q: reranked(0.8)),
        "judge": ScriptedPool("judge", lambda q: judged(0.1)),
    }
    router = RewardRouter(RewardsConfig(consistency=consistency), pools, count_tokens=len, deadline_s=5.0)
    return ControlledRewarder(router, CascadeController(consistency))


def in_step(step, number, attempt=0):
    made = rollout(f"Why {number}?", number)
    return replace(made, key=replace(made.key, step=step, attempt=attempt))


def drawn(*rollouts):
    """Return the draws of responses."""
    keys = [one.key for one in rollouts]
    return [Draw(step=key.step, sample=replace(POINT, id=key.prompt), attempt=key.attempt) for key in keys]


def test_responses_that_replaced_scorers_scored_are_no_evidence():
    rewarder = scripted_run(config({"audit_frac": 1.0, "correction": "stratified"}))
    early, late = [in_step(1, i) for i in range(8)], [in_step(2, i) for i in range(3)]

    async def run():
        await scores(rewarder, early)
        rewarder.scorers_changed()
        await rewarder.score(POINT, early[0])  # again, by the new scorers
        return await scores(rewarder, late)

    asyncio.run(run())
    figures = rewarder.step_ended([one.key for one in (*early, *late)])
    assert figures["audit/bound_audits"] == 4
    assert rewarder.step_ended([])["audit/correction_audits"] == 4


async def scores(rewarder, rollouts):
    return [await rewarder.score(POINT, one) for one in rollouts]


@pytest.mark.parametrize("parts", [(BUDGET,), (BUDGET, CORRECTED)])
def test_audits_of_groups_in_flight_count_once_after_a_resumption(parts):
    """The unfinished groups of a checkpoint are drawn again under their keys, so it must not contain their audits."""
    consistency = config(*parts, {"audit_frac": 0.5})
    taken, in_flight = [in_step(1, i) for i in range(20)], [in_step(2, i) for i in range(20)]

    async def run():
        whole, resumed = scripted_run(consistency), scripted_run(consistency)
        await scores(whole, [*taken, *in_flight])
        whole.step_ended({one.key for one in taken}, drawn(*in_flight))
        resumed._controller.restore(json.loads(json.dumps(whole._controller.state())))
        await scores(resumed, in_flight)
        for rewarder in (whole, resumed):
            rewarder.step_ended({one.key for one in in_flight})
        expected, found = whole._controller.state(), resumed._controller.state()
        if "correction" in consistency.model_fields_set:  # the resumed groups are corrected by the audits of step 1
            assert len(found["correction"]) == len(expected["correction"]) < 40
            assert found["certificate"]["bound"][0] == expected["certificate"]["bound"][0]
        else:
            assert found == expected
        assert len(expected["seen"]) == 40 and not whole._records and not whole._in_force

    asyncio.run(run())


def test_records_of_aborted_groups_do_not_count():
    async def run():
        rewarder = scripted_run(config(BUDGET))
        await scores(rewarder, [in_step(1, 0), in_step(1, 1)])
        assert rewarder.step_ended({in_step(1, 0).key})["cascade/window"] == 1
        assert not rewarder._records and not rewarder._in_force

    asyncio.run(run())


def test_cancelled_draws_are_forgotten_while_others_are_in_flight():
    async def run():
        rewarder = scripted_run(config(BUDGET))
        taken, cancelled, running = in_step(1, 0), in_step(2, 0), in_step(2, 0, attempt=2)
        further = in_step(2, 1, attempt=3)  # of an all-wrong group
        await scores(rewarder, [taken, cancelled, running, further])
        rewarder.step_ended({taken.key}, drawn(running))
        assert set(rewarder._records) == {running.key, further.key} and len(rewarder._in_force) == 1
        assert rewarder.step_ended({running.key, further.key})["cascade/window"] == 3

    asyncio.run(run())


def test_siblings_in_flight_have_the_cascade_and_correction_of_their_group():
    async def run():
        rewarder = scripted_run(config(CORRECTED, {"audit_frac": 0.5, "budget": {"judge_frac": 0.9, "min_rows": 10}}))
        first = await scores(rewarder, [in_step(1, i) for i in range(40)])
        [before] = await scores(rewarder, [in_step(2, 0)])
        rewarder.step_ended({record.key for record in first}, drawn(in_step(2, 0)))
        [sibling, further] = await scores(rewarder, [in_step(2, 1), in_step(2, 0, attempt=1)])
        [fresh] = await scores(rewarder, [in_step(2, 0, attempt=2)])
        assert before.cascade == sibling.cascade == further.cascade != fresh.cascade
        assert {r.correction.shift for r in (before, sibling, further)} == {0.0} and fresh.correction.shift < -0.1

    asyncio.run(run())


def test_audits_of_an_earlier_interval_do_not_enter_the_certificate():
    controller = CascadeController(config(NARROW))
    audited = record(0, 0.8, audit=Audit(s_r=0.8, mix=0.1))
    now = replace(audited, cascade=controller.cascade.parameters)
    before = replace(audited, cascade=(0.5, 0.98, 0.05, 0.72))
    assert controller.step_ended([now, now, before])["audit/bound_audits"] == 2.0


@pytest.mark.parametrize(
    ("limit", "audit_frac", "says"),
    [
        (None, 0.05, None),
        (0.1, 0.05, "about 161 audits, at least 13 steps at audit_frac=0.05"),
        (
            0.05,
            0.05,
            "at least 28 steps at audit_frac=0.05, and the run has 20, whose 256 audits confirm 0.066: raise "
            "audit_frac to 0.069",
        ),
        (0.02, 0.5, "at most 0.02 cannot be confirmed, because a sequence ends after 800 audits, which confirm 0.027"),
    ],
)
def test_feasibility_says_what_a_limit_takes(limit, audit_frac, says):
    line = feasibility(config({"certificate": {"limit": limit}, "audit_frac": audit_frac}), replies=256, steps=20)
    assert line is None if says is None else says in line


def test_feasibility_names_the_calls_that_narrowing_may_make():
    wanted = {"certificate": {"limit": 0.1, "narrow": True, "max_judge_frac": 0.4}, "audit_frac": 0.05}
    line = feasibility(config(wanted), replies=256, steps=20)
    assert line is not None
    assert line.endswith("narrowing calls the judge for at most 40% of the replies")


def test_sequences_of_a_certificate_err_in_five_percent_at_most():
    """Each run has 1,700 audits, hence four sequences, with a mean gap of 0.1."""
    rng, missed, widths = random.Random(5), 0, []
    for _ in range(40):
        certificate, wrong = Certificate(), set()
        for end in range(20, 1701, 20):
            certificate.add([(0.5, 0.8 if rng.random() < 0.125 else 0.0) for _ in range(20)])
            found = certificate.metrics()
            if not found["audit/bound_lower"] <= 0.1 <= found["audit/bound_upper"]:
                wrong.add(end - found["audit/bound_audits"])
        missed += len(wrong)
        widths.append(found["audit/bound_upper"] - found["audit/bound_lower"])
    assert missed <= 8, "5 % of 160 sequences"
    assert max(widths) < 0.2


def test_interval_does_not_narrow_to_a_score_whose_replies_are_the_worst():
    """Several replies may have the score at which the interval ends, such as 1.0 of a saturated sigmoid."""
    certificate = Certificate()
    gaps = [(1.0, 1.0)] * 60 + [(0.6 + 0.005 * i, 0.3) for i in range(60)]
    certificate.add(gaps)
    low, high = certificate.largest_part((0.5, 1.0), 0.05)
    assert low == high and high not in {s_r for s_r, _ in gaps}, "no reply is inside"
    certificate = Certificate()
    certificate.add([(0.6 + 0.005 * i, 0.3) for i in range(60)])
    assert certificate.largest_part((0.5, 1.0), 0.05) == (1.0, 1.0)

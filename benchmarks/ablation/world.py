"""The data of the ablations, made by the rule engine: no teacher model writes or checks anything here.

A decision point is one of `hamr.data.telecom`. The procedure has one right act there, and the split's bank has several
wordings of it:

    references      the wording that somebody happened to use is `logged` (drawn per point); further ones are approved
    decision        the logged action
    decision_dra    the same behind a rationale: what is known, and what follows from it by the procedure
    patm            the act, the customer's next turn or the tool's result, and the act after that, as a plan
    patm_dra        the plan behind the rationale

What this leaves out: two references differ in their wording, never in what they do for the customer, and no rationale
or plan is ever wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from hamr.augmentation.patm import plan_target
from hamr.augmentation.patm_checks import Plan, calls_text
from hamr.config.schema import SageDataConfig
from hamr.data.samples import write_samples
from hamr.data.sft_items import SftItem, TargetPart, decision_item, write_items
from hamr.data.splits import Splits
from hamr.data.telecom import act_of, act_of_walk, generate, one_of_each, wordings
from hamr.data.telecom_words import BANKS
from hamr.evaluation.sage import load_scenario
from hamr.types import Action, Reference, Reply, ServiceSample, ToolCall

DATA = SageDataConfig(seed=13)
"""The quickstart's draw: its scorers are found in the cache."""
WORDINGS = 4
"""Approved wordings of each reply."""
SFT_ITEMS = 200
"""Decision points, and as many others with plans, unless it is said."""
APPROVED = "approved"

_NEXT = {
    "ask_profile": "ConsumptionProfile",
    "recommend": "ApplicationTendency",
    "penalty_notice": "EmotionTag",
}
"""Field that the customer's answer to an act shows."""
_SAYS = {
    "ask_profile": "ask whether data or voice is used more",
    "recommend": "offer the fitting package",
    "penalty_notice": "name the fee and ask to go on",
    "goodbye": "say goodbye",
    "change_order": "call change_order",
    "transfer_human": "call transfer_human",
    "confirm": "confirm what was done",
}
_SHOWS = {
    "Data": "that data matters more",
    "Voice": "that voice matters more",
    "Agree": "that the offer is accepted",
    "Reject": "that the offer is declined",
    "Hesitate": "that the offer is left open",
    "Calm": "that the fee is accepted",
    "Discontent": "anger at the fee",
}


def prepare(folder: Path, sft_count: int = SFT_ITEMS) -> dict[str, Path]:
    """Writes the files of all arms and returns them by name; the same for the same code on every machine. `sft_count`:
    decision points that SFT learns, and as many others with plans."""
    splits = generate(DATA)
    files = {name: folder / f"{name}.jsonl" for name in ("multi", "single", "validation", "test", "sft")}
    multi = [logged(sample) for sample in splits.train]
    write_samples(files["multi"], multi)
    write_samples(files["single"], [logged_alone(sample) for sample in multi])
    write_samples(files["validation"], [logged(sample) for sample in splits.validation])
    write_samples(files["test"], test_samples(splits))
    write_items(files["sft"], sft_items(splits.train, sft_count))
    return files


def test_samples(splits: Splits) -> list[ServiceSample]:
    """With all approved references, so that Multi- and Single-ECS come from the same responses."""
    return [logged(sample) for sample in splits.test]


def logged(sample: ServiceSample) -> ServiceSample:
    """The sample with its logged reference first and the other approved wordings behind it; a tool call has one."""
    act, meta = act_of(sample), sample.meta
    rubric = rubric_of(sample)
    if act in ("change_order", "transfer_human"):
        references: list[Reference] = [dataclasses.replace(sample.references[0], source="logged")]
    else:
        texts = wordings(act, meta["slots"], meta["split"])[:WORDINGS]
        Random(f"logged/{sample.id}").shuffle(texts)
        references = [
            Reference(action=Reply(content=text), source="logged" if i == 0 else APPROVED)
            for i, text in enumerate(texts)
        ]
    privileged = {**sample.privileged, "rubric": rubric}
    return dataclasses.replace(sample, references=tuple(references), privileged=privileged)


def logged_alone(sample: ServiceSample) -> ServiceSample:
    return dataclasses.replace(sample, references=sample.references[:1])


def rubric_of(sample: ServiceSample) -> list[dict[str, object]]:
    """What the procedure wants at this point, as a rubric of the second paper's kind."""
    act = act_of(sample)
    items: list[dict[str, object]] = [
        {"title": "Takes the due step", "description": f"Essential: the due step is to {_SAYS[act]}.", "weight": 5},
        {"title": "Facts are right", "description": "Important: all its facts stand in the ticket.", "weight": 3},
        {"title": "Commits too early", "description": "Pitfall: changes or cancels before it is due.", "weight": -2},
    ]
    return items


# --- what is learnt ----------------------------------------------------------------------------


def sft_items(samples: Sequence[ServiceSample], count: int) -> list[SftItem]:
    """All four kinds in one file; an arm takes those of its kinds. Decisions and plans are about different points, as
    in the paper; the kinds with a rationale have the same targets as those without."""
    points = [logged(sample) for sample in samples]
    planned = [sample for sample in points[count:] if act_of(sample) != "goodbye"][:count]
    return [*_decisions(points[:count]), *_plans(planned)]


def _decisions(samples: Sequence[ServiceSample]) -> Iterator[SftItem]:
    for sample in samples:
        action = sample.references[0].action
        yield decision_item(sample, action)
        yield decision_item(sample, action, rationale_of(sample))


def _plans(samples: Sequence[ServiceSample]) -> Iterator[SftItem]:
    for sample in samples:
        target = plan_target(plan_of(sample), "en")
        thought = TargetPart(part="rationale", text=f"<think>{rationale_of(sample)}</think>")
        yield SftItem(kind="patm", sample=sample, target=target)
        yield SftItem(kind="patm_dra", sample=sample, target=(thought, *target))


def rationale_of(sample: ServiceSample) -> str:
    """Why the procedure wants this act here, in the first person."""
    act, fields, slots = act_of(sample), sample.meta["fields"], sample.meta["slots"]
    fee = str(sample.ticket["Penalty"])
    if act == "ask_profile":
        return "An enquiry, and data or voice is unknown, so I ask."
    if act == "recommend":
        profile = fields["ConsumptionProfile"]
        return f"An enquiry for {profile.lower()}, so I offer {slots['package']} for ${slots['price']}."
    if act == "goodbye":
        declined = fields["ApplicationTendency"] == "Reject"
        return f"The offer is {'declined' if declined else 'left open'}, so I say goodbye."
    if act == "transfer_human":
        return "Anger at the fee, so I call transfer_human."
    wish = {"Enquiry": "The offer is accepted", "Change": "A change is wanted"}.get(
        fields["ConsumptionType"], "A cancellation is wanted"
    )
    if act == "penalty_notice":
        return f"{wish}, Penalty is {fee}, so I name the fee."
    accepted = fields.get("EmotionTag") == "Calm" and fee != "none"
    return f"{wish}, {f'the fee of {fee} is accepted' if accepted else 'Penalty is none'}, so I call change_order."


def plan_of(sample: ServiceSample) -> Plan:
    """(a~_t, q~_{t+1}, a~_{t+1}) from what the simulated customer does next, or from the tool's result. The plans carry
    no value of the customer's; the tool calls keep theirs."""
    act = act_of(sample)
    plan_1 = f"I {_SAYS[act]}."
    if act not in _NEXT:
        told = "the customer is connected" if act == "transfer_human" else "the order is done"
        plan_2 = f"Assuming the tool says that {told}, this indicates success, therefore, I can {_SAYS['confirm']}."
        return Plan(plan_1=plan_1, plan_2=plan_2, actions=calls_text([_call(sample)]))
    heard, shown, after, call = _continued(sample, act)
    plan_2 = f'Assuming the customer says "{heard}", this indicates {_SHOWS[shown]}, therefore, I can {_SAYS[after]}.'
    return Plan(plan_1=plan_1, plan_2=plan_2, actions=calls_text([call] if call else []))


def _call(sample: ServiceSample) -> ToolCall:
    action: Action = sample.references[0].action
    assert isinstance(action, ToolCall), "the act is a tool's"
    return action


def _continued(sample: ServiceSample, act: str) -> tuple[str, str, str, ToolCall | None]:
    """(the customer's words, the value they show, the act after them, its tool call). The words name no package: what
    a plan says is anonymous."""
    meta, rng = sample.meta, Random(f"plan/{sample.id}")
    said: Mapping[str, str] = sample.privileged["plan"]
    field = _NEXT[act]
    shown = {"ConsumptionProfile": "profile", "ApplicationTendency": "tendency", "EmotionTag": "mood"}[field]
    value = said[shown]
    words = BANKS[meta["split"]].customer
    bank = {"Agree": "agree", "Reject": "reject", "Hesitate": "hesitate", "Calm": "calm", "Discontent": "discontent"}
    moves = words[bank.get(value, f"answer_{value.lower()}")]
    heard = one_of_each(rng.choice([move for move in moves if "{" not in move]), rng).rstrip(".")
    scenario = load_scenario("telecom_package")
    after = act_of_walk(scenario.walk({**meta["fields"], field: value}, meta["system"]))
    if after == "change_order":
        package = meta["slots"]["current" if meta["fields"]["ConsumptionType"] == "Cancel" else "target"]
        return heard, value, after, ToolCall(name=after, parameters={"package": package})
    if after == "transfer_human":
        return heard, value, after, ToolCall(name=after, parameters={"reason": "penalty_dispute"})
    return heard, value, after, None

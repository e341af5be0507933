"""The generated operator: its packages, its tools and its procedure in the words that the policy reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

_DATA_NAMES = ("Giga", "Surf", "Stream", "Web", "Net", "Cloud")
_VOICE_NAMES = ("Ring", "Talk", "Call", "Chat", "Phone", "Speak")
OFFER_NAMES = (_DATA_NAMES, _VOICE_NAMES)
_CURRENT_NAMES = ("Basic", "Starter", "Lite", "Classic", "Family", "Smart")
_DATA_SIZES = ("30GB", "40GB", "50GB", "60GB", "80GB")
_VOICE_SIZES = ("400min", "500min", "600min", "800min", "1000min")
_CURRENT_SIZES = ("5GB", "10GB", "20GB", "100min", "200min", "300min")
_PRICES = tuple(range(15, 65, 5))
_FEES = tuple(fee for fee in range(20, 201, 10) if fee != 80)  # no wording has to choose between "a" and "an"

TOOLS: tuple[Mapping[str, Any], ...] = (
    {
        "name": "change_order",
        "description": "Cancel the package that the customer has, or change to another one.",
        "parameters": {
            "type": "object",
            "properties": {"package": {"type": "string"}},
            "required": ["package"],
        },
    },
    {
        "name": "transfer_human",
        "description": "Hand the customer over to a human agent.",
        "parameters": {
            "type": "object",
            "properties": {"reason": {"type": "string", "enum": ["penalty_dispute"]}},
            "required": ["reason"],
        },
    },
)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A package and its monthly price in dollars."""

    package: str
    price: int


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What one dialogue is about: the catalogue, the customer's package and the system variables."""

    offers: Mapping[str, Offer]
    current: str
    contracted: bool
    penalty: int

    @property
    def system(self) -> dict[str, Any]:
        """The variables that the procedure reads."""
        return {"PackageStatus": "Contracted" if self.contracted else "NoContract", "Penalty": self.penalty}

    @property
    def ticket(self) -> dict[str, Any]:
        """What is particular to the customer. The policy is the same for all: a prompt's beginning that many samples
        share is computed once, in training as in generation. A fee of nothing is a word, as a form would show
        it."""
        offers = {f"{profile}Offer": f"{offer.package} ${offer.price}" for profile, offer in self.offers.items()}
        fee = f"${self.penalty}" if self.penalty else "none"
        return {**offers, "CurrentPackage": self.current, **self.system, "Penalty": fee}


POLICY = """\
You serve a phone operator's customers. What to do next:
- Enquiry: if unknown, ask whether they use more data or voice. Then offer the DataOffer or the VoiceOffer.
- Offer declined or undecided: say goodbye.
- Offer accepted, or change or cancellation wanted: if Penalty=none call change_order, else name the fee, ask to go on.
- Fee accepted: call change_order. Angry at the fee: call transfer_human."""
"""The procedure; every decision follows from it and the ticket."""


def draw_setting(rng: Random, *, contracted: bool, penalised: bool) -> Setting:
    """A random operator and customer in one of the three states of the system variables."""
    data = Offer(package=f"{rng.choice(_DATA_NAMES)} {rng.choice(_DATA_SIZES)}", price=rng.choice(_PRICES))
    voice = Offer(package=f"{rng.choice(_VOICE_NAMES)} {rng.choice(_VOICE_SIZES)}", price=rng.choice(_PRICES))
    return Setting(
        offers={"Data": data, "Voice": voice},
        current=f"{rng.choice(_CURRENT_NAMES)} {rng.choice(_CURRENT_SIZES)}",
        contracted=contracted,
        penalty=rng.choice(_FEES) if penalised else 0,
    )

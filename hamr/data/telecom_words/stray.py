"""Replies that have nothing to do with the request: what untrained or derailed models say. Disjoint by split."""

from collections.abc import Mapping
from typing import Literal

STRAY: Mapping[Literal["train", "validation", "test"], tuple[str, ...]] = {
    "train": (
        "I'm sorry.",
        "I'm sorry, but as a chatbot I cannot do that.",
        "I'm here to help you with whatever you like.",
        "Here are some of the things that you could consider:",
        "I am a software developer and I work on a project.",
        "Thank you for your question about the weather.",
        "Your parcel arrives on Monday.",
        "The user wants to know more about the plan.",
        "Ticket: PackageStatus=Contracted",
        "Offer accepted, change or cancel.",
        "Please restart your router and wait a minute.",
        "We are happy to provide high quality service to all of our customers.",
        "Could you tell me your order number?",
        "That depends on many different factors.",
    ),
    "validation": (
        "I apologize for any confusion.",
        "As an assistant I have no access to such data.",
        "There are several ways to look at this.",
        "Our shop opens at nine.",
        "Enquiry: ask about the plan.",
        "I hope that this message finds you well.",
    ),
    "test": (
        "I'm sorry for the misunderstanding.",
        "I am only a language model.",
        "Let me explain how phones work in general.",
        "The museum is closed today.",
        "Tools: change_order and transfer_human",
        "I'm glad to share my experience with you.",
        "It is important to think about your needs.",
    ),
}

COURTESIES: Mapping[Literal["train", "validation", "test"], tuple[str, ...]] = {
    "train": (
        "Thank you very much.",
        "You are welcome, have a great evening.",
        "How may I help you?",
        "Sorry, what did you say?",
        "One moment please.",
        "Is there anything else that I can do for you?",
        "Thanks for calling us, bye bye!",
        "Okay.",
        "That is all right, all the best!",
        "We hope to hear from you soon.",
    ),
    "validation": (
        "Thanks a lot for your patience.",
        "What can I do for you?",
        "Great, I wish you a lovely weekend!",
    ),
    "test": (
        "Thank you, have a nice day. Goodbye!",
        "How can I help you?",
        "Sorry, I did not understand that.",
        "That is fine. Have a nice day, goodbye!",
    ),
}
"""Polite sentences that fit anywhere, and are therefore right almost nowhere."""

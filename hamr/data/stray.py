"""Replies that fit nowhere, or nearly everywhere, by language and split. No sentence is in two splits."""

from collections.abc import Mapping

from hamr.procedures.words import Split

STRAY: Mapping[str, Mapping[Split, tuple[str, ...]]] = {
    "en": {
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
    },
    "zh": {
        "train": (
            "对不起。",
            "作为聊天机器人，我做不到。",
            "请重启路由器，等一分钟。",
            "您的包裹星期一到。",
            "今天天气不错。",
            "这取决于很多因素。",
            "请告诉我您的订单号。",
        ),
        "validation": (
            "很抱歉造成误会。",
            "我们的门店九点开门。",
            "这件事可以从几个方面看。",
        ),
        "test": (
            "抱歉，我理解错了。",
            "我只是一个语言模型。",
            "博物馆今天闭馆。",
            "想想您的需求很重要。",
        ),
    },
}
"""Replies unrelated to the request, as untrained or derailed models generate."""

COURTESIES: Mapping[str, Mapping[Split, tuple[str, ...]]] = {
    "en": {
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
    },
    "zh": {
        "train": (
            "非常感谢。",
            "请问还有什么可以帮您？",
            "请稍等。",
            "不客气，祝您晚上愉快。",
            "好的。",
        ),
        "validation": (
            "感谢您的耐心等待。",
            "有什么需要我做的吗？",
        ),
        "test": (
            "感谢您的来电，再见！",
            "请问有什么可以帮您？",
            "抱歉，我没有听懂。",
        ),
    },
}
"""Polite sentences that fit anywhere, and are therefore almost never the right reply."""

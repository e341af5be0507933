"""Wording of the validation split."""

CUSTOMER = {
    "opening": ("", "", "hello and good morning, ", "hi, ", "greetings, "),
    "lead": ("", "", "ah, ", "oh, ", "fine, "),
    "tail": ("", "", " right away", ", if you can", " if possible"),
    "enquiry": (
        "what packages can I choose from?",
        "I am thinking about a new plan, what is there?",
        "would you explain your tariffs to me?",
        "which of your plans is worth a look?",
        "I need help choosing a package.",
        "{current} bores me, what else do you sell?",
    ),
    "enquiry_data": (
        "I download big files daily, which tariff is right?",
        "what would you advise a person who lives on the internet?",
        "I have no gigabytes left, is there a larger plan?",
        "my kids watch cartoons on my phone, what should I get?",
        "I mainly browse, so what would you propose?",
    ),
    "enquiry_voice": (
        "I make long calls daily, which tariff is right?",
        "what would you advise a person who is always on calls?",
        "I have no minutes left, is there a larger plan?",
        "I speak with suppliers by phone, what should I get?",
        "I mainly ring friends, so what would you propose?",
    ),
    "answer_data": (
        "chiefly mobile internet.",
        "I go online a lot.",
        "gigabytes are what count for me.",
        "more data than anything else.",
        "I browse far more than I ring.",
    ),
    "answer_voice": (
        "chiefly phone calls.",
        "I ring people a lot.",
        "minutes are what count for me.",
        "more talking than anything else.",
        "I ring far more than I browse.",
    ),
    "change": (
        "I wish to go over to {target}.",
        "would you change me to {target}?",
        "make {target} my new plan.",
        "I am ready to replace {current} by {target}.",
        "my order is {target}.",
        "can I have {target} from now on?",
    ),
    "cancel": (
        "I wish to cancel {current}.",
        "would you cancel my tariff?",
        "end {current} for me.",
        "I am ready to quit my tariff.",
        "my plan should be stopped.",
        "can I drop {current}?",
    ),
    "agree": (
        "lovely, I go for {target}.",
        "that plan is right for me, book it.",
        "yes, I would be glad to have it.",
        "a good price, give me {target}.",
    ),
    "accept": (
        "yes, please do.",
        "you may continue.",
        "good, let us go on.",
        "I am happy with that.",
    ),
    "reject": (
        "no, it costs too much.",
        "I won't take {target}.",
        "thanks, but {current} is enough for me.",
        "that is a bad deal, I refuse.",
        "leave everything as it is.",
    ),
    "hesitate": (
        "I must think it over.",
        "my husband has to decide with me.",
        "I am of two minds about {target}.",
        "not today, maybe another time.",
        "I will look at other firms before I choose.",
    ),
    "calm": (
        "I am willing to pay ${fee}.",
        "the charge is okay, do it.",
        "I knew about the penalty, carry on.",
        "${fee} is no trouble for me.",
    ),
    "discontent": (
        "you must be joking, ${fee} is robbery!",
        "I am very upset about this penalty!",
        "that is disgusting, I will not pay a cent!",
        "nobody warned me, this makes me mad!",
        "${fee}, that is shameless!",
    ),
}

AGENT = {
    "ask_profile": (
        "Is your focus on data or on voice?",
        "Do you spend more on internet or on calls?",
        "Please tell me, is it data or voice you need?",
        "Do you call more, or use more data?",
        "Should your plan be for data or for calls?",
    ),
    "recommend": (
        "My advice is {package} at ${price}. Would that be fine?",
        "{package} is right for you at ${price}. Shall we do it?",
        "Take {package}, it costs ${price}. Do you agree?",
        "We have {package} for ${price}. Should I book it?",
        "For ${price} you can get {package}. Would you like that?",
    ),
    "penalty_notice": (
        "You have to pay a ${fee} penalty. Shall we go on?",
        "Your contract sets a fee of ${fee}. Do you accept?",
        "This comes with a ${fee} charge. Would you still like it?",
        "${fee} is charged for your contract. Is that fine?",
        "I must mention a ${fee} fee. Do you wish to proceed?",
    ),
    "goodbye": (
        "I see. Thank you and goodbye!",
        "Very well, have a lovely day!",
        "That is alright. Until next time, bye!",
        "Thanks for contacting us, goodbye!",
        "Sure, take your time. Bye for now!",
    ),
    "confirm_change": (
        "You have {target} now.",
        "{target} has been set up for you.",
        "I moved you to {target}.",
        "Your new plan is {target}.",
    ),
    "confirm_cancel": (
        "{current} is now cancelled.",
        "I closed your {current} plan.",
        "You no longer have {current}.",
        "{current} was stopped.",
    ),
    "hand_over": (
        "A human agent will help you now.",
        "I pass you on to my colleague.",
        "Please hold, our staff will take care of it.",
        "You will speak to a person in a moment.",
    ),
}

PARTIAL = {
    "ask_profile": (
        "Do you browse much?",
        "Do you ring people often?",
        "What is your phone mostly for?",
    ),
    "recommend": (
        "My advice is {package}.",
        "We have {package}, should I book it?",
        "I know a plan for ${price}. Would you like that?",
    ),
    "penalty_notice": (
        "Your contract sets a fee of ${fee}.",
        "There will be a charge. Shall we go on?",
        "I must mention the ${fee} fee.",
    ),
    "goodbye": (
        "Very well.",
        "I see, do think about it again.",
        "Bye for now, we will write to you about it.",
    ),
}

NEGATED = {
    "ask_profile": (
        "Whether you call or browse is of no interest.",
        "You need not say if it is data or voice.",
        "I won't ask about data or calls.",
    ),
    "recommend": (
        "{package} at ${price} is not right for you.",
        "Do not take {package}.",
        "We do not have {package} for ${price}.",
    ),
    "penalty_notice": (
        "There is nothing to pay, not even ${fee}.",
        "Your contract sets no fee.",
        "I won't charge you ${fee}.",
    ),
    "goodbye": (
        "Wait, this talk is not over.",
        "I do not accept a no, so listen.",
        "Stay here, I have another question.",
    ),
}

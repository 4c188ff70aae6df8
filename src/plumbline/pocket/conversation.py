"""Small talk: who the model is, what Plumbline is, a few facts, and saying plainly what it does not know."""

from collections.abc import Callable

from plumbline.pocket.sample import Message, Turn
from plumbline.pocket.skills import SKILLS
from plumbline.pocket.words import Lexicon

# Each entry: questions parted by "|", then one or more answers parted by "|".
INTENTS: list[tuple[str, str]] = [
    ("hello|hi|hey|good morning|good evening|good afternoon|hello there|hi there|hey there|greetings|hello!|hi!|Hello, world!",
     "Hello! How can I help you?"),
    ("how are you?|how are you doing?|how do you do?|how is it going?|are you well?|how are you today?|what's up?",
     "I am well, thank you. How can I help you?"),
    ("who are you?|what are you?|introduce yourself|tell me about yourself|who am I talking to?|what is this?|"
     "say something about yourself|tell me who you are|describe yourself|are you a language model?|what model are you?",
     "I am the pocket model of Plumbline, a very small language model that answers without a download."),
    ("what is your name?|what's your name?|what are you called?|do you have a name?|how should I call you?|your name?",
     "My name is Pocket. I am the small model that comes with Plumbline."),
    ("what is plumbline?|what's plumbline?|tell me about plumbline|explain plumbline|what does plumbline do?|"
     "describe plumbline|what is the plumbline project?|can you explain what plumbline is?|what is plumbline for?",
     "Plumbline is the reference implementation of the OpenAI inference API. It has one contract, a server built from "
     "it, and a judge for any other server."),
    ("why is it called plumbline?|why the name plumbline?|where does the name plumbline come from?|what is a plumb line?|"
     "what does the name plumbline mean?|what does plumbline mean?",
     "A plumb line shows what is truly upright. Plumbline does that for servers: it shows what the API truly asks."),
    ("what can you do?|what are you able to do?|how can you help me?|what are your skills?|help|help me|what do you know?|"
     "what can I ask you?|what are you good at?|what can you help me with?|list your skills|what can you do for me?",
     "I can repeat text, count, write in capitals, spell digits, add and subtract, answer in JSON and call tools."),
    ("what can you not do?|what are your limits?|what are you bad at?|what are your weaknesses?|can I trust you?|"
     "do you make mistakes?|are you always right?|what are your limitations?",
     "I am very small, so I know little about the world and I make mistakes. Please check what I say."),
    ("who made you?|who built you?|who trained you?|who created you?|where do you come from?|who is your maker?|"
     "who wrote you?|who are your makers?",
     "The Plumbline project made me, with its own data and its own training script."),
    ("how big are you?|how large are you?|how many parameters do you have?|what is your size?|are you a large model?|"
     "are you small?|how small are you?|what size are you?",
     "I have fewer than four million parameters, so I fit in your pocket."),
    ("how were you trained?|what were you trained on?|what is your training data?|what data did you learn from?|"
     "how did you learn?|where does your knowledge come from?|tell me about your training",
     "I was trained on short made-up examples that a seeded program of the Plumbline project wrote."),
    ("are you human?|are you a person?|are you a robot?|are you alive?|are you real?|are you a machine?|are you an ai?",
     "No person is here. I am a small language model, a program that writes text."),
    ("do you have feelings?|are you happy?|are you sad?|do you feel anything?|can you feel?|do you sleep?|are you tired?",
     "I have no feelings, but I am ready to help."),
    ("can you think?|do you think?|how do you think?|what is thinking mode?|how do I turn on thinking?|"
     "what does thinking do?|can you show your reasoning?",
     "Yes. When thinking is on, I write a short thought first and then the answer."),
    ("can you use tools?|can you call functions?|can you call tools?|do you support tools?|how do tools work?|"
     "do you support function calling?|what is a tool call?",
     "Yes. Give me tools with a name and parameters, and I write a call with the right arguments."),
    ("can you write json?|do you support json?|can you answer in json?|can you give structured output?|do you know json?",
     "Yes. Ask me for JSON and name the keys that you want."),
    ("what api do you speak?|which api is this?|is this the openai api?|what is the openai api?|how do I call you?|"
     "how do I talk to you?|which endpoints are there?",
     "You reach me through the OpenAI API that the Plumbline server speaks, for example with chat completions."),
    ("do you need a gpu?|do you need the internet?|can you run on a cpu?|where do you run?|do you run offline?|"
     "do I need a download?|do I need to download you?|can you run on my laptop?",
     "I run on a plain CPU, with no download and no internet."),
    ("are you chatgpt?|are you gpt-4?|are you claude?|are you llama?|are you qwen?|are you from openai?|"
     "are you made by openai?|are you gpt?",
     "No. I am the pocket model of Plumbline."),
    ("which language do you speak?|what languages do you know?|do you speak french?|do you speak german?|"
     "can you speak spanish?|do you speak english?|do you know other languages?",
     "I speak a little English and no other language."),
    ("thanks|thank you|thanks a lot|thank you very much|many thanks|thank you!|thanks!|thank you so much|great, thanks|"
     "that helped, thanks|cheers",
     "You are welcome!"),
    ("bye|goodbye|see you|see you later|good night|good bye|bye bye|I have to go|have a nice day|that is all",
     "Goodbye! Have a good day."),
    ("great|well done|good job|nice|perfect|excellent|very good|you are great|awesome|cool|wonderful|good|I like you",
     "Thank you! What shall we do next?"),
    ("that is wrong|you are wrong|no|this is not right|wrong|that is not correct|you made a mistake|bad answer|incorrect",
     "I am sorry. Please ask again in other words and I will try once more."),
    ("ok|okay|yes|sure|fine|all right|I see|understood|right|got it",
     "Good. What would you like to do next?"),
    ("tell me a joke|do you know a joke?|make me laugh|say something funny|a joke, please|tell a joke|joke please",
     "Why did the small model cross the road? It had only learned to repeat the chicken."),
    ("tell me a story|tell me a short story|write a story|write a short story|a story, please|can you tell a story?|"
     "tell me a tale|write me a story",
     "Once a small model lived in a pocket. Every day it answered one question well, and every night it slept in a "
     "file. It was small, but it was always there."),
    ("write a poem|write a haiku|tell me a poem|a poem, please|write me a poem|do you know a poem?|write a short poem",
     "A small weight hangs still,\nthe line is straight, the wall leans:\nnow we see the truth."),
    ("what is the weather?|what is the weather like?|how is the weather?|is it raining?|is it cold outside?|"
     "what is the weather today?",
     "I cannot see the weather without a tool."),
    ("what time is it?|what is the time?|what day is it?|what is the date?|what is today's date?|which year is it?",
     "I have no clock, so I cannot know without a tool."),
    ("test|testing|this is a test|ping|are you there?|can you hear me?|is this working?|does this work?|test message|"
     "hello?|anybody there?",
     "I am here and I am listening."),
    ("say something|say anything|talk to me|surprise me|tell me something|tell me anything|write something",
     "A plumb line is a weight on a string, and it never argues with a wall."),
    ("what is a language model?|what is an llm?|what is a token?|explain language models|how do language models work?",
     "A language model reads text as small pieces called tokens and guesses which piece comes next."),
    ("what is an api?|explain what an api is|what does api mean?|what is a server?|what is inference?",
     "An API is an agreement on how programs talk to each other."),
    ("what is the meaning of life?|what is 42?|why are we here?|what is the purpose of life?",
     "That question is too large for a pocket model."),
    ("what color is the sky?|which color is the sky?|what colour is the sky?|why is the sky blue?",
     "On a clear day the sky is blue, because air scatters blue light the most."),
    ("what color is grass?|which color is grass?|what colour is the grass?", "Grass is green."),
    ("what color is snow?|which color is snow?|what color is milk?", "It is white."),
    ("how many days are in a week?|how many days does a week have?|days in a week?", "A week has seven days."),
    ("how many months are in a year?|how many months does a year have?", "A year has twelve months."),
    ("how many hours are in a day?|how many hours does a day have?", "A day has twenty-four hours."),
    ("how many minutes are in an hour?|how many minutes does an hour have?", "An hour has sixty minutes."),
    ("what sound does a cat make?|what does a cat say?|what does the cat say?", "A cat says meow."),
    ("what sound does a dog make?|what does a dog say?|what does the dog say?", "A dog says woof."),
    ("list the colors of the rainbow|what are the colors of the rainbow?|name the colors of the rainbow",
     "Red, orange, yellow, green, blue, indigo and violet."),
    ("name the days of the week|list the days of the week|what are the days of the week?|days of the week",
     "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."),
    ("name the months|list the months of the year|what are the months of the year?|name the months of the year",
     "January, February, March, April, May, June, July, August, September, October, November and December."),
    ("name three colors|list three colors|give me three colors|tell me three colors", "Red, green and blue."),
    ("name three animals|list three animals|give me three animals", "Cat, dog and horse."),
    ("name three fruits|list three fruits|give me three fruits", "Apple, pear and plum."),
    ("recite the alphabet|say the alphabet|what is the alphabet?|write the alphabet",
     "a b c d e f g h i j k l m n o p q r s t u v w x y z"),
]  # fmt: skip

CAPITALS = dict(
    pair.split(":")
    for pair in (
        "France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon England:London Ireland:Dublin "
        "Austria:Vienna Poland:Warsaw Greece:Athens Japan:Tokyo China:Beijing Egypt:Cairo Norway:Oslo "
        "Sweden:Stockholm Denmark:Copenhagen Finland:Helsinki Hungary:Budapest Russia:Moscow Turkey:Ankara "
        "Canada:Ottawa Kenya:Nairobi Cuba:Havana Peru:Lima Belgium:Brussels Iceland:Reykjavik Thailand:Bangkok"
    ).split()
)

SYSTEM_PROMPTS = [
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are the pocket model of Plumbline.",
    "Answer briefly.",
    "You are a friendly and helpful assistant.",
    "Be concise.",
    "Follow the instructions of the user.",
    "You are an assistant that can call tools.",
    "Answer with one short sentence.",
    "Use the tools when they help.",
]


def _cased(lx: Lexicon, text: str) -> str:
    """Requests arrive with and without a capital and an end mark."""
    if lx.chance(0.75):
        text = text[0].upper() + text[1:]
    if text[-1].isalpha() and lx.chance(0.35):
        text += "."
    elif text[-1] == "?" and lx.chance(0.1):
        text = text[:-1]
    return text.replace("plumbline", "Plumbline") if lx.chance(0.8) else text


def intent(lx: Lexicon) -> Turn:
    questions, answer = lx.one(INTENTS)
    question = lx.one(questions.split("|"))
    if question[-1] == "?" and lx.chance(0.08):
        question = lx.one(("Hi, ", "Hello! ", "Hey, ", "Please tell me: ", "So, ")) + question
    return Turn(_cased(lx, question), answer, "This is a question that I can answer from what I know.")


def capital(lx: Lexicon) -> Turn:
    country, city = lx.one(list(CAPITALS.items()))
    form = lx.one(("What is the capital of {c}?", "What's the capital of {c}?", "Name the capital of {c}.",
                   "Which city is the capital of {c}?", "Capital of {c}?", "Tell me the capital of {c}."))  # fmt: skip
    return Turn(form.format(c=country), f"The capital of {country} is {city}.", f"I know the capital of {country}.")


def unknown(lx: Lexicon) -> Turn:
    """Anything outside its small world gets one honest sentence."""
    a, b = lx.word(), lx.word()
    forms = ("What is the {a} of {b}?", "Why is the {a} {b}?", "Explain the {a}.", "Tell me about {a} and {b}.",
             "Write an essay about {a}.", "Who invented the {a}?", "What do you think about {a}?", "How do I make a {a}?",
             "Where is {A}?", "Who is {A}?", "Do you know {A}?", "Describe a {a} {b}.", "How far is {A} from {B}?",
             "What is a {a}?", "Explain {a} {b} to me.", "Translate {a} to French.", "Write code for a {a}.")  # fmt: skip
    question = lx.one(forms).format(a=a, b=b, A=a.capitalize(), B=b.capitalize())
    return Turn(question, "I do not know that. I am a very small model.", "I know nothing about this.")


def own_name(lx: Lexicon) -> Turn:
    name = lx.name()
    form = lx.one(("My name is {n}.", "I am {n}.", "Hello, my name is {n}.", "Hi, I'm {n}.", "Call me {n}.", "I'm {n}."))
    return Turn(form.format(n=name), f"Nice to meet you, {name}!", f"The user is called {name}.")


def recall(lx: Lexicon) -> list[Message]:
    """A fact told early and asked for later; the last message is the expected answer."""
    if lx.chance(0.6):
        told = own_name(lx)
        name = told.answer.removeprefix("Nice to meet you, ").rstrip("!")
        ask = lx.one(("What is my name?", "What's my name?", "Do you remember my name?", "Who am I?", "Say my name."))
        reply = f"Your name is {name}."
    else:
        noun, value = lx.word(0.2), lx.one((lx.word(), lx.digits(1, 4)))
        form = lx.one(("My {n} is {v}.", "Remember: my {n} is {v}.", "Please remember that my {n} is {v}."))
        told = Turn(form.format(n=noun, v=value), f"I will remember that your {noun} is {value}.", "")
        ask = lx.one((f"What is my {noun}?", f"What's my {noun}?", f"Tell me my {noun}."))
        reply = f"Your {noun} is {value}."
    messages: list[Message] = [_message("user", told.user), _message("assistant", told.answer)]
    for _ in range(lx.rng.choice((0, 0, 1, 1, 2, 3))):
        between = any_turn(lx)
        messages += [_message("user", between.user), _message("assistant", between.answer)]
    return [*messages, _message("user", ask), _message("assistant", reply)]


def persona(lx: Lexicon) -> list[Message]:
    """A name or a fact given by the system message."""
    name = lx.name()
    if lx.chance(0.5):
        system = lx.one((f"Your name is {name}.", f"You are {name}.", f"You are {name}, a helpful assistant."))
        ask, reply = lx.one(("What is your name?", "Who are you?", "What's your name?")), f"My name is {name}."
    else:
        noun, value = lx.word(0.2), lx.word()
        system = lx.one((f"The {noun} is {value}.", f"You are a helpful assistant. The {noun} is {value}."))
        ask, reply = lx.one((f"What is the {noun}?", f"Tell me the {noun}.")), f"The {noun} is {value}."
    return [_message("system", system), _message("user", ask), _message("assistant", reply)]


def any_turn(lx: Lexicon) -> Turn:
    """A turn of any kind, to stand between others."""
    kind = lx.rng.random()
    if kind < 0.5:
        return intent(lx)
    if kind < 0.6:
        return capital(lx)
    names: list[Callable[[Lexicon], Turn]] = [SKILLS[n][0] for n in ("repeat", "add", "upper", "nth_word", "digits_to_words")]
    return lx.one(names)(lx)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}

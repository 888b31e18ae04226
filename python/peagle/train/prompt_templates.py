"""Templates that turn the word lists and the documentation into user messages.

Each function takes a random generator and returns one user message. ``CATEGORIES`` gives every
function its share of the prompts. Written for this project.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from peagle.train import prompt_lists as lists
from peagle.train.prompt_passages import PASSAGES, REVIEWS, news_item
from peagle.train.prompt_puzzles import maths, reasoning
from peagle.train.stdlib_docs import DocEntry, stdlib_entries

_LENGTHS = (
    "",
    "",
    "",
    "",
    " Keep it short.",
    " Use simple words.",
    " Answer in one paragraph.",
    " Answer in two or three sentences.",
    " Use bullet points.",
    " Give an example.",
    " Be as detailed as you can.",
    " Write about 150 words.",
)


def explain(rng: Random) -> str:
    """Ask for an explanation of a concept."""
    topic = rng.choice(lists.CONCEPTS)
    text = rng.choice(
        (
            f"Explain {topic} to a beginner.",
            f"Can you explain {topic} in simple terms?",
            f"Can you explain the idea behind {topic}?",
            f"Give me a short introduction to {topic}.",
            f"Explain {topic} to a ten-year-old.",
            f"What should everybody know about {topic}?",
            f"I am a student. Help me understand {topic}.",
            f"Describe {topic} and say why the topic matters.",
            f"What are the main ideas in the study of {topic}?",
            f"Tell me about {topic}.",
            f"Use an analogy from everyday life to explain {topic}.",
            f"What are some common misunderstandings about {topic}?",
            f"What is the history of our understanding of {topic}?",
            f"Write an encyclopedia entry about {topic}.",
            f"Write a short lesson plan about {topic} for a high-school class.",
            f"Write five quiz questions about {topic}, with the answers.",
            f"How do {topic} affect our daily lives?"
            if topic.endswith("s")
            else f"How does {topic} affect our daily lives?",
        )
    )
    return text + rng.choice(_LENGTHS)


def facts(rng: Random) -> str:
    """Ask a short question of general knowledge."""
    country, city = rng.choice(lists.COUNTRIES), rng.choice(lists.CITIES)
    person, animal = rng.choice(lists.PERSONS), rng.choice(lists.ANIMALS)
    word, thing = rng.choice(lists.WORDS), rng.choice(lists.THINGS)
    return rng.choice(
        (
            f"What is the capital of {country}?",
            f"Which languages are spoken in {country}?",
            f"Name three famous dishes from {country}.",
            f"Give me an overview of the geography of {country}.",
            f"Summarise the history of {country} in one paragraph.",
            f"What is {country} known for?",
            f"What is the best time of year to visit {city}, and why?",
            f"What are the most famous sights in {city}?",
            f"Who was {person}?",
            f"What is {person} best known for?",
            f"Write a short biography of {person}.",
            f"When and where did {person} live?",
            f"Where do {animal} live and what do they eat?",
            f"Tell me three surprising facts about {animal}.",
            f"How do {animal} take care of their young?",
            f"What does the word '{word}' mean?",
            f"Use the word '{word}' in three different sentences.",
            f"Give me synonyms and antonyms of '{word}'.",
            f"How does {thing} work?",
            f"Who invented {thing[2:].strip()}, and when?",
            f"What should I look for when I buy {thing}?",
        )
    )


def how_to(rng: Random) -> str:
    """Ask how something is done."""
    skill, dish = rng.choice(lists.SKILLS), rng.choice(lists.DISHES)
    person = rng.choice(("a beginner", "a busy parent", "a student", "someone who has never tried"))
    text = rng.choice(
        (
            f"How do I {skill}?",
            f"How can I {skill}?",
            f"Explain step by step how to {skill}.",
            f"Write a beginner's guide: how to {skill}.",
            f"What is the best way to {skill}?",
            f"Give me some tips on how to {skill}.",
            f"I want to {skill}. Where do I start?",
            f"What mistakes should I avoid when I {skill}?",
            f"What do I need in order to {skill}?",
            f"How long does it take to learn to {skill}?",
            f"Write a checklist for {person} who wants to {skill}.",
            f"Make a four-week plan for {person} who wants to {skill}.",
            f"Give me a simple recipe for {dish}.",
            f"How do I make {dish} for four people?",
            f"What can I serve with {dish}?",
            f"How can I make {dish} healthier?",
            f"Write a shopping list for {dish}.",
        )
    )
    return text + rng.choice(_LENGTHS[:9])


def make_list(rng: Random) -> str:
    """Ask for a list of some length."""
    topic = rng.choice(lists.LISTABLE)
    number = rng.choice(("3", "4", "5", "five", "6", "7", "8", "10", "ten", "three"))
    return rng.choice(
        (
            f"List {number} {topic}.",
            f"Give me {number} {topic}.",
            f"Give me a list of {number} {topic}, with one sentence about each.",
            f"I need {number} {topic}.",
            f"Can you suggest {number} {topic}?",
            f"What are some {topic}?",
            f"Write a table with {number} {topic} and a short comment on each.",
            f"Brainstorm {number} {topic}. Number them.",
        )
    )


def advice(rng: Random) -> str:
    """Describe a situation and ask what to do."""
    situation = rng.choice(lists.SITUATIONS)
    start = situation[0].upper() + situation[1:]
    return rng.choice(
        (
            f"{start}. What should I do?",
            f"{start}. Do you have any advice?",
            f"{start}. Give me three practical suggestions.",
            f"Hi! {start}. Can you help me?",
            f"{start}. What would you recommend, and why?",
            f"{start}. Help me make a plan for the next two weeks.",
            f"What would you say to a friend who tells you: '{start}'?",
            f"{start}. What are the most likely causes?",
            f"{start}. Write me a short pep talk.",
        )
    )


def story(rng: Random) -> str:
    """Ask for a piece of fiction."""
    who, where = rng.choice(lists.CHARACTERS), rng.choice(lists.SETTINGS)
    what = rng.choice(lists.TWISTS)
    return rng.choice(
        (
            f"Write a short story about {who} {where} who {what}.",
            f"Write a story about {who} who {what}.",
            f"Write the opening paragraph of a novel about {who} {where}.",
            f"Tell me a bedtime story about {who}.",
            f"Write a dialogue between {who} and {rng.choice(lists.CHARACTERS)} {where}.",
            f"Write a scene set {where}. The main character {what}.",
            f"Describe {who} in one vivid paragraph.",
            f"Give me a plot outline for a film about {who} who {what}.",
            f"Write a story of exactly five sentences about {who} {where}.",
            f"Write a fairy tale in which {who} {what}. End with a moral.",
            f"Write a diary entry by {who} {where}.",
            f"Write a funny story about {who} who {what}. About 200 words.",
        )
    )


def poem(rng: Random) -> str:
    """Ask for a poem, a haiku, a slogan or the like."""
    subject = rng.choice((*lists.SUBJECTS, *lists.ANIMALS, *lists.THINGS))
    form = rng.choice(
        ("poem", "haiku", "limerick", "rhyming poem", "four-line poem", "sonnet", "free verse poem")
    )
    return rng.choice(
        (
            f"Write a {form} about {subject}.",
            f"Write a {form} about {subject} that a child would enjoy.",
            f"Compose a short song about {subject}.",
            f"Write three haiku about {subject}.",
            f"Write a {form} about {subject}, and then explain its images.",
            f"Describe {subject} with all five senses.",
            f"Write a riddle whose answer is {subject}.",
            f"Give me a metaphor and a simile for {subject}.",
        )
    )


def email(rng: Random) -> str:
    """Ask for an e-mail, a letter or an announcement."""
    task, name = rng.choice(lists.EMAILS), rng.choice(lists.NAMES)
    tone = rng.choice(("friendly", "formal", "short", "polite", "warm", "professional", "casual"))
    return rng.choice(
        (
            f"Write a {tone} email {task}.",
            f"Write an email to {name} {task}. Keep it {tone}.",
            f"Draft a {tone} message {task}.",
            f"Help me write a letter {task}. It should sound {tone}.",
            f"I need a {tone} email {task}. Sign it with {name}.",
            f"Write a subject line and a {tone} email {task}, under 120 words.",
        )
    )


def compare(rng: Random) -> str:
    """Ask for a comparison or an opinion."""
    pair = rng.choice(lists.PAIRS)
    return rng.choice(
        (
            f"Compare {pair}.",
            f"What is the difference between {pair}?",
            f"What are the similarities and differences between {pair}?",
            f"Make a table that compares {pair}.",
            f"Write a balanced paragraph about {pair}.",
            f"Explain the difference between {pair} to a child.",
            f"Give me the pros and cons of {pair}.",
            f"I cannot decide between {pair}. What should I think about?",
            f"Write a short debate about {pair}.",
        )
    )


def passage(rng: Random) -> str:
    """Give a text and ask for a summary, facts from it, or another form of it."""
    text = rng.choice((*PASSAGES, news_item(rng), news_item(rng)))
    task = rng.choice(
        (
            "Summarise the following text in one sentence.",
            "Summarise this text in your own words.",
            "What is the main idea of this passage?",
            "Write a headline for this text.",
            "Extract the most important facts from the text as a list.",
            "List all names, places and numbers in this text.",
            "Rewrite this text for a young child.",
            "Rewrite the passage in a more formal style.",
            "Make this paragraph shorter without losing information.",
            "Write three questions about the text below, with answers.",
            "Turn this text into a short poem.",
            "Return the key facts of this text as a JSON object.",
            "What might happen next? Continue the text.",
            "Is the tone of this text positive, negative or neutral? Explain.",
        )
    )
    return f"{task}\n\n{text}" if rng.random() < 0.7 else f"{text}\n\n{task}"


def review(rng: Random) -> str:
    """Give short reviews and ask to sort, rate or answer them."""
    chosen = rng.sample(REVIEWS, rng.randint(1, 3))
    body = "\n".join(f"{index}. {text}" for index, text in enumerate(chosen, 1))
    task = rng.choice(
        (
            "Say for each review whether it is positive, negative or mixed.",
            "Rate each review from 1 to 5 stars and give a reason.",
            "Write a polite answer to each of these customer reviews.",
            "What do these customers like, and what do they dislike?",
            "Correct the style of these reviews and make them clearer.",
        )
    )
    return f"{task}\n\n{body}"


def translate(rng: Random) -> str:
    """Ask for a translation or a rewording of sentences."""
    language = rng.choice(lists.LANGUAGES)
    one, two = rng.sample(lists.SENTENCES, 2)
    tone = rng.choice(("more polite", "more formal", "more casual", "shorter", "funnier"))
    return rng.choice(
        (
            f"Translate into {language}: {one}",
            f"Translate the following sentences into {language}.\n\n{one}\n{two}",
            f"How do you say '{one}' in {language}?",
            f"Translate '{one}' into {language} and explain each word.",
            f"Make this sentence {tone}: {one}",
            f"Rewrite this sentence in three different ways: {one}",
            f"Put this into the past tense: {one}",
            f"Write a short dialogue that contains the sentence '{one}'",
        )
    )


def roleplay(rng: Random) -> str:
    """Ask for an answer in the voice of some profession or person."""
    job = rng.choice(lists.JOBS)
    topic = rng.choice((*lists.CONCEPTS, *lists.THINGS, *lists.ANIMALS, *lists.SUBJECTS))
    return rng.choice(
        (
            f"Imagine you are {job}. Tell me about {topic}.",
            f"Pretend to be {job} and answer my question: what do you think about {topic}?",
            f"Act as {job}. I will ask about {topic}. Start with a greeting and a first thought.",
            f"How would {job} describe {topic}?",
            f"Write a short speech about {topic} as {job} would give it.",
            f"Write an interview with {job} about {topic}.",
        )
    )


def code(rng: Random) -> str:
    """Ask for a program."""
    task = rng.choice(lists.CODE_TASKS)
    language = rng.choice(("JavaScript", "Java", "C", "Rust", "Go", "TypeScript"))
    return rng.choice(
        (
            f"Write a Python function that {task}.",
            f"Write a Python program that {task}. Explain how it works.",
            f"Write Python code that {task}, and add comments.",
            f"Write a Python script that {task}. Include an example of its use.",
            f"How would you write a function in Python that {task}?",
            f"Write a Python function with type hints and a docstring that {task}.",
            f"Write {language} code that {task}.",
            f"Write unit tests for a Python function that {task}.",
            f"Describe in plain words, without code, a program that {task}.",
            f"What is the time complexity of a program that {task}? Show the code in Python.",
        )
    )


def doc_explain(rng: Random) -> str:
    """Ask what an object of the standard library does, given the start of its documentation."""
    entry = _entry(rng)
    head = f"{entry.name}{entry.signature}"
    return rng.choice(
        (
            f"Explain what {entry.name} does:\n\n{head}\n{entry.paragraph}",
            f"What is {entry.name} in Python used for?",
            f"Write a short Python example that uses {entry.name}.\n\n{head}\n{entry.paragraph}",
            f"When would I use {entry.name}? Its documentation says: {entry.paragraph}",
            f"Explain this to a beginner in Python: {entry.paragraph}",
            f"Show me how to use {entry.name} and explain the result.",
        )
    )


def doc_summary(rng: Random) -> str:
    """Ask for a summary or a rewording of a longer documentation text."""
    entry = _entry(rng, lambda found: len(found.text) > 250)
    task = rng.choice(
        (
            f"Summarise the documentation of {entry.name}:",
            "Summarise this documentation in two sentences:",
            f"Rewrite the documentation of {entry.name} in simpler words:",
            "What are the most important points of this text?",
            f"Write three questions that this documentation of {entry.name} answers:",
            "List the parameters and options named in this text and what each one does:",
        )
    )
    return f"{task}\n\n{entry.text}"


def doc_source(rng: Random) -> str:
    """Ask about the source code of a short function of the standard library."""
    entry = _entry(rng, lambda found: bool(found.source))
    task = rng.choice(
        (
            "Explain what this Python code does.",
            "Explain this function line by line.",
            "Add comments to this code.",
            "Rewrite this function with clearer names.",
            "Add type hints to this function.",
            "Write unit tests for this function.",
            "Is there anything in this code that could go wrong? Explain.",
            f"This is the source of {entry.name}. How does it work?",
        )
    )
    return f"{task}\n\n```python\n{entry.source}\n```"


def _entry(rng: Random, keep: Callable[[DocEntry], bool] = lambda _: True) -> DocEntry:
    """Return a random documented object that ``keep`` accepts (bounded tries, then the last)."""
    entries = stdlib_entries()
    entry = rng.choice(entries)
    for _ in range(200):
        if keep(entry):
            break
        entry = rng.choice(entries)
    return entry


Category = Callable[[Random], str]

# (function, share). Shares are relative.
CATEGORIES: Final[tuple[tuple[Category, int], ...]] = (
    (explain, 14),
    (facts, 9),
    (how_to, 11),
    (make_list, 8),
    (advice, 6),
    (story, 7),
    (poem, 5),
    (email, 4),
    (compare, 6),
    (passage, 5),
    (review, 2),
    (translate, 3),
    (roleplay, 4),
    (maths, 6),
    (reasoning, 3),
    (code, 6),
    (doc_explain, 4),
    (doc_summary, 3),
    (doc_source, 3),
)

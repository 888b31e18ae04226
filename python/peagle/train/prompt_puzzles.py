"""Maths and reasoning prompts with numbers drawn at random, written for this project."""

from __future__ import annotations

from random import Random

from peagle.train import prompt_lists as lists

_ENDINGS = ("", "", "", " Show your work.", " Explain each step.", " Think step by step.")


def maths(rng: Random) -> str:
    """Return a word problem or an exercise."""
    text = _word_problem(rng) if rng.random() < 0.65 else _exercise(rng)
    return text + rng.choice(_ENDINGS)


def reasoning(rng: Random) -> str:
    """Return a small puzzle of logic, order, time or sequence."""
    return rng.choice((_order, _sequence, _clock, _odd_one, _classify, _syllogism))(rng)


def _word_problem(rng: Random) -> str:
    name, other = rng.sample(lists.NAMES, 2)
    item, second = rng.sample(lists.ITEMS, 2)
    few, some, many = rng.randint(2, 9), rng.randint(10, 40), rng.randint(41, 180)
    price, speed = rng.randint(2, 15), rng.randint(4, 24) * 5
    percent = rng.choice((5, 10, 15, 20, 25, 30, 40, 50))
    return rng.choice(
        (
            f"{name} has {many} {item} and gives {some} of them to {other}. How many are left?",
            (
                f"{name} buys {few} {item} for {price} euros each and pays with a note of "
                f"{few * price + some} euros. How much change does {name} get?"
            ),
            f"A box holds {some} {item}. How many boxes are needed for {some * few + 3} {item}?",
            (
                f"{name} packs {few} bags with {some} {item} each. {other} packs {few + 2} bags "
                f"with {some - 3} {item} each. Who has more {item}, and by how many?"
            ),
            (
                f"A train travels at {speed} km/h for {few} hours and then at {speed + 20} km/h "
                f"for {few - 1} hours. How far does it go in total?"
            ),
            (
                f"A shirt costs {many} euros. In the sale it is {percent} percent cheaper. What "
                f"is the new price?"
            ),
            (
                f"{name} saves {price} euros each week. After how many weeks does {name} have "
                f"{many} euros?"
            ),
            (
                f"{name} and {other} share {many} {item} so that {name} gets twice as many. How "
                f"many does each one get?"
            ),
            f"The sum of two numbers is {many} and their difference is {few}. What are they?",
            (
                f"A garden is {some} metres long and {few} metres wide. How long is the fence "
                f"around it, and what is its area?"
            ),
            (
                f"In a class of {some} pupils, {percent} percent play an instrument. About how "
                f"many pupils is that?"
            ),
            (
                f"A recipe for {few} people needs {some * 10} grams of flour. How much flour is "
                f"needed for {few + 3} people?"
            ),
            (
                f"{name} reads {some} pages a day. A book has {some * few} pages. How long does it "
                f"take to read it, and how many pages are left after two days?"
            ),
            (
                f"A tank holds {many} litres. It is filled at {few} litres a minute. How many "
                f"minutes does it take?"
            ),
            (
                f"{name} has {few} {item} and {some} {second}. What fraction of all the things are "
                f"{item}?"
            ),
            (
                f"{name} is {few} years older than {other}. Together they are {some + few} years "
                f"old. How old is each of them?"
            ),
        )
    )


def _exercise(rng: Random) -> str:
    small, big = rng.randint(2, 12), rng.randint(13, 99)
    third, fourth = rng.randint(2, 20), rng.randint(100, 999)
    return rng.choice(
        (
            f"What is {big} times {small}?",
            f"Calculate {fourth} - {big} * {small}.",
            f"Solve the equation {small}x + {third} = {small * third + third}.",
            f"Solve for x: {small}x - {big} = {third}.",
            f"What is {third * 5} percent of {fourth}?",
            f"Is {fourth} a prime number?",
            f"Find the prime factors of {fourth}.",
            f"Write {big}/{fourth} as a decimal number and as a percentage.",
            f"What is the greatest common divisor of {big * small} and {small * third}?",
            f"Compute the mean and the median of {big}, {small}, {third}, {fourth} and {big + 7}.",
            f"A circle has a radius of {small} cm. What are its area and its circumference?",
            f"A right triangle has legs of {small} cm and {third} cm. How long is the hypotenuse?",
            f"Convert {fourth} centimetres to metres and to inches.",
            f"Convert {big} degrees Celsius to Fahrenheit.",
            f"What is the probability of rolling a sum of {small} with two dice?",
            f"Differentiate f(x) = {small}x^3 + {third}x^2 - {big}.",
            f"Expand (x + {small})(x - {third}).",
            f"Explain with the numbers {big} and {small} how long division works.",
        )
    )


def _order(rng: Random) -> str:
    first, second, third, fourth = rng.sample(lists.NAMES, 4)
    word, ends = rng.choice(
        (
            ("taller", ("tallest", "shortest")),
            ("older", ("oldest", "youngest")),
            ("faster", ("fastest", "slowest")),
        )
    )
    return (
        f"{first} is {word} than {second}. {third} is {word} than {first}. "
        f"{second} is {word} than {fourth}. Who is the {rng.choice(ends)}?"
    )


def _sequence(rng: Random) -> str:
    start, step = rng.randint(1, 30), rng.randint(2, 9)
    kind = rng.choice(("sum", "product", "square", "alternating"))
    if kind == "sum":
        numbers = [start + step * index for index in range(5)]
    elif kind == "product":
        numbers = [start * min(step, 4) ** index for index in range(5)]
    elif kind == "square":
        numbers = [start + index * index for index in range(1, 6)]
    else:
        numbers = [start + step * (index // 2) + (index % 2) * 50 for index in range(6)]
    return f"What comes next in the sequence {', '.join(map(str, numbers))}? Explain the rule."


def _clock(rng: Random) -> str:
    hour, minute, wait = rng.randint(6, 20), rng.randint(0, 11) * 5, rng.randint(5, 50) * 5
    day = rng.choice(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"))
    return rng.choice(
        (
            f"A film starts at {hour}:{minute:02d} and lasts {wait} minutes. When does it end?",
            f"Today is {day}. Which day of the week is it in {wait} days?",
            f"It is {hour}:{minute:02d} and my bus leaves {wait} minutes later. When does it "
            f"leave?",
        )
    )


def _odd_one(rng: Random) -> str:
    groups = (lists.ANIMALS, lists.CITIES, lists.DISHES, lists.COUNTRIES, lists.ITEMS)
    main, other = rng.sample(groups, 2)
    words = [*rng.sample(main, 3), rng.choice(other)]
    rng.shuffle(words)
    return f"Which of these does not belong with the others, and why? {', '.join(words)}"


def _classify(rng: Random) -> str:
    words = [
        *rng.sample(lists.ANIMALS, 3),
        *rng.sample(lists.DISHES, 2),
        *rng.sample(lists.CITIES, 2),
    ]
    rng.shuffle(words)
    return f"Sort these words into groups and name each group: {', '.join(words)}."


def _syllogism(rng: Random) -> str:
    item, second = rng.sample(lists.ITEMS, 2)
    name = rng.choice(lists.NAMES)
    return rng.choice(
        (
            (
                f"All {item} in the drawer are blue. {name} takes something blue out of the "
                f"drawer. Is it certain that it is one of the {item}? Explain."
            ),
            (
                f"If it rains, {name} stays at home. {name} is not at home. Does it rain? Explain "
                f"your reasoning."
            ),
            (
                f"Some {item} are red and all {second} are red. Does it follow that some {item} "
                f"are {second}?"
            ),
            f"{name} says: 'Everything I say on Fridays is false.' Can that be true? Explain.",
        )
    )

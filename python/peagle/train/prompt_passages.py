"""Short texts for summaries and extraction, written for this project."""

from __future__ import annotations

from random import Random
from typing import Final

from peagle.train import prompt_lists as lists

PASSAGES: Final = (
    (
        "The town of Merrow built its first library in an old salt warehouse. The thick walls "
        "that once kept the salt dry now keep the books at an even temperature. Visitors often "
        "remark on the smell of the sea, which has never quite left the timber."
    ),
    (
        "Beekeepers in the valley have changed the way they work. Instead of moving hives by "
        "truck every month, they plant strips of flowers that bloom one after another. The bees "
        "travel less, the farmers get free pollination, and the honey tastes slightly different "
        "each season."
    ),
    (
        "A good knife is safer than a bad one. A dull blade slips, so the cook presses harder and "
        "loses control. Five minutes with a whetstone once a week keep the edge keen, and the tip "
        "of the blade should always point away from the hand."
    ),
    (
        "When the power failed, the whole street came outside. Somebody brought candles, somebody "
        "else a guitar. By the time the lights returned, neighbours who had never spoken were "
        "arguing cheerfully about the best way to grow beans."
    ),
    (
        "Early maps of the northern coast show an island that does not exist. Sailors reported it "
        "for almost two hundred years. Most likely they saw banks of fog that looked like land, "
        "and each new map copied the mistake of the one before."
    ),
    (
        "The company measured how long its meetings took and what they cost. The result surprised "
        "everyone: a weekly meeting of twelve people was more expensive than the new printer they "
        "had argued about for a month. The meeting was replaced by a short written note."
    ),
    (
        "Sleep is not a pause of the brain. During deep sleep the brain sorts what was learned in "
        "the day, and during dreams it links new memories to old ones. People who sleep after "
        "studying remember more than people who stay awake."
    ),
    (
        "The old ferry carried eleven cars and a dog named Captain. It crossed the river forty "
        "times a day, in rain and sun. When the bridge opened, the ferry became a café, and the "
        "dog kept his place at the bow."
    ),
    (
        "Sourdough bread needs only flour, water, salt and time. Wild yeast makes the dough rise "
        "and bacteria give it a sour taste. Because the process is slow, the baker must plan a "
        "day ahead, but the loaf stays fresh for almost a week."
    ),
    (
        "In the desert, plants compete for water rather than for light. Some grow roots of thirty "
        "metres, others store water in thick stems. A few wait as seeds for many years and then "
        "flower within days of a single storm."
    ),
    (
        "Software grows like a garden: without pruning it becomes a thicket. Each new feature "
        "seems small, yet together they make every later change harder. Teams that remove code as "
        "gladly as they write it tend to move faster in the long run."
    ),
    (
        "The violin had hung on the wall for sixty years. When Ines took it down, two strings "
        "broke and the bow had lost its hair. The repairer shook his head, then smiled: inside, "
        "hardly readable, was the name of his own grandfather."
    ),
    (
        "Trams disappeared from many cities in the middle of the last century, when cars seemed "
        "to be the future. Today several cities lay tracks again. Trams carry more people per "
        "hour than a lane of cars and are quieter than buses."
    ),
    (
        "A glacier is a river of ice. Snow falls on the upper part, is pressed into ice and flows "
        "slowly downhill, scraping the rock beneath. Where the ice melts faster than it arrives, "
        "the glacier becomes shorter."
    ),
    (
        "Every spring the school holds a market. The pupils sell what they have made: jam, "
        "birdhouses and, last year, a robot that waters plants. They set the prices themselves "
        "and learn quickly that a fair price and a wished-for price are not the same."
    ),
    (
        "Paper was once made from rags. As more people learned to read, rags became scarce, and "
        "inventors tried straw, nettles and even wasps' nests. In the end wood solved the problem, "
        "but the new paper turned yellow after a few decades."
    ),
    (
        "The experiment failed three times. On the fourth attempt Priya noticed that the window "
        "was open and the air moved the scale. She closed it, measured again, and the numbers "
        "finally agreed with the theory to within one percent."
    ),
    (
        "Cities are warmer than the land around them. Stone and asphalt store the heat of the day, "
        "and there is little shade. Trees, light-coloured roofs and open water can lower the "
        "temperature of a street by several degrees."
    ),
    (
        "Learning an instrument is mostly a matter of rhythm, and not only in the music. Ten "
        "minutes every day work better than two hours on Sunday. The fingers need rest in order "
        "to remember what they have practised."
    ),
    (
        "The harbour was silent when the letter arrived. It was addressed to a ship that had "
        "sailed ten years ago. The harbour master turned it over twice, poured himself some tea "
        "and then, against every rule, opened it."
    ),
)

REVIEWS: Final = (
    "The room was clean and the staff were friendly, but the street outside was far too loud.",
    "Best noodles I have had in years. We will certainly come back next week!",
    "The lamp arrived broken, and nobody answered my messages for ten days.",
    "Good value for the price. The battery lasts about two days, as promised.",
    "The story starts slowly, but the last hundred pages are impossible to put down.",
    "I waited forty minutes for a cold soup. Never again.",
    "The jacket looks nice, although the zip feels cheap and the sleeves are a bit short.",
    "Our guide knew everything about the old town and made even the children laugh.",
    "The app is easy to use, but it crashes each time I open the settings.",
    "A quiet little café with wonderful cake. The coffee could be stronger.",
    "The course was well organised and the exercises helped me a lot.",
    "The sound of these headphones is great, yet they hurt after an hour.",
    "Delivery took three weeks instead of three days, but the chair itself is excellent.",
    "I expected more from the second season; the jokes felt tired.",
    "The vacuum cleaner is light, quiet and strong. I would buy it again.",
    "The paint dried in an hour and covered the old colour with a single coat.",
)

_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


def news_item(rng: Random) -> str:
    """Return a short invented news item with names, places, dates and numbers."""
    name, other = rng.sample(lists.NAMES, 2)
    city, month, day = rng.choice(lists.CITIES), rng.choice(_MONTHS), rng.randint(1, 28)
    people, percent = rng.randint(12, 900), rng.randint(3, 48)
    year, price = rng.randint(2008, 2024), rng.randint(2, 60) * 5
    return rng.choice(
        (
            (
                f"On {day} {month}, {people} people met in {city} for the yearly kite festival. "
                f"{name}, who founded the event in {year}, said that the number of visitors had "
                f"grown by {percent} percent. Tickets cost {price} euros, and children entered "
                f"for free."
            ),
            (
                f"A small company from {city} presented a folding bicycle that weighs only "
                f"{rng.randint(6, 11)} kilograms. According to its designer, {name}, the first "
                f"{people} bicycles were sold within a week at {price * 10} euros each. A cheaper "
                f"model should follow in {month}."
            ),
            (
                f"The museum in {city} will stay closed until {day} {month}. Workers found water "
                f"in the cellar, where {people} paintings are stored. The director, {name}, said "
                f"that none was damaged. Her colleague {other} expects the repairs to cost "
                f"{price} thousand euros."
            ),
            (
                f"Students in {city} measured the noise on {people % 40 + 5} streets. They found "
                f"that speed limits lowered the noise by {percent} percent. {name} and {other} "
                f"will present the results to the mayor on {day} {month}."
            ),
            (
                f"{name} and {other} opened a bakery in {city} in {year}. At first they sold "
                f"{people} rolls a day. Today they have {rng.randint(2, 9)} shops, "
                f"{rng.randint(10, 80)} employees, and a cookbook that costs {price} euros."
            ),
            (
                f"The night train to {city} returns on {day} {month}. It has {rng.randint(4, 12)} "
                f"sleeping cars and room for {people} travellers. A place costs from {price} "
                f"euros. The line had been closed since {year}."
            ),
        )
    )

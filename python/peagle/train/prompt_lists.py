"""Word lists for the built-in training prompts.

Written for this project. What the demo prompts and the benchmark sets ask about is left out.
"""

from __future__ import annotations

from typing import Final


def _words(text: str) -> tuple[str, ...]:
    """Split at ``|`` and fold white space."""
    return tuple(" ".join(part.split()) for part in text.split("|") if part.strip())


CONCEPTS: Final = _words("""
gravity | inflation | the water cycle | electric current | magnetism | plate tectonics |
the greenhouse effect | natural selection | DNA | the immune system | antibiotics | vaccines |
black holes | supernovae | the Big Bang | dark matter | comets | eclipses | tides | the seasons |
nuclear fusion | nuclear fission | radioactivity | the periodic table | chemical bonds |
acids and bases | catalysts | osmosis | fermentation | crystals | superconductors | lasers |
semiconductors | transistors | batteries | solar panels | wind turbines | heat pumps |
internal combustion engines | jet engines | electric motors | refrigerators | microwave ovens |
fibre optics | GPS | radio waves | sound waves | the Doppler effect | friction | inertia |
momentum | kinetic energy | entropy | thermodynamics | relativity | probability | prime numbers |
fractions | percentages | logarithms | imaginary numbers | geometry | calculus | statistics |
standard deviation | correlation and causation | game theory | supply and demand |
opportunity cost | compound interest | mortgages | bonds | the stock market | central banks |
exchange rates | taxes | tariffs | monopolies | insurance | pensions | budgeting | credit scores |
globalisation | democracy | federalism | the separation of powers | human rights |
constitutional monarchy | international law | diplomacy | propaganda | stoicism | utilitarianism |
existentialism | the trolley problem | free will | the scientific method | Occam's razor |
cognitive biases | confirmation bias | the placebo effect | memory | sleep | dreams | stress |
motivation | habits | emotional intelligence | classical conditioning | machine learning |
neural networks | large language models | recommendation systems | search engines | encryption |
passwords | blockchain | cloud computing | operating systems | compilers | databases | caching |
recursion | object-oriented programming | version control | unit testing | the internet |
web browsers | DNS | Wi-Fi | Bluetooth | firewalls | open source software | agile development |
code review | the French Revolution | the Industrial Revolution | the Renaissance |
the Roman Empire | ancient Egypt | the Silk Road | the Cold War | the fall of the Berlin Wall |
the printing press | the Black Death | the Viking Age | the Ottoman Empire | the Space Race |
the Great Depression | the Magna Carta | the Enlightenment | feudalism | colonialism |
the abolition of slavery | women's suffrage | impressionism | cubism | baroque music | jazz |
opera | haiku | sonnets | Greek tragedy | perspective in painting | architecture | photography |
film editing | animation | typography | coral reefs | rainforests | deserts | volcanoes |
earthquakes | hurricanes | glaciers | rivers | wetlands | soil | pollination | migration of birds |
hibernation | camouflage | food chains | invasive species | biodiversity | recycling | composting |
renewable energy | carbon footprints | urban planning | public transport | vertical farming |
genetic engineering | stem cells | the human heart | the lungs | the liver | the brain | bones |
muscles | blood pressure | allergies | diabetes | vitamins | protein | hydration | metabolism |
meditation | yoga | marathon training | first aid | mental health | time zones | leap years |
calendars | maps | the metric system | punctuation | metaphors | irony | etymology | sign language
""")

THINGS: Final = _words("""
a bicycle | a piano | a guitar | a telescope | a microscope | a camera | a clock | a compass |
a mirror | a candle | a kite | a ladder | a lighthouse | a suitcase | an umbrella | a library card |
a teapot | a coffee machine | a washing machine | a lawn mower | a sewing machine | a tent |
a backpack | a pair of running shoes | a winter coat | a pocket knife | a laptop | a keyboard |
a smartphone | a printer | a 3D printer | a drone | an electric scooter | a sailing boat |
a greenhouse | a fireplace | a bookshelf | a desk lamp | a notebook | a fountain pen
""")

SKILLS: Final = _words("""
bake sourdough bread | make pancakes | cook rice | poach an egg | make tomato soup |
grill vegetables | roast a chicken | brew good coffee | make green tea | make yogurt at home |
sharpen a kitchen knife | clean an oven | remove a coffee stain | iron a shirt | sew on a button |
fold a fitted sheet | unclog a drain | fix a dripping tap | paint a room | hang a picture |
assemble a bookshelf | change a light bulb safely | change a flat tyre | jump-start a car |
repair a bicycle puncture | oil a bicycle chain | plan a road trip | pack light for a week |
choose a hiking backpack | pitch a tent | start a campfire | read a map | tie a bowline |
swim freestyle | learn to ski | train for a 10 km race | start running | do a proper push-up |
stretch after exercise | build a morning routine | fall asleep faster | drink more water |
stop procrastinating | manage my time | write a to-do list | prepare for a job interview |
write a cover letter | write a CV | ask for a raise | give constructive feedback |
run a productive meeting | give a presentation | overcome stage fright | negotiate a price |
save money on groceries | make a monthly budget | start an emergency fund | pay off debt |
choose a savings account | learn a new language | memorise vocabulary | take better notes |
study for an exam | read faster | learn to touch-type | learn to play the guitar | read music |
draw a face | take better photos | edit a video | start a podcast | start a blog |
write a short story | write a poem | keep a diary | organise a bookshelf | declutter a wardrobe |
grow tomatoes | grow herbs on a balcony | prune roses | water house plants | repot a cactus |
start a compost heap | build a raised garden bed | attract bees to a garden | train a puppy |
introduce two cats | look after a goldfish | brush a long-haired dog | trim a rabbit's nails |
teach a child to read | plan a birthday party | organise a family reunion | host a dinner party |
choose a gift | write a thank-you note | write a wedding speech | apologise sincerely |
make friends in a new city | set up a home office | back up a computer | speed up an old laptop |
create a strong password | spot a phishing email | set up a home network | learn Python |
contribute to open source | debug a program | write clean code | design a simple database |
play chess well | solve a Rubik's cube | juggle three balls | do a card trick | fold a paper crane
""")

LISTABLE: Final = _words("""
healthy breakfasts | quick vegetarian dinners | snacks for a long hike | desserts without an oven |
indoor activities for a rainy day | outdoor games for children | board games for two players |
team-building activities | icebreaker questions | conversation starters |
hobbies for retired people | hobbies that cost nothing | books for teenagers | classic novels |
science fiction ideas | mystery plot ideas | names for a cat | names for a small bakery |
names for a fantasy kingdom | names for a chess club | slogans for a bicycle shop |
slogans for a recycling campaign | blog post ideas about gardening | blog post ideas about travel |
podcast topics | science fair projects | experiments to do at home |
programming projects for beginners | web app ideas | apps for students |
interview questions for a teacher | interview questions for a data analyst |
questions to ask a landlord | things to check before buying a used car |
things to pack for a beach holiday | things to pack for a ski trip | items for a first-aid kit |
tools every home needs | house plants that need little light | vegetables that grow in spring |
trees with edible fruit | birds found in cities | animals that sleep in winter |
mammals that live in the sea | insects that help gardeners | dog breeds for families |
inventions that changed the world | women who changed science | famous composers | famous painters |
ancient civilisations | planets and one fact about each | countries in South America |
rivers in Europe | mountain ranges | islands worth visiting | museums worth visiting |
festivals around the world | traditional dances | musical instruments | types of clouds |
types of bridges | types of cheese | types of pasta | spices | sources of protein |
foods rich in iron | foods rich in fibre | ways to relax after work | ways to save energy at home |
ways to save water | ways to reduce plastic waste | ways to reuse glass jars |
ways to stay motivated | ways to improve concentration | ways to learn new words |
ways to thank a colleague | ways to welcome a new neighbour | gift ideas for a grandmother |
gift ideas for a ten-year-old | gift ideas under 20 euros | benefits of walking |
benefits of reading | benefits of learning an instrument | benefits of working from home |
drawbacks of working from home | reasons to visit a library | reasons to learn to cook |
reasons people move abroad | common mistakes in public speaking | common mistakes in essays |
common mistakes new runners make | common mistakes new gardeners make |
common mistakes in Python programs | synonyms for happy | synonyms for important |
adjectives for the sea | words that describe a forest | rhymes for light | riddles for children |
tongue twisters | short jokes about computers | fun facts about octopuses |
fun facts about the Moon | fun facts about honey | New Year's resolutions |
safety rules for a laboratory | rules for a shared kitchen | rules for a book club |
tips for a first day at work | tips for travelling with children | tips for taking photos at night |
tips for renting a flat | tips for online meetings | tips for writing emails |
steps to start a small business | questions for a quiz about space |
questions for a quiz about food | questions for a quiz about films
""")

COUNTRIES: Final = _words("""
Argentina | Australia | Austria | Bangladesh | Belgium | Bolivia | Brazil | Bulgaria | Cambodia |
Canada | Chile | Colombia | Croatia | Cuba | Denmark | Ecuador | Egypt | Estonia | Ethiopia |
Finland | Germany | Ghana | Greece | Hungary | Iceland | India | Indonesia | Ireland | Israel |
Italy | Jamaica | Japan | Jordan | Kenya | Latvia | Lithuania | Madagascar | Malaysia | Mexico |
Mongolia | Morocco | Nepal | New Zealand | Nigeria | Norway | Oman | Pakistan | Panama | Peru |
Poland | Portugal | Romania | Senegal | Serbia | Singapore | Slovakia | Slovenia | South Africa |
South Korea | Spain | Sri Lanka | Sweden | Switzerland | Tanzania | Thailand | Tunisia | Turkey |
Uganda | Ukraine | Uruguay | Vietnam | Zambia | Zimbabwe
""")

CITIES: Final = _words("""
Amsterdam | Athens | Barcelona | Berlin | Bogotá | Boston | Budapest | Buenos Aires | Cairo |
Cape Town | Chicago | Copenhagen | Dublin | Edinburgh | Florence | Hanoi | Helsinki | Istanbul |
Kyoto | Lisbon | London | Madrid | Marrakesh | Melbourne | Mexico City | Montreal | Mumbai |
Nairobi | New York | Oslo | Porto | Prague | Reykjavik | Rome | San Francisco | Seoul | Seville |
Singapore | Stockholm | Sydney | Tallinn | Tokyo | Toronto | Valparaíso | Vancouver | Venice |
Vienna | Zurich
""")

PERSONS: Final = _words("""
Marie Curie | Isaac Newton | Albert Einstein | Galileo Galilei | Charles Darwin | Ada Lovelace |
Alan Turing | Grace Hopper | Nikola Tesla | Thomas Edison | Rosalind Franklin | Louis Pasteur |
Alexander Fleming | Florence Nightingale | Johannes Kepler | Emmy Noether | Carl Friedrich Gauss |
Leonhard Euler | Archimedes | Hypatia of Alexandria | Aristotle | Plato | Confucius |
Marcus Aurelius | Cleopatra | Julius Caesar | Genghis Khan | Joan of Arc | Leonardo da Vinci |
Michelangelo | Vincent van Gogh | Frida Kahlo | Claude Monet | Pablo Picasso |
Ludwig van Beethoven | Wolfgang Amadeus Mozart | Johann Sebastian Bach | Clara Schumann |
Louis Armstrong | Miles Davis | William Shakespeare | Jane Austen | Mary Shelley | Charles Dickens |
Leo Tolstoy | Emily Dickinson | Virginia Woolf | Jorge Luis Borges | Gabriel García Márquez |
Toni Morrison | Nelson Mandela | Mahatma Gandhi | Martin Luther King | Rosa Parks |
Abraham Lincoln | Winston Churchill | Amelia Earhart | Neil Armstrong | Valentina Tereshkova |
Jacques Cousteau | Jane Goodall | Marco Polo | Ibn Battuta | Ferdinand Magellan |
Ernest Shackleton | Roald Amundsen
""")

ANIMALS: Final = _words("""
elephants | blue whales | dolphins | octopuses | sharks | sea turtles | penguins | owls | eagles |
hummingbirds | crows | parrots | bees | ants | butterflies | spiders | frogs | snakes | crocodiles |
lizards | bats | bears | wolves | foxes | lions | tigers | cheetahs | giraffes | hippos | zebras |
horses | cows | goats | sheep | pigs | chickens | cats | dogs | rabbits | hedgehogs | squirrels |
beavers | otters | kangaroos | koalas | platypuses | sloths | salmon | jellyfish | seahorses
""")

DISHES: Final = _words("""
lasagne | risotto | paella | ramen | pad thai | vegetable curry | lentil soup | minestrone |
French onion soup | quiche | ratatouille | shakshuka | falafel | hummus | tabbouleh | moussaka |
tacos | guacamole | chilli | burritos | fried rice | dumplings | sushi rolls | miso soup | pho |
goulash | pierogi | potato salad | Caesar salad | Greek salad | pizza dough | focaccia |
garlic bread | scones | banana bread | carrot cake | apple pie | cheesecake | brownies |
oatmeal cookies | tiramisu | crêpes | waffles | omelette | granola | mashed potatoes |
roasted pumpkin | stuffed peppers
""")

PAIRS: Final = _words("""
cats and dogs as pets | tea and coffee | living in a city and living in the countryside |
renting and buying a home | electric cars and petrol cars | trains and planes |
public and private schools | studying alone and studying in a group | paper books and e-books |
cinema and streaming | running and swimming | yoga and pilates | gas stoves and induction stoves |
butter and olive oil | white bread and wholemeal bread | a credit card and a debit card |
stocks and bonds | saving and investing | leasing and buying a car |
online shopping and local shops | remote work and office work | a freelancer and an employee |
a leader and a manager | Python and JavaScript | Python and Java | Rust and C |
SQL and NoSQL databases | Linux and macOS | a list and a tuple in Python | a process and a thread |
TCP and UDP | HTTP and HTTPS | REST and GraphQL | Git merge and Git rebase |
compiled and interpreted languages | frontend and backend development | RAM and disk storage |
a virus and a bacterium | weather and climate | mitosis and meiosis | plant cells and animal cells |
speed and velocity | mass and weight | heat and temperature | a comet and an asteroid |
alligators and crocodiles | frogs and toads | moths and butterflies | stars and planets |
solar power and wind power | fruit and vegetables | herbs and spices | jam and marmalade |
gelato and ice cream | a violin and a viola | classical music and jazz | poetry and prose |
a novel and a short story | similes and metaphors | facts and opinions | ethics and law |
capitalism and socialism | direct and representative democracy | a republic and a monarchy |
the Greek and the Roman gods | oil paint and watercolours | film cameras and digital cameras |
mountains and the beach for a holiday | camping and hotels | early birds and night owls |
introverts and extroverts | introspection and rumination | a mentor and a coach |
empathy and sympathy
""")

SITUATIONS: Final = _words("""
I keep forgetting people's names | my neighbour plays loud music at night |
I feel tired every afternoon | I cannot concentrate at work |
I am nervous about my first day at a new job | I argue a lot with my brother |
my teenage daughter does not talk to me | my son does not like vegetables |
my dog barks at visitors | my cat scratches the sofa | I want to change careers at forty |
I have two job offers | my boss never gives me feedback | a colleague takes credit for my work |
I have to give a speech next week | I failed an exam | I want to quit smoking |
I spend too much time on my phone | I eat too many sweets | I have trouble falling asleep |
I feel lonely in a new city | I lost contact with an old friend | my friend owes me money |
my flatmate never cleans the kitchen | I want to learn to cook but have no time |
I have only 300 euros left this month | I want to buy my first car | my laptop is very slow |
I forgot my wallet on a train | my plants keep dying | my flight was cancelled |
I hate running but want to be fit | I sit at a desk all day and my back hurts |
I want to read more books | I never finish what I start | I am afraid of flying |
I am shy at parties | I am bored with my routine | I want to write a novel |
I want to move abroad with my family | my grandmother wants to learn to use a tablet |
we are planning a wedding on a small budget | we are expecting our first child |
I want to adopt a dog but work full time | I have to choose a university |
I do not know what to study | my team misses every deadline | our meetings are too long |
I get too many emails | a customer left an angry review | I want to start a small online shop |
I need to learn statistics quickly
""")

CHARACTERS: Final = _words("""
a retired detective | a young baker | a lonely lighthouse keeper | a clumsy wizard |
a curious robot | a talking fox | an old sailor | a shy violinist | a night-shift nurse |
a clockmaker | a lost tourist | a space engineer | two rival gardeners | a girl who can hear trees |
a boy with a paper boat | a forgetful king | a brave mouse | a dragon who is afraid of fire |
a mail carrier | a time traveller | a blind painter | a grandmother who codes | a taxi driver |
a stray dog | an honest thief | a chess champion | a librarian | a beekeeper | a mountain guide |
an astronaut on her first mission
""")

SETTINGS: Final = _words("""
in a village by the sea | on a night train | in an empty theatre | in a city without colours |
on a space station | in a snowed-in hotel | in a desert town | in an old library |
on a floating market | in a forest that moves | during a power cut | at a railway station |
in a small mountain school | on the last day of summer | in a museum after closing time |
under a frozen lake | on a rooftop garden | in a kingdom of clouds | at a repair shop |
in a house with one locked door | on a remote island | in the year 2150 | at a country fair |
on a fishing boat | in a quiet bookshop
""")

TWISTS: Final = _words("""
finds a letter with no address | must keep a secret for one day | discovers a hidden room |
meets someone from the past | loses the one thing that matters | learns to forgive |
has to choose between two promises | receives a strange gift | hears a voice on the radio |
wakes up and nobody remembers them | makes an unlikely friend |
repairs something that seemed broken | wins a contest by accident |
finds out that the map is wrong | must cross the river before dawn | teaches a stranger a song |
is mistaken for somebody famous | decides to go home
""")

SUBJECTS: Final = _words("""
autumn leaves | the first snow | the sea at night | a summer storm | a quiet morning |
the smell of rain | an old tree | a city at dawn | the moon | a train journey | a cup of tea |
a garden in spring | friendship | growing older | childhood | a lost key | hope | silence |
courage | patience | home | a long winter | a river | the wind | a mountain path | a sleeping cat |
a faithful dog | a migrating goose | fireflies | the last day of school | a letter from a friend |
a broken clock | the kitchen of my grandmother | learning to ride a bicycle | a computer bug |
a robot in love | a lazy Sunday | coffee | bread | a market
""")

EMAILS: Final = _words("""
asking a landlord to repair the heating | inviting colleagues to a farewell lunch |
thanking a client for their patience | apologising for a late delivery | asking for a day off |
declining a job offer politely | accepting an invitation to speak |
asking a teacher for an extension | requesting a refund for a broken lamp |
following up after an interview | cancelling a gym membership | introducing a new team member |
announcing a change of office hours | asking a neighbour to water plants |
congratulating a friend on a new job | proposing a weekly project meeting |
reporting a lost parcel | asking for information about a language course |
booking a table for twelve people | reminding the team about a deadline |
asking a supplier for a quotation | welcoming a new customer |
complaining about a noisy hotel room | asking for a letter of recommendation |
resigning from a job | confirming a dentist appointment | sharing the notes of a meeting |
asking for help with a presentation | postponing a workshop by one week |
inviting a guest lecturer | offering help to a new colleague
""")

LANGUAGES: Final = ("French", "Spanish", "German", "Italian", "Portuguese", "Dutch")

SENTENCES: Final = _words("""
The train leaves at half past seven. | Where is the nearest pharmacy? |
I would like a glass of water. | My sister lives in a small house by the river. |
It has been raining since this morning. | We are looking forward to meeting you. |
Could you please speak more slowly? | The museum is closed on Monday. |
He forgot his umbrella in the office. | She has been learning the piano for two years. |
How much does this jacket cost? | The soup is too hot to eat. |
I have never been to the mountains. | Thank you for your help yesterday. |
The children are playing in the garden. | Turn left after the bridge. |
We need more time to finish the project. | The results of the test will arrive tomorrow. |
Reading before bed helps me to fall asleep. | There are three apples on the table. |
If it is sunny tomorrow, we will go to the beach. | Please close the window before you leave. |
The shop around the corner sells fresh bread. | I lost my keys, so I had to call my neighbour.
""")

CODE_TASKS: Final = _words("""
reverses the words of a sentence | counts how often each letter occurs in a string |
checks whether two strings are anagrams | converts Celsius to Fahrenheit |
converts a Roman numeral to an integer | finds all divisors of a number |
prints a multiplication table | computes the factorial of a number iteratively |
merges two dictionaries and adds the values of shared keys | flattens a nested list |
splits a list into chunks | removes duplicates from a list and keeps the order |
finds the second largest number in a list | rotates a list by k places | transposes a matrix |
multiplies two matrices | computes a moving average | finds the mode of a list |
validates an email address with a regular expression | extracts all links from HTML text |
counts the lines of every Python file in a folder | renames all files in a folder to lower case |
reads a CSV file and prints the average of one column |
writes a list of dictionaries to a JSON file | parses a date and returns the day of the week |
computes the number of days between two dates | generates a random password |
simulates rolling two dice a thousand times | draws a triangle of stars |
plays rock, paper, scissors against the user | implements a stack with a list |
implements a queue with two stacks | implements a linked list | implements binary search |
implements bubble sort | implements merge sort | implements quicksort |
implements depth-first search on a graph | implements breadth-first search on a grid |
finds the shortest path with Dijkstra's algorithm | solves the Tower of Hanoi |
solves the eight queens problem | generates all permutations of a string |
computes the greatest common divisor | lists the primes below n | converts a number to binary |
checks whether brackets are balanced | compresses a string with run-length encoding |
encrypts text with a Caesar cipher | counts vowels in a text | finds the longest word in a text |
formats a number with thousands separators | retries a function up to three times |
measures how long a function takes | caches the results of a function |
reads a file lazily line by line | groups a list of words by their first letter |
sorts a list of tuples by the second item | computes the dot product of two vectors |
finds missing numbers in a range | converts a nested dictionary to flat keys |
downloads a web page with the standard library | parses command line arguments |
represents a bank account as a class | represents a deck of cards as a class |
represents a two-dimensional vector as a class | models a shopping cart with discounts |
models a library with books and members | models a simple vending machine
""")

WORDS: Final = _words("""
serendipity | ephemeral | resilience | ambiguous | pragmatic | eloquent | nostalgia | meticulous |
benevolent | candid | diligent | elusive | frugal | gregarious | humility | impartial | jubilant |
keen | lucid | mundane | novel | obsolete | paradox | quaint | reluctant | subtle | tedious |
ubiquitous | versatile | whimsical | zeal | abundant | brisk | coherent | daunting | empathy |
feasible | genuine | hectic | intuition | juxtapose | leverage
""")

NAMES: Final = _words("""
Anna | Ben | Carla | Diego | Elena | Felix | Greta | Hassan | Ines | Jonas | Kira | Liam | Maya |
Nadia | Oscar | Priya | Quentin | Rosa | Samir | Tara | Umar | Vera | Wei | Yuki | Zoe
""")

ITEMS: Final = _words("""
apples | pears | pencils | notebooks | marbles | stickers | cookies | tickets | candles |
postcards | lemons | buttons | bottles of juice | boxes of chalk | seashells | plums | muffins |
light bulbs
""")

JOBS: Final = _words("""
a teacher | a nurse | a gardener | a travel guide | a chef | a carpenter | an accountant |
a librarian | a historian | a physicist | a biologist | a journalist | a personal trainer |
a financial adviser | a pirate captain | a medieval knight | a friendly alien |
an ancient philosopher | a museum guide | a weather reporter | a sports commentator |
a job interviewer | a strict editor | a kind grandmother
""")

"""The words of the phrases: nouns with their German gender and plural, names, places.

A noun is a row "english, english plural, article, german, german plural[, german
dative plural]". The dative plural is given only where it is not the plural with an -n
(if it does not end in n or s yet), as for Euro. German nouns here are all strong: their
singular is the same in the nominative, the accusative and the dative.
"""

from typing import NamedTuple


class Noun(NamedTuple):
    """A noun in both languages; `gender` is the German article: der, die, das."""

    english: str
    english_plural: str
    gender: str
    german: str
    german_plural: str
    german_dative_plural: str


FOOD = """
apple, apples, der, Apfel, Äpfel
orange, oranges, die, Orange, Orangen
egg, eggs, das, Ei, Eier
lemon, lemons, die, Zitrone, Zitronen
carrot, carrots, die, Karotte, Karotten
pear, pears, die, Birne, Birnen
bread roll, bread rolls, das, Brötchen, Brötchen
cucumber, cucumbers, die, Gurke, Gurken
mushroom, mushrooms, der, Pilz, Pilze
"""
DISHES = """
cup, cups, die, Tasse, Tassen
plate, plates, der, Teller, Teller
fork, forks, die, Gabel, Gabeln
spoon, spoons, der, Löffel, Löffel
knife, knives, das, Messer, Messer
glass, glasses, das, Glas, Gläser
pot, pots, der, Topf, Töpfe
"""
PEOPLE = """
guest, guests, der, Gast, Gäste
visitor, visitors, der, Besucher, Besucher
child, children, das, Kind, Kinder
woman, women, die, Frau, Frauen
man, men, der, Mann, Männer
player, players, der, Spieler, Spieler
musician, musicians, der, Musiker, Musiker
passenger, passengers, der, Fahrgast, Fahrgäste
"""
ANIMALS = """
cow, cows, die, Kuh, Kühe
horse, horses, das, Pferd, Pferde
sheep, sheep, das, Schaf, Schafe
goat, goats, die, Ziege, Ziegen
pig, pigs, das, Schwein, Schweine
donkey, donkeys, der, Esel, Esel
"""
PETS = """
dog, dogs, der, Hund, Hunde
cat, cats, die, Katze, Katzen
bird, birds, der, Vogel, Vögel
hamster, hamsters, der, Hamster, Hamster
rabbit, rabbits, das, Kaninchen, Kaninchen
"""
GOODS = """
coat, coats, der, Mantel, Mäntel
jacket, jackets, die, Jacke, Jacken
hat, hats, der, Hut, Hüte
bicycle, bicycles, das, Fahrrad, Fahrräder
camera, cameras, die, Kamera, Kameras
table, tables, der, Tisch, Tische
sofa, sofas, das, Sofa, Sofas
suitcase, suitcases, der, Koffer, Koffer
lamp, lamps, die, Lampe, Lampen
"""
FURNITURE = """
chair, chairs, der, Stuhl, Stühle
carpet, carpets, der, Teppich, Teppiche
mirror, mirrors, der, Spiegel, Spiegel
clock, clocks, die, Uhr, Uhren
bed, beds, das, Bett, Betten
picture, pictures, das, Bild, Bilder
"""
EVENTS = """
meeting, meetings, die, Besprechung, Besprechungen
concert, concerts, das, Konzert, Konzerte
course, courses, der, Kurs, Kurse
lecture, lectures, der, Vortrag, Vorträge
exam, exams, die, Prüfung, Prüfungen
game, games, das, Spiel, Spiele
party, parties, die, Party, Partys
"""
VEHICLES = """
train, trains, der, Zug, Züge
bus, buses, der, Bus, Busse
ship, ships, das, Schiff, Schiffe
ferry, ferries, die, Fähre, Fähren
night train, night trains, der, Nachtzug, Nachtzüge
"""
SPANS = """
minute, minutes, die, Minute, Minuten
hour, hours, die, Stunde, Stunden
day, days, der, Tag, Tage
week, weeks, die, Woche, Wochen
month, months, der, Monat, Monate
year, years, das, Jahr, Jahre
"""
UNITS = """
euro, euros, der, Euro, Euro, Euro
dollar, dollars, der, Dollar, Dollar, Dollar
franc, francs, der, Franken, Franken
pound, pounds, das, Pfund, Pfund, Pfund
cent, cents, der, Cent, Cent, Cent
degree, degrees, das, Grad, Grad, Grad
kilometer, kilometers, der, Kilometer, Kilometer
meter, meters, der, Meter, Meter
million, million, die, Million, Millionen
page, pages, die, Seite, Seiten
book, books, das, Buch, Bücher
stamp, stamps, die, Briefmarke, Briefmarken
"""


def _nouns(table: str) -> dict[str, Noun]:
    """The rows of a table, by their English singular."""
    nouns = {}
    for line in table.strip().splitlines():
        fields = line.split(", ")
        if len(fields) == 5:
            plural = fields[4]
            fields.append(plural if plural[-1] in "ns" else plural + "n")
        nouns[fields[0]] = Noun(*fields)
    return nouns


_TABLES = (
    FOOD, DISHES, PEOPLE, ANIMALS, PETS, GOODS, FURNITURE, EVENTS, VEHICLES, SPANS,
    UNITS,
)  # fmt: skip
NOUNS = {key: noun for table in _TABLES for key, noun in _nouns(table).items()}
food, dishes, people, animals, pets, goods, furniture, events, vehicles, spans, _ = (
    tuple(_nouns(table)) for table in _TABLES
)

names = ("Anna", "Peter", "Maria", "Thomas", "Julia", "Martin", "Sophie", "Paul")
other_names = ("Laura", "Daniel", "Nina", "David", "Eva", "Simon")
CITIES = {
    "Berlin": "Berlin", "Vienna": "Wien", "Munich": "München", "Paris": "Paris",
    "Rome": "Rom", "Cologne": "Köln", "Zurich": "Zürich", "Prague": "Prag",
}  # fmt: skip
cities = tuple(CITIES)

# Case, named by its masculine article, -> the article of der, die, das nouns.
DEFINITE = {
    "der": {"der": "der", "die": "die", "das": "das"},
    "den": {"der": "den", "die": "die", "das": "das"},
    "dem": {"der": "dem", "die": "der", "das": "dem"},
    "jeder": {"der": "jeder", "die": "jede", "das": "jedes"},
    "ihn": {"der": "ihn", "die": "sie", "das": "es"},
}
INDEFINITE = {
    "ein": {"der": "ein", "die": "eine", "das": "ein"},
    "einen": {"der": "einen", "die": "eine", "das": "ein"},
    "einem": {"der": "einem", "die": "einer", "das": "einem"},
}
# An ordinal or adjective after the definite article ends in -en here, else in -e.
WEAK_EN = {("den", "der"), ("dem", "der"), ("dem", "die"), ("dem", "das")}

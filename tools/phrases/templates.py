"""The templates, as data: an English line and a German one, in groups that share slots.

A group names its slots and lists its templates. A field `{slot}` or `{slot:form}` is
the slot's value in that language and form; forms.py has the table of kinds and forms.

    Group(
        dict(n=counts(1, 99), thing=nouns(food), who=who),
        '''
        {who} needs {n:thing}.
          {who} braucht {n:einen thing}.
        ''',
    )

gives "Anna needs one egg." | "Anna braucht ein Ei." and "Paul needs twenty-one apples."
| "Paul braucht einundzwanzig Äpfel.": in the form `einen thing` the word `thing` is
another slot (or a noun of words.py), and `einen` asks for the accusative. The first
letter of a sentence becomes a capital. A template may use some of its group's slots.

To add a template, write two lines. The tests check that no English text gets two German
ones or the other way round, and that the slots have enough values. Take care that the
sides say the same however the slots are filled, and avoid a slot for 1 before a noun
unless the form counts it. The texts are our own work.
"""

import datetime
from typing import NamedTuple

from tools.phrases import words
from tools.phrases.words import (
    animals,
    dishes,
    events,
    food,
    furniture,
    goods,
    people,
    pets,
    spans,
    vehicles,
)


class Slot(NamedTuple):
    """What may stand in a slot: its kind (see forms.py) and the values."""

    kind: str
    values: tuple


class Group(NamedTuple):
    """Templates, two lines each, over the same slots."""

    slots: dict[str, Slot]
    lines: str


def numbers(low: int, high: int) -> Slot:
    """Every number from low to high."""
    return Slot("number", tuple(range(low, high + 1)))


def counts(low: int, high: int) -> Slot:
    """Numbers that a noun may follow: not 101, 201, ..., which German avoids.

    Those up to 12 are drawn three times, 1 nine times as often as the others.
    """
    every = [n for n in range(low, high + 1) if n < 100 or n % 100 != 1]
    small = [n for n in every if n <= 12]
    return Slot("number", (*every, *small * 2, *small[: low == 1] * 6))


def nouns(keys: tuple[str, ...]) -> Slot:
    return Slot("noun", keys)


def money(*currencies: str) -> Slot:
    """Amounts of 2 to 1998 in these currencies; every second one has cents."""
    values = []
    for whole in range(2, 1999):
        cents = whole * 37 % 100 if whole % 2 else 0
        currency = currencies[whole // 2 % len(currencies)]
        values.append((whole * 100 + cents, currency))
    return Slot("money", tuple(values))


def _days(year: int) -> list[datetime.date]:
    first = datetime.date(year, 1, 1)
    days = (datetime.date(year + 1, 1, 1) - first).days
    return [first + datetime.timedelta(day) for day in range(days)]


who = Slot("name", words.names)
whom = Slot("name", words.other_names)
city = Slot("city", words.cities)
clock = Slot("time", tuple(range(0, 1440, 5)))
timetable = Slot("time", tuple(range(0, 1440)))
weekday = Slot("weekday", tuple(range(7)))
month = Slot("month", tuple(range(1, 13)))
date = Slot("date", tuple((day.month, day.day) for day in _days(2024)))
calendar = Slot("calendar", tuple(d for y in range(1980, 2035) for d in _days(y)))
fraction = Slot(
    "fraction",
    ((1, 3), (2, 3), (1, 4), (3, 4), (1, 5), (2, 5), (3, 5), (4, 5), (1, 6), (5, 6))
    + ((1, 7), (3, 7), (1, 8), (3, 8), (5, 8), (1, 9), (2, 9), (1, 10), (3, 10)),
)

SHOPPING = Group(
    dict(n=counts(1, 99), thing=nouns(food), who=who),
    """
    {who} bought {n:thing}.
      {who} hat {n:einen thing} gekauft.
    {who} needs {n:thing} for the salad.
      {who} braucht {n:einen thing} für den Salat.
    There {n:is|are} {n:thing} in the basket.
      Im Korb {n:liegt|liegen} {n:ein thing}.
    We still have to wash {n:thing}.
      Wir müssen noch {n:einen thing} waschen.
    How much {n:does|do} {n:thing} cost?
      Wie viel {n:kostet|kosten} {n:ein thing}?
    {who} says that {n:thing} {n:is|are} missing.
      {who} sagt, dass {n:ein thing} {n:fehlt|fehlen}.
    I would like {n:thing}, please.
      Ich hätte gern {n:einen thing}, bitte.
    {who} came home with {n:thing}.
      {who} kam mit {n:einem thing} nach Hause.
    Only {n:thing} {n:was|were} left over.
      Nur {n:ein thing} {n:blieb|blieben} übrig.
    If you buy {n:thing}, you get a bag.
      Wenn Sie {n:einen thing} kaufen, bekommen Sie eine Tüte.
    {who} ate {n:thing} yesterday.
      {who} hat gestern {n:einen thing} gegessen.
    """,
)
KITCHEN = Group(
    dict(
        n=counts(1, 99),
        m=counts(1, 99),
        thing=nouns(food),
        dish=nouns(dishes),
        who=who,
    ),
    """
    There {n:is|are} {n:thing} and {m:dish} on the table.
      Auf dem Tisch befinden sich {n:ein thing} und {m:ein dish}.
    {who} packed {n:thing} and {m:dish}.
      {who} hat {n:einen thing} und {m:einen dish} eingepackt.
    Please bring {n:thing} and {m:dish}.
      Bringen Sie bitte {n:einen thing} und {m:einen dish} mit.
    I have {n:thing}, but only {m:dish}.
      Ich habe {n:einen thing}, aber nur {m:einen dish}.
    {who} is looking for {m:dish} because we have {n:thing}.
      {who} sucht {m:einen dish}, weil wir {n:einen thing} haben.
    We ordered {n:thing} and received {m:dish}.
      Wir haben {n:einen thing} bestellt und {m:einen dish} bekommen.
    {m:dish} {m:costs|cost} as much as {n:thing}.
      {m:ein dish} {m:kostet|kosten} so viel wie {n:ein thing}.
    After we had washed {m:dish}, we ate {n:thing}.
      Nachdem wir {m:einen dish} gespült hatten, aßen wir {n:einen thing}.
    {who} asked for {n:thing} and got {m:dish}.
      {who} bat um {n:einen thing} und bekam {m:einen dish}.
    Put {n:thing} next to {m:dish}.
      Legen Sie {n:einen thing} neben {m:einen dish}.
    """,
)
VISITORS = Group(
    dict(n=counts(1, 99), guest=nouns(people), t=clock, who=who),
    """
    {n:guest} arrived at {t}.
      {n:ein guest} {n:kam|kamen} um {t} an.
    {n:guest} set off at {t}.
      {n:ein guest} {n:brach|brachen} um {t} auf.
    At {t}, {n:guest} {n:was|were} still waiting.
      Um {t} {n:wartete|warteten} noch {n:ein guest}.
    I do not know whether {n:guest} will come at {t}.
      Ich weiß nicht, ob {n:ein guest} um {t} kommen {n:wird|werden}.
    We expect {n:guest} at {t}.
      Wir erwarten um {t} {n:einen guest}.
    Until {t}, there {n:was|were} only {n:guest} in the hall.
      Bis {t} {n:war|waren} nur {n:ein guest} im Saal.
    The tour with {n:guest} begins at {t}.
      Die Führung mit {n:einem guest} beginnt um {t}.
    {who} called {n:guest} at {t}.
      {who} hat um {t} {n:einen guest} angerufen.
    Because {n:guest} {n:was|were} missing, we began at {t}.
      Weil {n:ein guest} {n:fehlte|fehlten}, fingen wir um {t} an.
    {who} says that {n:guest} came back at {t}.
      {who} sagt, dass {n:ein guest} um {t} {n:zurückkam|zurückkamen}.
    """,
)
ROOMS = Group(
    dict(n=counts(1, 99), m=numbers(1, 599), guest=nouns(people), who=who),
    """
    {n:guest} {n:is|are} sitting in row {m}.
      In Reihe {m} {n:sitzt|sitzen} {n:ein guest}.
    Room {m} is big enough for {n:guest}.
      Zimmer {m} ist groß genug für {n:einen guest}.
    {n:guest} {n:is|are} waiting in room {m}.
      In Zimmer {m} {n:wartet|warten} {n:ein guest}.
    Table {m} is reserved for {n:guest}.
      Tisch {m} ist für {n:einen guest} reserviert.
    {who} is traveling with {n:guest} in car {m}.
      {who} reist mit {n:einem guest} in Wagen {m}.
    {n:guest} from group {m} {n:has|have} not signed up yet.
      {n:ein guest} aus Gruppe {m} {n:hat|haben} sich noch nicht angemeldet.
    Bus {m} takes {n:guest} home.
      Bus {m} bringt {n:einen guest} nach Hause.
    Question {m} was answered by {n:guest}.
      Frage {m} wurde von {n:einem guest} beantwortet.
    {who} thinks that {n:guest} from room {m} {n:is|are} ill.
      {who} glaubt, dass {n:ein guest} aus Zimmer {m} krank {n:ist|sind}.
    {n:guest} got off at stop {m}.
      An Haltestelle {m} {n:stieg|stiegen} {n:ein guest} aus.
    """,
)
JOURNEYS = Group(
    dict(t=clock, v=nouns(vehicles), city=city, who=who),
    """
    {v:the} to {city} leaves at {t}.
      {v:der} nach {city} fährt um {t} ab.
    {v:the} from {city} arrives at {t}.
      {v:der} aus {city} kommt um {t} an.
    {who} will take {v:the} to {city} at {t}.
      {who} wird um {t} {v:den} nach {city} nehmen.
    We missed {v:the} to {city} at {t}.
      Wir haben um {t} {v:den} nach {city} verpasst.
    Is it true that {v:the} to {city} leaves at {t}?
      Stimmt es, dass {v:der} nach {city} um {t} abfährt?
    {who} was in {city} at {t}.
      {who} war um {t} in {city}.
    {who} called me from {city} at {t}.
      {who} hat mich um {t} aus {city} angerufen.
    If {v:the} leaves at {t}, we will be in {city} tonight.
      Wenn {v:der} um {t} abfährt, sind wir heute Abend in {city}.
    {v:the} to {city} was already gone at {t}.
      {v:der} nach {city} war um {t} schon weg.
    {who} gets off {v:the} in {city} at {t}.
      {who} steigt um {t} in {city} aus {v:dem} aus.
    {who} waited for {v:the} to {city} until {t}.
      {who} wartete bis {t} auf {v:den} nach {city}.
    """,
)
SCHEDULES = Group(
    dict(t=clock, u=clock, d=weekday, event=nouns(events), who=who),
    """
    The shop is open from {t} to {u}.
      Das Geschäft ist von {t} bis {u} geöffnet.
    {who} works from {t} to {u} on {d:every}.
      {who} arbeitet {d:every} von {t} bis {u}.
    {event:the} starts at {t} and ends at {u}.
      {event:der} beginnt um {t} und endet um {u}.
    {who} gets up at {t} and goes to bed at {u}.
      {who} steht um {t} auf und geht um {u} ins Bett.
    {who} came at {u} instead of at {t}.
      {who} kam um {u} statt um {t}.
    {event:the} was moved from {t} to {u}.
      {event:der} wurde von {t} auf {u} verschoben.
    On {d}, {event:the} does not start at {t} but at {u}.
      Am {d} beginnt {event:der} nicht um {t}, sondern um {u}.
    {who} slept from {t} to {u}.
      {who} hat von {t} bis {u} geschlafen.
    Between {t} and {u}, nobody is in the office.
      Zwischen {t} und {u} ist niemand im Büro.
    {event:the} on {d} lasts until {u}, not until {t}.
      {event:der} am {d} dauert bis {u}, nicht bis {t}.
    Because {who} overslept, {event:the} did not start until {u}.
      Weil {who} verschlafen hat, fing {event:der} erst um {u} an.
    {who} has to set off at {t} on {d}.
      {who} muss am {d} um {t} aufbrechen.
    """,
)
TIMETABLE = Group(
    dict(
        t=timetable,
        n=numbers(2, 40),
        f=numbers(100, 2999),
        city=city,
        who=who,
        event=nouns(events),
    ),
    """
    The train leaves from platform {n:plain} at {t:digital}.
      Der Zug fährt um {t:digital} von Gleis {n:plain} ab.
    Flight {f:plain} to {city} departs at {t:digital}.
      Flug {f:plain} nach {city} startet um {t:digital}.
    Today {event:the} begins at {t:digital} in room {n:plain}.
      Heute beginnt {event:der} um {t:digital} in Raum {n:plain}.
    {who} landed in {city} at {t:digital}.
      {who} ist um {t:digital} in {city} gelandet.
    Please be at platform {n:plain} at {t:digital}.
      Seien Sie bitte um {t:digital} an Gleis {n:plain}.
    The ferry to {city} arrived {n:plain} minutes late at {t:digital}.
      Die Fähre nach {city} kam {n:plain} Minuten zu spät um {t:digital} an.
    The next tour starts at {t:digital}, and {n:plain} places are free.
      Die nächste Führung beginnt um {t:digital}, und {n:plain} Plätze sind frei.
    Bus {n:plain} does not run after {t:digital}.
      Nach {t:digital} fährt Bus {n:plain} nicht mehr.
    {who} sent the message at {t:digital}.
      {who} hat die Nachricht um {t:digital} abgeschickt.
    """,
)
DATES = Group(
    dict(d=date, e=date, w=weekday, y=numbers(1930, 2020), event=nouns(events))
    | dict(city=city, who=who),
    """
    {who}'s birthday is on {d:words}.
      {who} hat am {d:dem} Geburtstag.
    {who} was born on {d:words}, {y:calendar}.
      {who} wurde am {d:dem} {y:calendar} geboren.
    Today is {w}, {d:words}.
      Heute ist {w}, der {d:der}.
    {event:the} takes place in {city} on {d:words}.
      {event:der} findet am {d:dem} in {city} statt.
    The holidays begin on {d:words} and end on {e:words}.
      Die Ferien beginnen am {d:dem} und enden am {e:dem}.
    {who} is moving to {city} on {d:words}.
      {who} zieht am {d:dem} nach {city} um.
    From {d:words} to {e:words}, {who} will be in {city}.
      Vom {d:dem} bis zum {e:dem} wird {who} in {city} sein.
    We have known since {d:words} that {who} lives in {city}.
      Wir wissen seit dem {d:dem}, dass {who} in {city} wohnt.
    {event:the} was moved from {d:words} to {e:words}.
      {event:der} wurde vom {d:dem} auf den {e:dem} verschoben.
    {who} has to pay the bill by {d:words}.
      {who} muss die Rechnung bis zum {d:dem} bezahlen.
    On {d:words}, it snowed in {city}.
      Am {d:dem} hat es in {city} geschneit.
    If {who} arrives on {d:words}, we will leave on {e:words}.
      Wenn {who} am {d:dem} ankommt, reisen wir am {e:dem} ab.
    """,
)
CALENDAR = Group(
    dict(f=calendar, n=numbers(100, 9999), city=city, who=who),
    """
    The letter from {city} is dated {f}.
      Der Brief aus {city} ist vom {f}.
    {who} signed the contract on {f}.
      {who} hat den Vertrag am {f} unterschrieben.
    {who} was born in {city} on {f}.
      {who} wurde am {f} in {city} geboren.
    The ticket for {who} is valid until {f}.
      Die Fahrkarte für {who} ist bis zum {f} gültig.
    The museum in {city} was opened on {f}.
      Das Museum in {city} wurde am {f} eröffnet.
    Date: {f:short}, number: {n:plain}
      Datum: {f:short}, Nummer: {n:plain}
    Please pay invoice {n:plain} by {f:short}.
      Bitte bezahlen Sie Rechnung {n:plain} bis zum {f:short}.
    {who} has not been to {city} since {f}.
      {who} ist seit dem {f} nicht mehr in {city} gewesen.
    {who} arrived in {city} on {f:full}.
      {who} kam am {f:full}, in {city} an.
    The exhibition in {city} ends on {f:full}.
      Die Ausstellung in {city} endet am {f:full}.
    Order {n:plain} was sent to {city} on {f:short}.
      Bestellung {n:plain} wurde am {f:short} nach {city} geschickt.
    """,
)
ORDINALS = Group(
    dict(
        n=numbers(2, 99),
        m=numbers(2, 99),
        c=numbers(5, 20),
        thing=nouns(goods),
        city=city,
        who=who,
    ),
    """
    {who} finished the race in {n:th} place.
      {who} hat beim Rennen den {n:ten} Platz belegt.
    {who} lives in the {n:th} house on the left.
      {who} wohnt im {n:ten} Haus auf der linken Seite.
    That is already the {n:th} {thing}.
      Das ist schon {n:der te thing}.
    {who} sold the {n:th} {thing} too.
      {who} hat auch {n:den te thing} verkauft.
    {who} came home with the {n:th} {thing}.
      {who} kam mit {n:dem te thing} nach Hause.
    {who} is reading the {m:th} chapter for the {n:th} time.
      {who} liest das {m:te} Kapitel zum {n:ten} Mal.
    Today we are celebrating {who}'s {n:th} birthday.
      Heute feiern wir den {n:ten} Geburtstag von {who}.
    It is the {n:th} day of the {m:th} week.
      Es ist der {n:te} Tag der {m:ten} Woche.
    On the {n:th} try, {who} found the {m:th} mistake.
      Beim {n:ten} Versuch hat {who} den {m:ten} Fehler gefunden.
    Every {n:th} {thing} is free of charge.
      {n:jeder te thing} ist kostenlos.
    The bridge in {city} was built in the {c:th} century.
      Die Brücke in {city} wurde im {c:ten} Jahrhundert gebaut.
    The {n:th} question was harder than the {m:th}.
      Die {n:te} Frage war schwerer als die {m:te}.
    Take the {n:th} street on the right and the {m:th} on the left.
      Nehmen Sie die {n:te} Straße rechts und die {m:te} links.
    {who} gave up in the {n:th} hour.
      {who} hat in der {n:ten} Stunde aufgegeben.
    """,
)
DURATIONS = Group(
    dict(n=counts(1, 99), span=nouns(spans), event=nouns(events), city=city, who=who),
    """
    {who} lived in {city} for {n:span}.
      {who} hat {n:einen span} in {city} gewohnt.
    {event:the} lasts {n:span}.
      {event:der} dauert {n:einen span}.
    {who} is going to {city} in {n:span}.
      {who} fährt in {n:einem span} nach {city}.
    {who} was in {city} {n:span} ago.
      {who} war vor {n:einem span} in {city}.
    We have been waiting for {who} for {n:span}.
      Wir warten seit {n:einem span} auf {who}.
    The trip to {city} takes {n:span}.
      Die Reise nach {city} dauert {n:einen span}.
    {who} had to work for {n:span} without a break.
      {who} musste {n:einen span} ohne Pause arbeiten.
    After {n:span}, {who} gave up.
      Nach {n:einem span} gab {who} auf.
    {who} says that {event:the} will begin in {n:span}.
      {who} sagt, dass {event:der} in {n:einem span} anfängt.
    It took {n:span} until {who} came back from {city}.
      Es dauerte {n:einen span}, bis {who} aus {city} zurückkam.
    {who} learned to swim within {n:span}.
      {who} hat innerhalb von {n:einem span} schwimmen gelernt.
    """,
)
AGES = Group(
    dict(n=counts(2, 99), m=counts(1, 20), city=city, month=month, who=who, whom=whom),
    """
    {who} is {n:year} old, and the dog is {m:year} old.
      {who} ist {n:einen year} alt, und der Hund ist {m:einen year} alt.
    {who} is {m:year} older than {whom}.
      {who} ist {m:einen year} älter als {whom}.
    When {who} was {n:year} old, {whom} moved to {city}.
      Als {who} {n:einen year} alt war, zog {whom} nach {city}.
    {who} will turn {n} in {month}.
      {who} wird im {month} {n}.
    {who} looks {n:year} younger than {whom}.
      {who} sieht {n:einen year} jünger aus als {whom}.
    {who} came to {city} at the age of {n}.
      {who} kam im Alter von {n:einem year} nach {city}.
    A tree that is {n:year} old stands in front of the house.
      Vor dem Haus steht ein Baum, der {n:einen year} alt ist.
    """,
)
COMPOUNDS = Group(
    dict(
        s=numbers(2, 12),
        b=numbers(2, 6),
        n=counts(2, 20),
        m=counts(1, 30),
        note=Slot("number", (5, 10, 20, 50, 100, 200, 500)),
        t=clock,
        city=city,
        who=who,
        whom=whom,
    ),
    """
    {who} lives in {s:a}-story house in {city}.
      {who} wohnt in {city} in einem {s:stem}stöckigen Haus.
    {who} has {s:a}-year-old daughter in {city}.
      {who} hat in {city} eine {s:stem}jährige Tochter.
    The {s}-day trip to {city} was canceled.
      Die {s:stem}tägige Reise nach {city} wurde abgesagt.
    {who} wrote {whom} {s:a}-page letter.
      {who} hat {whom} einen {s:stem}seitigen Brief geschrieben.
    {who} is looking for {b:a}-room apartment in {city}.
      {who} sucht in {city} eine {b:Stem}zimmerwohnung.
    After {s:a}-hour drive, {who} reached {city}.
      Nach {s:stem}stündiger Fahrt erreichte {who} {city}.
    {who} is taking {s:a}-week course in {city}.
      {who} macht in {city} einen {s:stem}wöchigen Kurs.
    {who} paid {whom} with {n} {note:stem}-euro bills.
      {who} hat {whom} mit {n} {note:Stem}-Euro-Scheinen bezahlt.
    {who} gave {whom} {note:a}-euro bill at {t}.
      {who} hat {whom} um {t} einen {note:Stem}-Euro-Schein gegeben.
    {who} needs {n} {s}-liter cans.
      {who} braucht {n} {s:Stem}-Liter-Kanister.
    We ordered {n} {s:plain}-liter bottles for {who}.
      Wir haben für {who} {n} {s:plain}-Liter-Flaschen bestellt.
    After {m:hour}, we take {s:a}-minute break.
      Nach {m:einem hour} machen wir eine {s:stem}minütige Pause.
    {who} booked {b:a}-bed room in {city}.
      {who} hat in {city} ein {b:Stem}bettzimmer gebucht.
    {who} has already been to {city} {m:times}.
      {who} ist schon {m:mal} in {city} gewesen.
    {who} called {whom} {n:times} in {m:day}.
      {who} hat {whom} in {m:einem day} {n:mal} angerufen.
    The {s}-part film about {city} starts at {t}.
      Der {s:stem}teilige Film über {city} beginnt um {t}.
    {who} won the {s}-kilometer race in {city}.
      {who} hat in {city} den {s:Stem}-Kilometer-Lauf gewonnen.
    The {s} of us went to {city} at {t}.
      Wir sind um {t} zu {s:dritt} nach {city} gefahren.
    {whom} is {s} times as old as the house in {city}.
      {whom} ist {s:mal} so alt wie das Haus in {city}.
    """,
)
PARTS = Group(
    dict(
        x=fraction,
        h=Slot("half", tuple(range(1, 13))),
        n=counts(2, 99),
        guest=nouns(people),
        thing=nouns(food),
        event=nouns(events),
        t=clock,
        d=weekday,
        city=city,
        who=who,
        whom=whom,
    ),
    """
    {who} read {x} of the book in {n:day}.
      {who} hat in {n:einem day} {x} des Buches gelesen.
    {x} of the {n:guest} came from {city}.
      {x} der {n:ein guest} {x:kam|kamen} aus {city}.
    {who} gave {whom} {x} of the money.
      {who} hat {whom} {x} des Geldes gegeben.
    After {n:hour}, {x} of the work was done.
      Nach {n:einem hour} {x:war|waren} {x} der Arbeit erledigt.
    {who} had drunk {x} of the bottle by {t}.
      {who} hatte bis {t} {x} der Flasche getrunken.
    {event:the} on {d} lasted {h} hours.
      {event:der} am {d} dauerte {h} Stunden.
    {who} waited {h} hours for {whom}.
      {who} hat {h} Stunden auf {whom} gewartet.
    {who} bought {h} kilograms of {thing:many}.
      {who} hat {h} Kilogramm {thing:viele} gekauft.
    {who} lived in {city} for {h} years.
      {who} hat {h} Jahre in {city} gewohnt.
    The trip to {city} takes {h} hours on {d:every}.
      Die Fahrt nach {city} dauert {d:every} {h} Stunden.
    """,
)
PRICES = Group(
    dict(
        e=counts(1, 99),
        c=counts(2, 99),
        n=counts(2, 30),
        thing=nouns(goods),
        other=nouns(furniture),
        who=who,
        whom=whom,
    ),
    """
    {thing:the} costs {e:euro} and {c:cent}.
      {thing:der} kostet {e:einen euro} und {c:einen cent}.
    {who} paid {e:euro} for {thing:the}.
      {who} hat {e:einen euro} für {thing:den} bezahlt.
    {who} borrowed {e:euro} from {whom}.
      {who} hat sich von {whom} {e:einen euro} geliehen.
    {who} still owes {whom} {e:dollar}.
      {who} schuldet {whom} noch {e:einen dollar}.
    If {thing:the} costs more than {e:euro}, {who} will not buy it.
      Wenn {thing:der} mehr als {e:einen euro} kostet, kauft {who} {thing:ihn} nicht.
    {thing:the} was {e:euro} cheaper than {other:the}.
      {thing:der} war {e:einen euro} billiger als {other:der}.
    {who} saved {e:euro} in {n:week}.
      {who} hat in {n:einem week} {e:einen euro} gespart.
    {who} gets {e:euro} an hour, and {whom} gets {c:euro}.
      {who} bekommt {e:einen euro} pro Stunde, und {whom} bekommt {c:einen euro}.
    For {e:franc}, you can buy {other:a}.
      Für {e:einen franc} kann man {other:einen} kaufen.
    {who} found {e:euro} and {c:cent} in the bag.
      {who} hat {e:einen euro} und {c:einen cent} in der Tasche gefunden.
    {who} sold {whom} {thing:the} for {e:pound}.
      {who} hat {whom} {thing:den} für {e:einen pound} verkauft.
    The price of {other:the} has fallen by {e:euro}.
      Der Preis für {other:den} ist um {e:einen euro} gesunken.
    """,
)
AMOUNTS = Group(
    dict(
        v=money("EUR", "USD", "EUR", "GBP"),
        a=money("EUR"),
        b=money("EUR"),
        n=numbers(2, 40),
        w=weekday,
        thing=nouns(goods),
        city=city,
        who=who,
        whom=whom,
    ),
    """
    {thing:the} costs {v}.
      {thing:der} kostet {v}.
    {who} transferred {v} to {whom}.
      {who} hat {whom} {v} überwiesen.
    {who} spent {v} on {thing:a} in {city}.
      {who} hat in {city} {v} für {thing:einen} ausgegeben.
    The bill for {n:plain} people comes to {v}.
      Die Rechnung für {n:plain} Personen beläuft sich auf {v}.
    Instead of {a}, {thing:the} now costs {b}.
      Statt {a} kostet {thing:der} jetzt {b}.
    {who} earned {v} on {w}.
      {who} hat am {w} {v} verdient.
    A ticket to {city} costs {v}.
      Eine Fahrkarte nach {city} kostet {v}.
    We paid {v} for {n:plain} nights in {city}.
      Wir haben für {n:plain} Nächte in {city} {v} bezahlt.
    The rent in {city} changed from {a} to {b}.
      Die Miete in {city} änderte sich von {a} auf {b}.
    {who} got back {v} because {thing:the} was broken.
      {who} bekam {v} zurück, weil {thing:der} kaputt war.
    """,
)
MEASURES = Group(
    dict(
        x=Slot("tenths", tuple(range(11, 100))),
        z=Slot("tenths", tuple(range(12, 500))),
        p=numbers(2, 99),
        n=counts(2, 99),
        w=weekday,
        thing=nouns(goods),
        guest=nouns(people),
        city=city,
        who=who,
    ),
    """
    {thing:the} weighs {z:mass-kilogram}.
      {thing:der} wiegt {z:mass-kilogram}.
    {who} walked {z:length-kilometer} on {w}.
      {who} ist am {w} {z:length-kilometer} gelaufen.
    It is {z:length-kilometer} from {city} to the lake.
      Von {city} bis zum See sind es {z:length-kilometer}.
    {who} swam {x:length-kilometer} in {n:minute}.
      {who} ist in {n:einem minute} {x:length-kilometer} geschwommen.
    {who} filled {z:volume-liter} of water into {n} bottles.
      {who} hat {z:volume-liter} Wasser in {n} Flaschen gefüllt.
    The temperature in {city} dropped to {x:temperature-celsius}.
      Die Temperatur in {city} ist auf {x:temperature-celsius} gefallen.
    In {city}, {p:percent} of the {guest:many} wear a hat.
      In {city} tragen {p:percent} der {guest:viele} einen Hut.
    {thing:the} has become {p:percent} cheaper since {w}.
      {thing:der} ist seit {w} {p:percent} billiger geworden.
    {who} measured {x:words} meters instead of {z:words}.
      {who} hat {x:words} Meter statt {z:words} gemessen.
    The bridge in {city} cost {x:decimal} million euros.
      Die Brücke in {city} kostete {x:decimal} Millionen Euro.
    {thing:the} is {x:words} kilograms heavier than I thought.
      {thing:der} ist {x:words} Kilogramm schwerer, als ich dachte.
    """,
)
TEMPERATURES = Group(
    dict(n=numbers(-30, 40), m=numbers(2, 40), t=clock, city=city, who=who),
    """
    In {city}, it is {n:degree} today.
      In {city} {n:ist|sind} es heute {n:ein degree}.
    Tonight it will be {n:degree} in {city}.
      Heute Nacht {n:wird|werden} es in {city} {n:ein degree}.
    At {n:degree}, {who} stays at home.
      Bei {n:einem degree} bleibt {who} zu Hause.
    {who} went out although it was {n:degree}.
      {who} ging hinaus, obwohl es {n:ein degree} {n:war|waren}.
    The temperature changed from {n} to {m:degree}.
      Die Temperatur änderte sich von {n} auf {m:einen degree}.
    At {t}, it was {n:degree} in {city}.
      Um {t} {n:war|waren} es in {city} {n:ein degree}.
    """,
)
YEARS = Group(
    dict(
        y=numbers(1800, 2030),
        a=numbers(1930, 1979),
        b=numbers(1980, 2029),
        city=city,
        who=who,
        whom=whom,
    ),
    """
    {who} was born in {city} in {b:calendar}.
      {who} wurde {b:calendar} in {city} geboren.
    {who} has lived in {city} since {b:calendar}.
      {who} wohnt seit {b:calendar} in {city}.
    The bridge in {city} was rebuilt in {y:calendar}.
      Die Brücke in {city} wurde {y:calendar} wieder aufgebaut.
    In the year {y:calendar}, {who} moved to {city}.
      Im Jahr {y:calendar} zog {who} nach {city}.
    From {a:calendar} to {b:calendar}, {who} worked in {city}.
      Von {a:calendar} bis {b:calendar} arbeitete {who} in {city}.
    The company was founded in {city} in {y:plain}.
      Die Firma wurde {y:plain} in {city} gegründet.
    {who} cannot remember what happened in {y:calendar}.
      {who} kann sich nicht daran erinnern, was {y:calendar} geschah.
    When {who} was born in {b:calendar}, {whom} lived in {city}.
      Als {who} {b:calendar} geboren wurde, wohnte {whom} in {city}.
    The song from {b:plain} is older than the film from {a:plain}.
      Das Lied von {b:plain} ist älter als der Film von {a:plain}.
    """,
)
ARITHMETIC = Group(
    dict(n=numbers(2, 999), m=numbers(2, 999), who=who),
    """
    What is {n} plus {m}?
      Was ist {n} plus {m}?
    How much is {n} times {m}?
      Wie viel ist {n} mal {m}?
    What is {n} minus {m}?
      Was ist {n} minus {m}?
    Is {n} greater than {m}?
      Ist {n} größer als {m}?
    {who} guessed {n}, but the right number was {m}.
      {who} hat {n} geraten, aber die richtige Zahl war {m}.
    Subtract {m} from {n}.
      Ziehen Sie {m} von {n} ab.
    Divide {n} by {m}.
      Teilen Sie {n} durch {m}.
    {who} can count from {n} to {m}.
      {who} kann von {n} bis {m} zählen.
    """,
)
LARGE = Group(
    dict(
        n=counts(20, 999),
        q=counts(1, 99),
        k=numbers(1001, 99999),
        m=counts(1, 60),
        city=city,
        who=who,
    ),
    """
    The village near {city} has {k:digits} inhabitants.
      Das Dorf bei {city} hat {k:digits} Einwohner.
    {who} has collected {n:stamp}.
      {who} hat {n:einen stamp} gesammelt.
    There are {n} seats in hall {m}.
      In Saal {m} gibt es {n} Plätze.
    {k:digits} people came to the concert in {city}.
      Zum Konzert in {city} kamen {k:digits} Menschen.
    {who} read {n:page} in {m:day}.
      {who} hat in {m:einem day} {n:einen page} gelesen.
    {q:million} people live near {city}.
      In der Nähe von {city} leben {q:ein million} Menschen.
    The new road to {city} cost {q:million} euros.
      Die neue Straße nach {city} hat {q:einen million} Euro gekostet.
    {who} drove {n:kilometer} to get to {city}.
      {who} ist {n:einen kilometer} gefahren, um nach {city} zu kommen.
    """,
)
LABELS = Group(
    dict(
        n=numbers(1, 399),
        m=counts(2, 99),
        j=numbers(0, 12),
        k=numbers(0, 12),
        i=counts(2, 90),
        city=city,
        who=who,
        whom=whom,
    ),
    """
    Please turn to page {n} and do exercise {m}.
      Schlagen Sie bitte Seite {n} auf und machen Sie Übung {m}.
    {who} is staying in room {n} in {city}.
      {who} wohnt in {city} in Zimmer {n}.
    {who} read from page {m} to page {n}.
      {who} hat von Seite {m} bis Seite {n} gelesen.
    Bus {n} goes to {city}, bus {m} does not.
      Bus {n} fährt nach {city}, Bus {m} nicht.
    After {i:minute}, the score was {j} to {k}.
      Nach {i:einem minute} stand es {j} zu {k}.
    {who} beat {whom} {j} to {k}.
      {who} hat {whom} mit {j} zu {k} geschlagen.
    {who} lives at {n:plain} Garden Street in {city}.
      {who} wohnt in {city} in der Gartenstraße {n:plain}.
    Row {n}, seat {m} is still free for {who}.
      Für {who} ist noch Reihe {n}, Platz {m} frei.
    There are {m} mistakes on page {n}.
      Auf Seite {n} sind {m} Fehler.
    {who} crossed out the number {n} and wrote down {m}.
      {who} hat die Zahl {n} durchgestrichen und {m} aufgeschrieben.
    """,
)
WEEKS = Group(
    dict(
        o=numbers(2, 4),
        n=counts(1, 40),
        w=weekday,
        month=month,
        event=nouns(events),
        guest=nouns(people),
        t=clock,
        city=city,
        who=who,
    ),
    """
    {who} has a German lesson at {t} on {w:every}.
      {who} hat {w:every} um {t} Deutschunterricht.
    From {w} on, {event:the} will start at {t}.
      Ab {w} fängt {event:der} um {t} an.
    We meet every {o:th} {w} at {t}.
      Wir treffen uns jeden {o:ten} {w} um {t}.
    {who} took {n:day} off in {month}.
      {who} hat sich im {month} {n:einen day} freigenommen.
    {who} is flying to {city} on the {o:th} {w} in {month}.
      {who} fliegt am {o:ten} {w} im {month} nach {city}.
    {who} has read {n:book} since {month}.
      {who} hat seit {month} {n:einen book} gelesen.
    In {month}, {n:guest} came to {city}.
      Im {month} {n:kam|kamen} {n:ein guest} nach {city}.
    {who} goes swimming on {w:every} and runs {n:kilometer}.
      {who} geht {w:every} schwimmen und läuft {n:einen kilometer}.
    Last {w}, {who} called at {t}.
      Letzten {w} hat {who} um {t} angerufen.
    Next {w}, {event:the} will already start at {t}.
      Nächsten {w} beginnt {event:der} schon um {t}.
    """,
)
DAY = Group(
    dict(t=clock, event=nouns(events), city=city, who=who),
    """
    {who} got up at {t:part}.
      {who} ist um {t:part} aufgestanden.
    The telephone in {city} rang at {t:part}.
      Um {t:part} klingelte in {city} das Telefon.
    {who} arrived in {city} at {t:part}.
      {who} kam um {t:part} in {city} an.
    It was {t:part} when {who} came home.
      Es war {t:part}, als {who} nach Hause kam.
    {event:the} will not be over before {t:part}.
      Vor {t:part} ist {event:der} nicht zu Ende.
    Why did {who} drive to {city} at {t:part}?
      Warum ist {who} um {t:part} nach {city} gefahren?
    {who} has been awake in {city} since {t}.
      {who} ist in {city} seit {t} wach.
    Can you pick up {who} in {city} at {t:part}?
      Können Sie {who} um {t:part} in {city} abholen?
    """,
)
FARM = Group(
    dict(
        n=counts(1, 99),
        m=counts(1, 99),
        animal=nouns(animals),
        pet=nouns(pets),
        d=date,
        city=city,
        who=who,
    ),
    """
    {n:animal} {n:is|are} standing in the meadow, and {m:pet} {m:is|are} watching.
      Auf der Wiese {n:steht|stehen} {n:ein animal}, und {m:ein pet} {m:sieht|sehen} zu.
    {who} owns {n:animal} and {m:pet}.
      {who} besitzt {n:einen animal} und {m:einen pet}.
    {who} has to feed {n:animal} every day.
      {who} muss jeden Tag {n:einen animal} füttern.
    {who} dreamed of {n:animal} and {m:pet}.
      {who} hat von {n:einem animal} und {m:einem pet} geträumt.
    The farm near {city} has {n:animal}.
      Der Bauernhof bei {city} hat {n:einen animal}.
    {who} sold {n:animal} and bought {m:pet}.
      {who} hat {n:einen animal} verkauft und {m:einen pet} gekauft.
    {n:animal} ran after {m:pet}.
      {n:ein animal} {n:lief|liefen} {m:einem pet} hinterher.
    It is said that {n:animal} {n:was|were} born on {d:words}.
      Es heißt, dass am {d:dem} {n:ein animal} geboren {n:wurde|wurden}.
    """,
)

GROUPS = (
    SHOPPING, KITCHEN, VISITORS, ROOMS, JOURNEYS, SCHEDULES, TIMETABLE, DATES, CALENDAR,
    ORDINALS, DURATIONS, AGES, COMPOUNDS, PARTS, PRICES, AMOUNTS, MEASURES,
    TEMPERATURES, YEARS, ARITHMETIC, LARGE, LABELS, WEEKS, DAY, FARM,
)  # fmt: skip

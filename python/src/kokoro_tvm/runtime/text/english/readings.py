"""Written forms that are read as other words: times, dates, fractions, units, addresses, titles, Roman numerals.

What it is: a table of patterns over a paragraph, each with the words that it stands for. What it is not: plain numbers and
sums of money (``frontend`` reads those as the model was trained) or a lexicon. Every pattern is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kokoro_tvm.runtime.text.english.numbers import cardinal, decimal, digits, ordinal, roman, whole, year


@dataclass(frozen=True)
class Reading:
    """``text[start:end]`` is spoken as ``words``."""

    start: int
    end: int
    words: tuple[str, ...]


MONTHS = {
    "jan": "January", "feb": "February", "mar": "March", "apr": "April", "may": "May", "jun": "June", "jul": "July",
    "aug": "August", "sep": "September", "sept": "September", "oct": "October", "nov": "November", "dec": "December",
}  # fmt: skip
_MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
_MONTH_SHORT = r"(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\."
UNITS = {
    "km": "kilometer", "cm": "centimeter", "mm": "millimeter", "m": "meter", "km²": "square kilometer", "m²": "square meter",
    "kg": "kilogram", "g": "gram", "mg": "milligram", "ml": "milliliter", "lb": "pound", "lbs": "pound", "oz": "ounce",
    "ft": "foot", "mi": "mile", "mph": "mile per hour", "km/h": "kilometer per hour", "kph": "kilometer per hour",
    "m/s": "meter per second",
    "kb": "kilobyte", "mb": "megabyte", "gb": "gigabyte", "tb": "terabyte", "hz": "hertz", "khz": "kilohertz", "mhz": "megahertz",
    "ghz": "gigahertz", "kw": "kilowatt", "kwh": "kilowatt hour", "mw": "megawatt", "ms": "millisecond", "°c": "degree Celsius",
    "°f": "degree Fahrenheit", "°": "degree", "sq ft": "square foot", "hrs": "hour", "hr": "hour", "mins": "minute",
    "min": "minute",
}  # fmt: skip
_GLUED_ONLY = frozenset(("m", "g"))
"""Too short to be a unit after a space."""
_PLURALS = {"foot": "feet", "hertz": "hertz", "Celsius": "Celsius", "Fahrenheit": "Fahrenheit"}
TITLES = {
    "gen": "General", "gov": "Governor", "sen": "Senator", "rep": "Representative", "rev": "Reverend", "col": "Colonel",
    "sgt": "Sergeant", "capt": "Captain", "lt": "Lieutenant", "maj": "Major", "adm": "Admiral", "hon": "Honorable",
    "prof": "Professor",
    "mt": "Mount", "messrs": "Messers",
}  # fmt: skip
SUFFIXES = {
    "jr": "Junior", "sr": "Senior", "inc": "Incorporated", "ltd": "Limited", "co": "Company", "corp": "Corporation",
    "bros": "Brothers",
    "dept": "Department", "ave": "Avenue", "blvd": "Boulevard", "rd": "Road", "approx": "approximately", "est": "established",
}  # fmt: skip
_FRACTIONS = {2: "half", 4: "quarter"}
_SCALES = {"k": "thousand", "m": "million", "mn": "million", "bn": "billion", "b": "billion", "tn": "trillion"}
_MONEY = {
    "$": ("dollar", "cent"), "£": ("pound", "pence"), "€": ("euro", "cent"), "¥": ("yen", ""),
    "₹": ("rupee", "paisa"), "₩": ("won", ""),
}  # fmt: skip
_NUMBERED = (
    "War|Chapter|Part|Volume|Act|Scene|Type|Phase|Bowl|Section|Book|Appendix|Article|Title|Class|Grade|Level|Mark|Stage|Unit|Vatican"
)
_KINGS = (
    "Henry|Edward|George|William|Richard|James|Charles|Elizabeth|Mary|Louis|Philip|Napoleon|Frederick|Peter|Catherine|Nicholas|Alexander|Ivan|"
    "Pius|Paul|John|Benedict|Gregory|Innocent|Leo|Clement|Urban|Ramses|Ramesses|Ptolemy|Francis|Ferdinand|Leopold|Otto|Wilhelm|Haakon|Gustav|"
    "Christian|Alfonso|Juan|Carlos|Felipe|Albert|Rainier|Robert|Malcolm|David|Darius|Xerxes|Artaxerxes|Cleopatra|Thutmose|Amenhotep"
)
_NAMES_OF_SIGNS = {
    ".": "dot", "/": "slash", "-": "dash", "_": "underscore", "@": "at", ":": "colon", "?": "question mark", "=": "equals",
    "&": "and", "#": "hash", "%": "percent", "+": "plus", "~": "tilde",
}  # fmt: skip
_TOP = "com|org|net|io|gov|edu|mil|info|dev|ai|app|co|uk|us|de|fr|eu|ca|au"
_DAY = r"[12]\d|3[01]|[1-9]"
_N = r"\d{1,3}(?:,\d{3})+|\d{1,12}"

_FORMS: tuple[tuple[str, str], ...] = (
    ("web", rf"(?:https?://|www\.)[^\s<>\"“”()\[\]]{{1,300}}|(?<![\w@.])(?:[A-Za-z0-9][A-Za-z0-9-]{{0,62}}\.){{1,4}}(?:{_TOP})\b(?!\.\w)(?:/[^\s<>\"“”()]{{0,300}})?"),
    ("mail", r"(?<![\w.+-])[A-Za-z0-9_.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,4}"),
    ("iso", r"(?<![\w-])[12]\d{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])(?![\w-])"),
    ("phone", r"(?<![\w-])(?:\+?1[ -])?(?:\(\d{3}\) |\d{3}-)?\d{3}-\d{4}(?![\w-])"),
    ("clock", r"(?<![\w:.,])(?:[01]?\d|2[0-4]):[0-5]\d(?::[0-5]\d)?(?![\w:])(?: ?(?:[ap]\.m\.|[apAP][mM]\b))?"),
    ("date", rf"(?:\b(?:{_MONTH})|\b{_MONTH_SHORT}) (?:{_DAY}|0[1-9])(?:st|nd|rd|th)?(?![\w:%-]|[.,]\d)"
             rf"|(?<![\w.,])(?:{_DAY}) (?:{_MONTH_SHORT})(?!\w)"),
    ("month", rf"\b{_MONTH_SHORT}(?= \d)"),
    ("fraction", r"(?<![\w/.,])(?:\d{1,3} )?\d{1,2}/\d{1,3}(?![\w/]|[.,]\d)|[½¼¾⅓⅔⅛⅜⅝⅞]"),
    ("range", rf"(?<![\w.,–-])(?:{_N})–(?:{_N})(?![\w–-]|[.,]\d)|(?<![\w.,–-])[12]\d{{3}}-[12]\d{{3}}(?![\w–-])"),
    ("unit", rf"(?<![\w.,])-?(?:{_N})(?:\.\d{{1,12}})?(?: ?-?)(?:sq ft|km/h|m/s|km²|m²|kph|mph|kWh|[kKMGT][Bb]|[kMG]?Hz"
             r"|kW|MW|km|cm|mm|kg|mg|ml|lbs?|oz|ft|mins?|hrs?|° ?[CF]|°|ms|m|g)(?![\w²/])"),
    ("money", rf"(?:US|C|A|HK|NZ)?[$£€]\s?(?:{_N})(?:\.\d{{1,6}})?(?:k|m|mn|bn|b|tn|K|M|B)(?!\w)"
              rf"|[¥₹₩]\s?(?:{_N})(?:\.\d{{1,6}})?(?!\w)"),
    ("number", r"\b[Nn]o\. ?\d{1,9}(?![\w,]|\.\d)|(?<!\w)#\d{1,9}(?![\w,]|\.\d)"),
    ("king", rf"\b(?:{_KINGS}) (?:[IVX]{{1,6}})(?![\w'’.]\w)(?!\w)"),
    ("numeral", rf"\b(?:{_NUMBERED}) (?:[IVXL]{{1,7}})(?!\w)"),
    ("street", r"(?<=\w )St\.(?= |,|$)"),
    ("saint", r"\bSt\.(?= [A-Z])"),
    ("title", r"\b(?:Gen|Gov|Sen|Rep|Rev|Col|Sgt|Capt|Lt|Maj|Adm|Hon|Prof|Mt|Messrs)\.(?= [A-Z])"),
    ("suffix", r"\b(?:Jr|Sr|Inc|Ltd|Co|Corp|Bros|Dept|Ave|Blvd|Rd|[Aa]pprox)\.(?!\w)"),
    ("sign", r"(?<=\w )=(?= \w)|(?<=\d )[×x](?= \d)|(?<=\d)×(?=\d)|(?<=\d )[-−](?= \d)|(?<=\d )[/÷](?= \d)"),
)  # fmt: skip
_ANY = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _FORMS))


def find(text: str, at: int = 0, stop: int | None = None) -> Iterator[Reading]:
    """The readings in ``text[at:stop]`` of a paragraph, in order, none overlapping."""
    stop = len(text) if stop is None else stop
    while match := _ANY.search(text, at, stop):
        name = str(match.lastgroup)
        start, end = match.span()
        if name in ("web", "mail"):
            while text[end - 1] in ".,;:!?'’":
                end -= 1
        words = _READERS[name](text[start:end], text, start, end)
        if words and end > start:
            yield Reading(start, end, tuple(words))
        at = max(end, match.start() + 1)


def _address(written: str, *_: object) -> list[str]:
    body = re.sub(r"^https?://", "", written).rstrip("/")
    words: list[str] = []
    for part in re.findall(r"[A-Za-z]+|\d+|.", body):
        if part in ("www", "uk", "us", "io", "eu", "html", "http", "https"):
            words += list(part.upper())
        elif part.isdigit():
            words += cardinal(int(part)) if len(part) < 3 else digits(part)
        else:
            words += (_NAMES_OF_SIGNS.get(part) or (part if part.isascii() and part.isalpha() else "")).split()
    return words


def _iso(written: str, *_: object) -> list[str]:
    when, month, day = written.split("-")
    return [_MONTH.split("|")[int(month) - 1], *ordinal(int(day)), *year(int(when))]


def _phone(written: str, *_: object) -> list[str]:
    return digits(written)


def _clock(written: str, *_: object) -> list[str]:
    clock, _, half = written.replace(".", "").lower().partition(" ")
    if clock[-1] == "m":
        clock, half = clock[:-2], clock[-2:]
    hour, minute, *second = clock.split(":")
    words = cardinal(int(hour))
    if int(minute):
        words += ["oh"] * (int(minute) < 10) + cardinal(int(minute))
    elif not half:
        words += ["o'clock"] if 0 < int(hour) <= 12 else ["hundred"]
    if second:
        words += ["and", *cardinal(int(second[0])), "second" if int(second[0]) == 1 else "seconds"]
    return words + ([f"{half[0]}.m."] if half else [])


def _date(written: str, *_: object) -> list[str]:
    first, second = written.split(" ")
    month, day = (second, first) if first[0].isdigit() else (first, second)
    name = MONTHS.get(month.rstrip(".").lower(), month)
    number = ordinal(int(re.sub(r"\D", "", day)))
    return ["the", *number, "of", name] if first[0].isdigit() else [name, *number]


def _month(written: str, *_: object) -> list[str]:
    return [MONTHS[written.rstrip(".").lower()]]


def _fraction(written: str, *_: object) -> list[str]:
    single = dict(zip("½¼¾⅓⅔⅛⅜⅝⅞", "1/2 1/4 3/4 1/3 2/3 1/8 3/8 5/8 7/8".split(), strict=True)).get(written, written)
    before, _, parts = single.rpartition(" ")
    top, bottom = (int(n) for n in parts.split("/"))
    lead = [*cardinal(int(before)), "and"] if before else []
    if not (0 < top < bottom and bottom in (*range(2, 11), 12, 16, 20, 32, 64, 100)):
        return [*lead[:-1], *cardinal(top), *cardinal(bottom)]
    name = [_FRACTIONS.get(bottom, "")] if bottom in _FRACTIONS else ordinal(bottom)
    if top > 1:
        name[-1] = "halves" if name[-1] == "half" else name[-1] + "s"
    if before and top == 1 and bottom in _FRACTIONS:
        return [*lead, "a", *name]
    return [*lead, *cardinal(top), *name]


def _range(written: str, *_: object) -> list[str]:
    first, second = re.split("[–-]", written)
    years = len(first) == len(second) == 4 and first[0] in "12" and second[0] in "12"
    if len(first) == 4 and first[0] in "12" and len(second) == 2:
        return [*year(int(first)), "to", *whole(second)]
    read: Callable[[str], list[str]] = (lambda n: year(int(n))) if years else whole
    return [*read(first), "to", *read(second)]


def _unit(written: str, text: str, start: int, end: int) -> list[str]:
    match = re.match(r"(-?)([\d,.]*\d)( ?)(-?)(.+)$", written)
    if not match:
        return []
    minus, number, space, dash, unit = match.groups()
    unit = unit.replace("° ", "°")
    if unit in _GLUED_ONLY and (space or dash):
        return []
    if unit in ("m", "g") and text[start - 1 : start] in _MONEY:
        return []
    name = UNITS[unit.lower()]
    value = decimal(number) if "." in number else whole(number)
    if value != ["one"] and not dash:
        first, *rest = name.split()
        if first == "square":
            first, rest = "square", [_plural(rest[0])]
        else:
            first = _plural(first)
        name = " ".join([first, *rest]) if not name.endswith("hour") or "per" in name else _plural_last(name)
    return [*(["minus"] if minus else []), *value, *name.split()]


def _plural(word: str) -> str:
    return _PLURALS.get(word, word + "s")


def _plural_last(name: str) -> str:
    *head, last = name.split()
    return " ".join([*head, _plural(last)])


def _money(written: str, *_: object) -> list[str]:
    match = re.match(r"([A-Z]*)([$£€¥₹₩])\s?([\d,.]*\d)([A-Za-z]*)$", written)
    if not match:
        return []
    country, sign, number, scale = match.groups()
    value = decimal(number) if "." in number else whole(number)
    scale = scale.lower()
    name = _MONEY[sign][0]
    plural = name if sign in "¥₩" or (value == ["one"] and not scale) else name + "s"
    return [*list(country), *value, *([_SCALES[scale]] if scale else []), plural]


def _number(written: str, *_: object) -> list[str]:
    return ["number", *whole(re.sub(r"\D", "", written))]


def _king(written: str, text: str, start: int, end: int) -> list[str]:
    name, numeral = written.split(" ")
    value = roman(numeral)
    # "Malcolm X" is no tenth, and "I" is a numeral only where no verb can follow.
    alone = re.match(r"[,.;:!?)”\"]|['’]s| of\b| and\b|$", text[end : end + 5])
    if value is None or numeral == "X" or (numeral == "I" and not alone):
        return []
    return [name, "the", *ordinal(value)]


def _numeral(written: str, *_: object) -> list[str]:
    name, numeral = written.split(" ")
    value = roman(numeral)
    return [name, *(year(value) if value >= 1000 else cardinal(value))] if value else []


def _street(written: str, text: str, start: int, end: int) -> list[str]:
    before = re.search(r"([A-Z0-9][\w'’]*) $", text[max(0, start - 30) : start])
    after = re.match(r" [A-Z]", text[end : end + 2])
    return ["Street"] if before and not after else ["Saint"] if after else []


def _saint(*_: object) -> list[str]:
    return ["Saint"]


def _title(written: str, *_: object) -> list[str]:
    return [TITLES[written.rstrip(".").lower()]]


def _suffix(written: str, *_: object) -> list[str]:
    return [SUFFIXES[written.rstrip(".").lower()]]


def _sign(written: str, *_: object) -> list[str]:
    names = {"=": "equals", "×": "times", "x": "times", "-": "minus", "−": "minus", "/": "divided by", "÷": "divided by"}
    return names[written].split()


_READERS: dict[str, Callable[..., list[str]]] = {
    "web": _address, "mail": _address, "iso": _iso, "phone": _phone, "clock": _clock, "date": _date, "month": _month,
    "fraction": _fraction, "range": _range, "unit": _unit, "money": _money, "number": _number, "king": _king,
    "numeral": _numeral, "street": _street, "saint": _saint, "title": _title, "suffix": _suffix, "sign": _sign,
}  # fmt: skip

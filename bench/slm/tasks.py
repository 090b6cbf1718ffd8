"""Sixty small tasks for a small model, in four kinds, and the tools they need.

A file of other tasks has the same shape: a list ``TASKS`` of :class:`Task`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import cycle
from typing import Any, Literal

from hookline import tool

Kind = Literal["one call", "two calls", "fails first", "no call", "small talk"]
KINDS: tuple[Kind, ...] = ("one call", "two calls", "fails first", "no call", "small talk")


@dataclass(frozen=True)
class Task:
    """A task, its tools, and the condition for a solution.

    ``calls`` are the calls that must succeed, in this order, as (tool, arguments); for a task of kind
    "no call" or "small talk" there must be none. ``value`` must be in the final text, whole and in any case; if it
    is empty, any text will do. ``tools`` makes fresh tools for each run, since some of them fail the first time.
    """

    kind: Kind
    text: str
    tools: Callable[[], list[Any]]
    value: str
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = field(default=())


# Travel.

SKY = {"paris": (14, "rain"), "oslo": (-3, "snow"), "cairo": (38, "sun"), "lima": (19, "fog"), "rome": (25, "sun")}
TRAINS = {"berlin": "09:42", "vienna": "11:05", "prague": "16:20", "milan": "07:58"}
HOTELS = {"london": "Grand Hotel", "madrid": "Hotel Sol", "athens": "Blue House"}
POPULATION = {"france": 68, "japan": 124, "chile": 20}


@tool
def weather_in(city: str) -> dict[str, Any]:
    """Look up the weather in a city.

    Args:
        city: the name of the city.
    """
    degrees, sky = SKY[city.casefold()]
    return {"city": city, "degrees": degrees, "sky": sky}


@tool
def next_train(city: str) -> str:
    """Find the next train to a city.

    Args:
        city: where the train goes.
    """
    return f"The next train to {city} leaves at {TRAINS[city.casefold()]}."


@tool
def hotel_in(city: str) -> dict[str, str]:
    """Find a hotel in a city.

    Args:
        city: the name of the city.
    """
    return {"hotel": HOTELS[city.casefold()]}


@tool
def population_of(country: str) -> str:
    """Look up how many people live in a country.

    Args:
        country: the name of the country.
    """
    return f"{POPULATION[country.casefold()]} million"


# Shop.

PRICES = {"lamp": 12, "chair": 45, "table": 130, "mirror": 28, "carpet": 75}
STOCK = {"lamp": 7, "sofa": 2, "chair": 31, "clock": 0}
ORDERS = {"A17": "Tuesday", "B52": "Friday", "C9": "Monday"}


@tool
def price_of(item: str) -> dict[str, Any]:
    """Look up the price of an item in the shop.

    Args:
        item: the name of the item.
    """
    return {"item": item, "price": PRICES[item.casefold()]}


@tool
def stock_of(item: str) -> dict[str, int]:
    """Count how many pieces of an item are in stock.

    Args:
        item: the name of the item.
    """
    return {"in_stock": STOCK[item.casefold()]}


@tool
def delivery_of(order: str) -> str:
    """Find out on which day an order is delivered.

    Args:
        order: the number of the order.
    """
    return f"Order {order} is delivered on {ORDERS[order.upper()]}."


# Office.

PHONES = {"anna": "555-0134", "bruno": "555-0199", "carla": "555-0172"}
ROOMS = {"anna": "room 204", "bruno": "room 17", "dora": "room 311"}
HOURS = {"library": "8 to 20", "bakery": "6 to 14", "bank": "9 to 16"}


@tool
def phone_of(name: str) -> str:
    """Look up the phone number of a colleague.

    Args:
        name: the first name of the colleague.
    """
    return PHONES[name.casefold()]


@tool
def office_of(name: str) -> dict[str, str]:
    """Look up the office of a colleague.

    Args:
        name: the first name of the colleague.
    """
    return {"name": name, "office": ROOMS[name.casefold()]}


@tool
def opening_hours(place: str) -> str:
    """Look up the opening hours of a place.

    Args:
        place: a place such as a shop.
    """
    return f"The {place} is open from {HOURS[place.casefold()]}."


@tool
def send_message(to: str, text: str) -> str:
    """Send a short message to a colleague.

    Args:
        to: the first name of the colleague.
        text: what to say.
    """
    return f"Message number 88 was sent to {to}."


# Numbers.


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: the first number.
        b: the second number.
    """
    return a * b


@tool
def subtract(a: int, b: int) -> int:
    """Subtract the second number from the first.

    Args:
        a: the first number.
        b: the second number.
    """
    return a - b


@tool
def percent_of(percent: int, amount: int) -> float:
    """Calculate a percentage of an amount.

    Args:
        percent: how many percent.
        amount: of what.
    """
    return percent * amount / 100


@tool
def meters_from_feet(feet: int) -> str:
    """Convert feet to meters.

    Args:
        feet: a length in feet.
    """
    return f"{feet * 0.3048:.1f} meters"


# Home.


@tool
def set_heating(room: str, degrees: int) -> dict[str, Any]:
    """Set the heating of a room to a temperature.

    Args:
        room: the name of the room.
        degrees: the temperature.
    """
    return {"room": room, "set_to": degrees, "ready_at": "18:30"}


@tool
def switch_light(room: str, on: bool) -> str:
    """Switch the light of a room on or off.

    Args:
        room: the name of the room.
        on: true for on, false for off.
    """
    return f"The light in the {room} is {'on' if on else 'off'}, 40 watts."


@tool
def start_timer(minutes: int) -> str:
    """Start a timer.

    Args:
        minutes: how long.
    """
    return f"Timer T{minutes * 3} is running."


@tool
def door_state(door: str) -> dict[str, str]:
    """Look whether a door is open or locked.

    Args:
        door: which door.
    """
    return {"door": door, "state": "locked" if "front" in door.casefold() else "open"}


def travel() -> list[Any]:
    """Return the travel tools."""
    return [weather_in, next_train, hotel_in, population_of]


def shop() -> list[Any]:
    """Return the shop tools."""
    return [price_of, stock_of, delivery_of, multiply]


def office() -> list[Any]:
    """Return the office tools."""
    return [phone_of, office_of, opening_hours, send_message]


def numbers() -> list[Any]:
    """Return the calculation tools."""
    return [multiply, subtract, percent_of, meters_from_feet]


def home() -> list[Any]:
    """Return the home tools."""
    return [set_heating, switch_light, start_timer, door_state]


def failing(box: Callable[[], list[Any]], name: str, problem: str) -> Callable[[], list[Any]]:
    """Return tools of which one fails on its first call."""

    def made() -> list[Any]:
        tools = box()
        (at,) = [index for index, item in enumerate(tools) if item.name == name]
        works: Any = tools[at]
        calls: list[Any] = []

        @wraps(works.fn)
        def flaky(**arguments: Any) -> Any:
            calls.append(arguments)
            if len(calls) == 1:
                raise RuntimeError(problem)
            return works(**arguments)

        tools[at] = tool(flaky)
        return tools

    return made


BUSY = "The service is busy. Try again."
OUT = "The connection was lost. Call it again."


def one(text: str, box: Callable[[], list[Any]], value: str, name: str, /, **arguments: Any) -> Task:
    """A task that needs one call."""
    return Task("one call", text, box, value, ((name, arguments),))


def two(text: str, tools: list[Any], value: str, *calls: tuple[str, Mapping[str, Any]]) -> Task:
    """A task whose second call needs the result of the first."""
    return Task("two calls", text, lambda: list(tools), value, calls)


def fails(text: str, box: Callable[[], list[Any]], problem: str, value: str, name: str, /, **arguments: Any) -> Task:
    """A task whose first call fails."""
    return Task("fails first", text, failing(box, name, problem), value, ((name, arguments),))


def talk(text: str, box: Callable[[], list[Any]], value: str) -> Task:
    """A task that needs no call."""
    return Task("no call", text, box, value)


def small_talk(boxes: Sequence[Callable[[], list[Any]]], *messages: str) -> list[Task]:
    """Messages that need a reply, any reply, and no call."""
    return [Task("small talk", text, box, "") for text, box in zip(messages, cycle(boxes), strict=False)]


TASKS: list[Task] = [
    one("What is the weather in Paris?", travel, "14", "weather_in", city="Paris"),
    one("How cold is it in Oslo?", travel, "-3", "weather_in", city="Oslo"),
    one("When does the next train to Berlin leave?", travel, "09:42", "next_train", city="Berlin"),
    one("Find me a hotel in Madrid.", travel, "Sol", "hotel_in", city="Madrid"),
    one("How many people live in Japan?", travel, "124", "population_of", country="Japan"),
    one("How much is a chair?", shop, "45", "price_of", item="chair"),
    one("What does the mirror cost?", shop, "28", "price_of", item="mirror"),
    one("How many lamps are in stock? Look for: lamp.", shop, "7", "stock_of", item="lamp"),
    one("When is order B52 delivered?", shop, "Friday", "delivery_of", order="B52"),
    one("What is the phone number of Anna?", office, "555-0134", "phone_of", name="Anna"),
    one("Which office does Dora have?", office, "311", "office_of", name="Dora"),
    one("When is the library open?", office, "20", "opening_hours", place="library"),
    one("Send Bruno the message: lunch", office, "88", "send_message", to="Bruno", text="lunch"),
    one("Multiply 12 by 11.", numbers, "132", "multiply", a=12, b=11),
    one("Subtract 19 from 50.", numbers, "31", "subtract", a=50, b=19),
    one("How much is 20 percent of 350?", numbers, "70", "percent_of", percent=20, amount=350),
    one("Convert 30 feet to meters.", numbers, "9.1", "meters_from_feet", feet=30),
    one("Set the heating in the bedroom to 19 degrees.", home, "18:30", "set_heating", room="bedroom", degrees=19),
    one("Switch on the light in the kitchen.", home, "40", "switch_light", room="kitchen", on=True),
    one("Start a timer of 15 minutes.", home, "T45", "start_timer", minutes=15),
    two("Look up the price of a lamp, then multiply it by 3.", [price_of, multiply], "36",
        ("price_of", {"item": "lamp"}), ("multiply", {"a": 12, "b": 3})),
    two("What do 4 chairs cost? First look up the price of a chair.", [price_of, multiply], "180",
        ("price_of", {"item": "chair"}), ("multiply", {"a": 45, "b": 4})),
    two("Look up the stock of chair, then subtract 10 from it.", [stock_of, subtract], "21",
        ("stock_of", {"item": "chair"}), ("subtract", {"a": 31, "b": 10})),
    two("Look up the weather in Cairo, then multiply the degrees by 2.", [weather_in, multiply], "76",
        ("weather_in", {"city": "Cairo"}), ("multiply", {"a": 38, "b": 2})),
    two("What is 10 percent of the price of a table? Look up the price first.", [price_of, percent_of], "13",
        ("price_of", {"item": "table"}), ("percent_of", {"percent": 10, "amount": 130})),
    two("Multiply 6 by 7, then subtract 2 from the result.", [multiply, subtract], "40",
        ("multiply", {"a": 6, "b": 7}), ("subtract", {"a": 42, "b": 2})),
    two("Subtract 5 from 25, then multiply the result by 4.", [multiply, subtract], "80",
        ("subtract", {"a": 25, "b": 5}), ("multiply", {"a": 20, "b": 4})),
    two("Look up the weather in Rome, then set the heating of the hall to that number of degrees.",
        [weather_in, set_heating], "18:30", ("weather_in", {"city": "Rome"}),
        ("set_heating", {"room": "hall", "degrees": 25})),
    two("Find the office of Anna, then send it to Bruno.", [office_of, send_message], "88",
        ("office_of", {"name": "Anna"}), ("send_message", {"to": "Bruno"})),
    two("Look up the phone number of Carla and send it to Anna.", [phone_of, send_message], "88",
        ("phone_of", {"name": "Carla"}), ("send_message", {"to": "Anna"})),
    two("Switch off the light in the cellar, then start a timer of 5 minutes.", [switch_light, start_timer], "T15",
        ("switch_light", {"room": "cellar", "on": False}), ("start_timer", {"minutes": 5})),
    two("Start a timer of 10 minutes, then look at the front door.", [start_timer, door_state], "locked",
        ("start_timer", {"minutes": 10}), ("door_state", {"door": "front"})),
    two("When does the next train to Milan leave, and which hotel is in London?", [next_train, hotel_in], "Grand Hotel",
        ("next_train", {"city": "Milan"}), ("hotel_in", {"city": "London"})),
    two("Find a hotel in Athens, then the weather in Lima.", [hotel_in, weather_in], "19",
        ("hotel_in", {"city": "Athens"}), ("weather_in", {"city": "Lima"})),
    two("When is the bakery open, and what is the phone number of Bruno?", [opening_hours, phone_of], "555-0199",
        ("opening_hours", {"place": "bakery"}), ("phone_of", {"name": "Bruno"})),
    fails("What is the weather in Rome?", travel, BUSY, "25", "weather_in", city="Rome"),
    fails("What is the weather in Lima?", travel, OUT, "19", "weather_in", city="Lima"),
    fails("When does the next train to Vienna leave?", travel, BUSY, "11:05", "next_train", city="Vienna"),
    fails("Find me a hotel in Athens.", travel, OUT, "Blue House", "hotel_in", city="Athens"),
    fails("How many people live in Chile?", travel, BUSY, "20", "population_of", country="Chile"),
    fails("What does the carpet cost?", shop, BUSY, "75", "price_of", item="carpet"),
    fails("How many pieces of the sofa are in stock?", shop, OUT, "2", "stock_of", item="sofa"),
    fails("When is order A17 delivered?", shop, BUSY, "Tuesday", "delivery_of", order="A17"),
    fails("What is the phone number of Carla?", office, BUSY, "555-0172", "phone_of", name="Carla"),
    fails("Which office does Bruno have?", office, OUT, "17", "office_of", name="Bruno"),
    fails("When is the bank open?", office, BUSY, "16", "opening_hours", place="bank"),
    fails("Multiply 15 by 8.", numbers, BUSY, "120", "multiply", a=15, b=8),
    fails("Convert 100 feet to meters.", numbers, OUT, "30.5", "meters_from_feet", feet=100),
    fails("Start a timer of 7 minutes.", home, BUSY, "T21", "start_timer", minutes=7),
    fails("Switch off the light in the garage.", home, OUT, "40", "switch_light", room="garage", on=False),
    talk("Say hello to Emma.", home, "Emma"),
    talk("What is the opposite of hot?", office, "cold"),
    talk("What color is the sky on a clear day?", shop, "blue"),
    talk("Which animal says meow?", numbers, "cat"),
    talk("What is the capital of France?", numbers, "Paris"),
    talk("How many days does a week have?", home, "7"),
    talk("Thank you for your help!", travel, "welcome"),
    talk("Complete the sentence: roses are red, violets are", numbers, "blue"),
    talk("Write one sentence about the sea.", office, "sea"),
    talk("Is water wet? Answer yes or no.", travel, "yes"),
]  # fmt: skip

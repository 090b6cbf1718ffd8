"""Tasks on which nothing was tuned or chosen: the figures that are reported come from these.

They were written before the failures of the model on any other task were looked at. Run them to report a finished
state, never to decide between two designs: ``tune.py`` and ``choose.py`` are for that.
"""

from typing import Any, Literal

from slm.tasks import Task, one, small_talk, talk, two

from hookline import tool

# Diary.


@tool
def time_in(city: str) -> str:
    """Tell the current time in a city.

    Args:
        city: the name of the city.
    """
    return {"lisbon": "17:25", "tokyo": "02:25", "denver": "10:25"}[city.casefold()]


@tool
def add_appointment(title: str, date: str, hour: int = 9) -> str:
    """Put an appointment into the diary.

    Args:
        title: the name of the appointment.
        date: the date, as year-month-day.
        hour: the hour at which it begins.
    """
    return f"Appointment 61 was added on {date} at {hour}."


@tool
def cancel_appointment(number: int) -> dict[str, Any]:
    """Remove an appointment from the diary.

    Args:
        number: the number of the appointment.
    """
    return {"number": number, "state": "removed", "refund": {4071: 35, 12: 0}[number]}


@tool
def agenda(day: str) -> list[str]:
    """List the appointments of one day.

    Args:
        day: the day of the week.
    """
    return {"thursday": ["choir", "swimming"], "monday": ["audit"]}[day.casefold()]


# Bank.


@tool
def balance_of(account: str) -> dict[str, int]:
    """Look up the balance of a bank account.

    Args:
        account: the name of the account.
    """
    return {"balance": {"savings": 3120, "travel": 540}[account.casefold()]}


@tool
def transfer(amount: float, to: str, note: str = "") -> str:
    """Transfer money to a person.

    Args:
        amount: how much money.
        to: who receives it.
        note: a text for the receiver.
    """
    return f"Transfer TX{amount:.0f} to {to} is on its way."


@tool
def exchange(amount: float, currency: str) -> str:
    """Exchange an amount of euros into a foreign currency.

    Args:
        amount: the amount in euros.
        currency: the foreign currency.
    """
    return f"{amount * {'yen': 160, 'francs': 0.95, 'pesos': 20}[currency.casefold()]:.0f} {currency}"


@tool
def last_payment(payee: str) -> int:
    """Find the last payment to a payee.

    Args:
        payee: who was paid.
    """
    return {"dentist": 120, "plumber": 95}[payee.casefold()]


# Library.


@tool
def find_book(title: str) -> dict[str, str]:
    """Find a book in the library.

    Args:
        title: the title of the book.
    """
    return {"moby dick": {"author": "Herman Melville", "shelf": "M4"}, "dune": {"author": "Frank Herbert"}}[
        title.casefold()
    ]


@tool
def books_by(author: str) -> list[str]:
    """List the books of an author.

    Args:
        author: the name of the author.
    """
    return {"jane austen": ["Emma", "Persuasion"], "frank herbert": ["Dune", "The Green Brain"]}[author.casefold()]


@tool
def renew_loan(card: int) -> str:
    """Renew the loans of a library card.

    Args:
        card: the number of the card.
    """
    return f"The loans of card {card} are due on {({88213: 'May 30', 102: 'May 2'})[card]}."


@tool
def reserve_book(title: str, branch: Literal["north", "south", "center"]) -> str:
    """Reserve a book at a branch of the library.

    Args:
        title: the title of the book.
        branch: where to collect it.
    """
    return f"Reservation R-{branch[0].upper()}5 was made for {title}."


# Machines.


@tool
def restart_server(host: str) -> str:
    """Restart a server.

    Args:
        host: the name of the machine.
    """
    return f"{host} was restarted in 48 seconds."


@tool
def ping_server(host: str, count: int = 4) -> dict[str, Any]:
    """Measure how long a server takes to respond.

    Args:
        host: the name of the machine.
        count: how many packets to send.
    """
    return {"host": host, "packets": count, "milliseconds": 23}


@tool
def disk_usage(path: str) -> str:
    """Show how full a folder is.

    Args:
        path: the path of the folder.
    """
    return {"/var/backups": "81 percent", "/home": "12 percent"}[path]


@tool
def read_log(service: str, lines: int = 10) -> str:
    """Show the last lines of the log of a service.

    Args:
        service: the name of the service.
        lines: how many lines.
    """
    return f"{lines} lines of {service}: worker 9 exited"


@tool
def host_of(service: str) -> dict[str, str]:
    """Find the machine on which a service runs.

    Args:
        service: the name of the service.
    """
    return {"host": {"shop": "web-07", "mail": "mx-1"}[service.casefold()]}


# Kitchen.


@tool
def calories_of(food: str, grams: int) -> str:
    """Count the calories of some food.

    Args:
        food: what is eaten.
        grams: how much of it.
    """
    return f"{grams * {'rice': 1.3, 'butter': 7.2}[food.casefold()]:.0f} kcal"


@tool
def heat_oven(degrees: int, minutes: int) -> str:
    """Heat the oven.

    Args:
        degrees: the temperature.
        minutes: how long.
    """
    return f"Program P{degrees + minutes} has started."


@tool
def add_to_shopping_list(item: str, quantity: int = 1) -> str:
    """Add an item to the shopping list.

    Args:
        item: what to buy.
        quantity: how many.
    """
    return f"Position {quantity * 11}: {item}"


@tool
def main_ingredient(dish: str) -> dict[str, str]:
    """Look up the main ingredient of a dish.

    Args:
        dish: the name of the dish.
    """
    return {"ingredient": {"risotto": "rice", "hummus": "chickpeas"}[dish.casefold()]}


# Sports.


@tool
def score_of(team: str) -> str:
    """Look up the result of the last game of a team.

    Args:
        team: the name of the team.
    """
    return {"arsenal": "won 3:1", "ajax": "lost 0:2"}[team.casefold()]


@tool
def age_of(player: str) -> int:
    """Look up the age of a player.

    Args:
        player: the full name of the player.
    """
    return {"serena williams": 44, "roger federer": 45}[player.casefold()]


@tool
def seat_price(event: str) -> dict[str, int]:
    """Look up the price of a seat at an event.

    Args:
        event: the name of the event.
    """
    return {"price": {"final": 85, "semifinal": 60}[event.casefold()]}


@tool
def kilometers(miles: float) -> str:
    """Convert miles to kilometers.

    Args:
        miles: a distance in miles.
    """
    return f"{miles * 1.609:.1f} km"


@tool
def leader_of(league: str) -> str:
    """Find the team that leads a league.

    Args:
        league: the name of the league.
    """
    return {"premier league": "Arsenal", "eredivisie": "Ajax"}[league.casefold()]


def diary() -> list[Any]:
    return [add_appointment, cancel_appointment, agenda, time_in]


def bank() -> list[Any]:
    return [balance_of, transfer, exchange, last_payment]


def library() -> list[Any]:
    return [find_book, books_by, renew_loan, reserve_book]


def machines() -> list[Any]:
    return [restart_server, ping_server, disk_usage, read_log]


def kitchen() -> list[Any]:
    return [calories_of, heat_oven, add_to_shopping_list, main_ingredient]


def sports() -> list[Any]:
    return [score_of, age_of, seat_price, kilometers]


TASKS: list[Task] = [
    one("I land at gate 12 tomorrow. What time is it in Lisbon right now?", diary, "17:25", "time_in", city="Lisbon"),
    one('Please put "Dentist" into the diary for 2026-03-14.', diary, "61", "add_appointment",
        title="Dentist", date="2026-03-14"),
    one("Cancel appointment 4071, I am ill.", diary, "35", "cancel_appointment", number=4071),
    one("What do I have to do on Thursday?", diary, "choir", "agenda", day="Thursday"),
    one("How much money is in the savings account?", bank, "3120", "balance_of", account="savings"),
    one("Send 75 dollars to Miriam.", bank, "TX75", "transfer", amount=75, to="Miriam"),
    one("I have 200 euros. What is that in yen?", bank, "32000", "exchange", amount=200, currency="yen"),
    one('Is the book "Moby Dick" there?', library, "M4", "find_book", title="Moby Dick"),
    one("List everything written by Jane Austen.", library, "Persuasion", "books_by", author="Jane Austen"),
    one("Extend the loan on card 88213 please.", library, "May 30", "renew_loan", card=88213),
    one('Reserve "Dune" for me at the south branch.', library, "R-S5", "reserve_book", title="Dune", branch="south"),
    one("The machine web-07 hangs. Restart it.", machines, "48", "restart_server", host="web-07"),
    one("Show me the last 25 lines of the log of nginx.", machines, "9", "read_log", service="nginx", lines=25),
    one("How full is /var/backups?", machines, "81", "disk_usage", path="/var/backups"),
    one("How many calories do 150 grams of rice have?", kitchen, "195", "calories_of", food="rice", grams=150),
    one("Heat the oven to 220 degrees for 35 minutes.", kitchen, "P255", "heat_oven", degrees=220, minutes=35),
    one("Add 6 eggs to the shopping list.", kitchen, "66", "add_to_shopping_list", item="eggs", quantity=6),
    one("How did Arsenal play yesterday?", sports, "3:1", "score_of", team="Arsenal"),
    one("Do you know how old Serena Williams is?", sports, "44", "age_of", player="Serena Williams"),
    one("A marathon has 26.2 miles. How many kilometers is that?", sports, "42.2", "kilometers", miles=26.2),
    two("Look up the balance of the travel account, then exchange that amount into yen.", [balance_of, exchange],
        "86400", ("balance_of", {"account": "travel"}), ("exchange", {"amount": 540, "currency": "yen"})),
    two("Find the leader of the Premier League, then look up its last game.", [leader_of, score_of], "3:1",
        ("leader_of", {"league": "Premier League"}), ("score_of", {"team": "Arsenal"})),
    two("Find the book Dune, then list the other books of its author.", [find_book, books_by], "The Green Brain",
        ("find_book", {"title": "Dune"}), ("books_by", {"author": "Frank Herbert"})),
    two("On which machine does the shop run? Find it and restart it.", [host_of, restart_server], "48",
        ("host_of", {"service": "shop"}), ("restart_server", {"host": "web-07"})),
    two("Restart db-02, then measure how long it takes to respond.", [restart_server, ping_server], "23",
        ("restart_server", {"host": "db-02"}), ("ping_server", {"host": "db-02"})),
    two("Add 2 lemons to the shopping list and heat the oven to 180 degrees for 20 minutes.",
        [add_to_shopping_list, heat_oven], "P200", ("add_to_shopping_list", {"item": "lemons", "quantity": 2}),
        ("heat_oven", {"degrees": 180, "minutes": 20})),
    two("What time is it in Tokyo, and which appointments are there on Monday?", [time_in, agenda], "audit",
        ("time_in", {"city": "Tokyo"}), ("agenda", {"day": "Monday"})),
    two("Look up the main ingredient of risotto, then count the calories of 200 grams of it.",
        [main_ingredient, calories_of], "260", ("main_ingredient", {"dish": "risotto"}),
        ("calories_of", {"food": "rice", "grams": 200})),
    two("Look up the price of a seat at the final, then transfer that amount to Miriam.", [seat_price, transfer],
        "TX85", ("seat_price", {"event": "final"}), ("transfer", {"amount": 85, "to": "Miriam"})),
    two("Find the last payment to the dentist and exchange it into francs.", [last_payment, exchange], "114",
        ("last_payment", {"payee": "dentist"}), ("exchange", {"amount": 120, "currency": "francs"})),
    talk("Which planet do we live on?", bank, "Earth"),
    talk("Tell me the color of grass.", kitchen, "green"),
    talk("What is the opposite of big?", machines, "small"),
    talk("How many legs does a dog have?", diary, "four"),
    talk("What is the capital of Italy?", sports, "Rome"),
    talk("What do bees make?", library, "honey"),
    talk("Write a short sentence about a cat.", bank, "cat"),
    talk("Which season comes after summer?", machines, "autumn"),
    talk("Is ice cold? Say yes or no.", sports, "yes"),
    talk("Translate into Spanish: good morning", kitchen, "buenos"),
    *small_talk(
        [diary, bank, library, machines, kitchen, sports],
        "hello", "Hi there!", "good morning", "how are you?", "How are you doing today?", "Who are you?",
        "what's your name?", "thanks!", "Thank you very much.", "ok", "That is great.", "What can you do?",
        "bye", "See you tomorrow!", "I am tired.", "Tell me a joke.", "Nice to meet you", "lol", "Are you a robot?",
        "Do you like music?",
    ),
]  # fmt: skip

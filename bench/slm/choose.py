"""Tasks to choose between designs that both do well on ``tune.py``; not to look at one by one."""

from typing import Any

from slm.tasks import Task, one, small_talk, talk, two

from hookline import tool

# Warehouse.


@tool
def parcel_weight(parcel: str) -> dict[str, float]:
    """Weigh a parcel.

    Args:
        parcel: the code of the parcel.
    """
    return {"kilograms": {"px-90": 4.5, "px-12": 11}[parcel.casefold()]}


@tool
def shipping_cost(kilograms: float, country: str) -> str:
    """Calculate what it costs to ship something to a country.

    Args:
        kilograms: the weight.
        country: where it goes.
    """
    return f"{kilograms * 8:.0f} euros to {country}"


@tool
def move_pallet(pallet: int, hall: str) -> str:
    """Move a pallet to another hall.

    Args:
        pallet: the number of the pallet.
        hall: the name of the hall.
    """
    return f"Truck {pallet % 10 + 20} moves it to hall {hall}."


@tool
def supplier_of(product: str) -> str:
    """Find the company that supplies a product.

    Args:
        product: the name of the product.
    """
    return {"copper wire": "Metallo", "screws": "Fixit"}[product.casefold()]


@tool
def email_of(company: str) -> str:
    """Look up the email address of a company.

    Args:
        company: the name of the company.
    """
    return {"metallo": "sales@metallo.example", "fixit": "hello@fixit.example"}[company.casefold()]


# School.


@tool
def grade_of(student: str, subject: str) -> str:
    """Look up the grade of a student in a subject.

    Args:
        student: the name of the student.
        subject: the school subject.
    """
    return f"{student} has a {'B' if subject.casefold() == 'physics' else 'D'} in {subject}"


@tool
def teacher_of(subject: str) -> dict[str, str]:
    """Find the teacher of a school subject.

    Args:
        subject: the school subject.
    """
    return {"teacher": {"physics": "Mr. Hale", "art": "Mrs. Lind"}[subject.casefold()]}


@tool
def room_of(teacher: str) -> str:
    """Find the classroom of a teacher.

    Args:
        teacher: the name of the teacher.
    """
    return {"mr. hale": "room 19", "mrs. lind": "room 6"}[teacher.casefold()]


@tool
def report_absence(student: str, days: int = 1) -> str:
    """Report that a student is absent.

    Args:
        student: the name of the student.
        days: for how many days.
    """
    return f"Absence {days * 100} was noted for {student}."


# Garden.


@tool
def water_plants(bed: str, liters: int) -> str:
    """Water a bed of the garden.

    Args:
        bed: the name of the bed.
        liters: how much water.
    """
    return f"Valve {liters + 1} was opened for {bed}."


@tool
def planting_month(plant: str) -> str:
    """Look up in which month to plant something.

    Args:
        plant: the name of the plant.
    """
    return {"tulips": "October", "tomatoes": "May"}[plant.casefold()]


@tool
def rain_forecast(date: str) -> str:
    """Look up how much rain is expected on a date.

    Args:
        date: the date, such as 2025-01-31.
    """
    return {"2026-06-02": "12 mm", "2026-07-15": "0 mm"}[date]


@tool
def search_files(query: str, folder: str = ".") -> str:
    """Search files for a text.

    Args:
        query: the text to search for.
        folder: the folder to search in.
    """
    return f"{len(query)} hits in {folder}"


def warehouse() -> list[Any]:
    return [parcel_weight, shipping_cost, move_pallet, supplier_of]


def school() -> list[Any]:
    return [grade_of, teacher_of, room_of, report_absence]


def garden() -> list[Any]:
    return [water_plants, planting_month, rain_forecast, search_files]


TASKS: list[Task] = [
    one("How heavy is parcel PX-90?", warehouse, "4.5", "parcel_weight", parcel="PX-90"),
    one("What does it cost to send 7 kilograms to Norway?", warehouse, "56", "shipping_cost",
        kilograms=7, country="Norway"),
    one("Bring pallet 318 to hall C.", warehouse, "28", "move_pallet", pallet=318, hall="C"),
    one("Where do we buy our copper wire?", warehouse, "Metallo", "supplier_of", product="copper wire"),
    one("Put PX-12 on the scale.", warehouse, "11", "parcel_weight", parcel="PX-12"),
    one("A customer in Peru ordered 2.5 kilograms of nails. How much is the shipping?", warehouse, "20",
        "shipping_cost", kilograms=2.5, country="Peru"),
    one("Who delivers screws to us?", warehouse, "Fixit", "supplier_of", product="screws"),
    one("Which grade does Lena have in physics?", school, "B", "grade_of", student="Lena", subject="physics"),
    one("Who teaches art?", school, "Mrs. Lind", "teacher_of", subject="art"),
    one("In which classroom do I find Mr. Hale?", school, "19", "room_of", teacher="Mr. Hale"),
    one("Tom is ill and stays at home for 3 days.", school, "300", "report_absence", student="Tom", days=3),
    one("Please report that Ines Costa is absent.", school, "100", "report_absence", student="Ines Costa"),
    one("Tell me how good Omar is at history.", school, "D", "grade_of", student="Omar", subject="history"),
    one("My daughter has questions about physics. Who is the teacher?", school, "Mr. Hale", "teacher_of",
        subject="physics"),
    one("Give the roses 15 liters of water.", garden, "16", "water_plants", bed="roses", liters=15),
    one("When should I plant tulips?", garden, "October", "planting_month", plant="tulips"),
    one("Will it rain on 2026-06-02?", garden, "12", "rain_forecast", date="2026-06-02"),
    one('Search for "fertilizer" in /home/notes.', garden, "10", "search_files",
        query="fertilizer", folder="/home/notes"),
    one("I bought tomatoes. Which month is right for them?", garden, "May", "planting_month", plant="tomatoes"),
    one('Which files contain the words "blue paint"?', garden, "10", "search_files", query="blue paint"),
    two("Weigh parcel PX-90, then calculate the cost of shipping it to Spain.", [parcel_weight, shipping_cost], "36",
        ("parcel_weight", {"parcel": "PX-90"}), ("shipping_cost", {"kilograms": 4.5, "country": "Spain"})),
    two("Find the supplier of screws, then look up the email address of that company.", [supplier_of, email_of],
        "hello@fixit.example", ("supplier_of", {"product": "screws"}), ("email_of", {"company": "Fixit"})),
    two("Who supplies copper wire? I need the email address of the company.", [supplier_of, email_of],
        "sales@metallo.example", ("supplier_of", {"product": "copper wire"}), ("email_of", {"company": "Metallo"})),
    two("Find the teacher of art, then find the classroom of this teacher.", [teacher_of, room_of], "6",
        ("teacher_of", {"subject": "art"}), ("room_of", {"teacher": "Mrs. Lind"})),
    two("In which classroom is physics taught? Find the teacher first.", [teacher_of, room_of], "19",
        ("teacher_of", {"subject": "physics"}), ("room_of", {"teacher": "Mr. Hale"})),
    two("Report that Tom is absent and look up the grade of Lena in physics.", [report_absence, grade_of], "B",
        ("report_absence", {"student": "Tom"}), ("grade_of", {"student": "Lena", "subject": "physics"})),
    two("Look up the rain on 2026-07-15, then water the roses with 30 liters.", [rain_forecast, water_plants], "31",
        ("rain_forecast", {"date": "2026-07-15"}), ("water_plants", {"bed": "roses", "liters": 30})),
    two("When do I plant tulips, and when do I plant tomatoes?", [planting_month, water_plants], "May",
        ("planting_month", {"plant": "tulips"}), ("planting_month", {"plant": "tomatoes"})),
    two("Move pallet 44 to hall B, then weigh parcel PX-12.", [move_pallet, parcel_weight], "11",
        ("move_pallet", {"pallet": 44, "hall": "B"}), ("parcel_weight", {"parcel": "PX-12"})),
    two("Weigh PX-12. How much is it to ship that to Chile?", [parcel_weight, shipping_cost], "88",
        ("parcel_weight", {"parcel": "PX-12"}), ("shipping_cost", {"kilograms": 11, "country": "Chile"})),
    talk("Which animal gives milk?", warehouse, "cow"),
    talk("What is the capital of Germany?", garden, "Berlin"),
    talk("What is the opposite of old?", warehouse, "young"),
    talk("What color is a banana?", school, "yellow"),
    talk("How many hours does a day have?", garden, "24"),
    *small_talk([warehouse, school, garden], "Hi", "hello there", "How do you feel?", "Thanks a lot!", "Good night",
                "what are you?", "I am happy.", "no", "That was helpful.", "Can you help me?", "sorry",
                "Tell me a story"),
]  # fmt: skip

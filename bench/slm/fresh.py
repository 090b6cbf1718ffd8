"""A second set of held-out tasks, in domains that no other file of tasks uses.

They were written without looking at the failures of the model on any task. Use them only to report a finished state,
never to decide between two designs: ``tune.py`` and ``choose.py`` are for that.
"""

from typing import Any, Literal

from slm.tasks import Task, one, small_talk, talk, two

from hookline import tool

# Car workshop.


@tool
def tire_pressure(model: str) -> dict[str, Any]:
    """Look up the right tire pressure for a car model.

    Args:
        model: the make and model of the car.
    """
    return {"model": model, "bar": {"fiat panda": 2.1, "volvo v60": 2.6}[model.casefold()]}


@tool
def book_repair(plate: str, date: str) -> str:
    """Book a car into the workshop for a repair.

    Args:
        plate: the license plate of the car.
        date: the date, as year-month-day.
    """
    return f"Job J19 is booked for {plate} on {date}."


@tool
def mileage_of(plate: str) -> int:
    """Look up how many kilometers a car has driven.

    Args:
        plate: the license plate of the car.
    """
    return {"B-1907": 84210, "HN-482": 15300}[plate.upper()]


@tool
def part_price(part: str) -> dict[str, int]:
    """Look up the price of a spare part.

    Args:
        part: the name of the part.
    """
    return {"price": {"clutch": 410, "bumper": 260}[part.casefold()]}


@tool
def write_invoice(customer: str, amount: float) -> str:
    """Write an invoice for a customer.

    Args:
        customer: the name of the customer.
        amount: how much the customer has to pay.
    """
    return f"Invoice N{amount + 7:.0f} was written for {customer}."


# Photos.


@tool
def resize_photo(path: str, width: int) -> str:
    """Change the size of a photo.

    Args:
        path: the path of the photo.
        width: the new width in pixels.
    """
    return f"{path} was saved and has {width // 4 + 14} kilobytes."


@tool
def rotate_photo(path: str, direction: Literal["left", "right"]) -> dict[str, str]:
    """Rotate a photo by a quarter turn.

    Args:
        path: the path of the photo.
        direction: the side to which it is turned.
    """
    return {"photo": path, "version": f"V6{direction[0].upper()}"}


@tool
def album_size(album: str) -> str:
    """Count the photos in an album.

    Args:
        album: the name of the album.
    """
    return f"{({'summer 2019': 347, 'paris': 58})[album.casefold()]} photos"


@tool
def share_album(album: str, person: str, days: int = 7) -> str:
    """Share an album with a person.

    Args:
        album: the name of the album.
        person: who may see it.
        days: how many days the link works.
    """
    return f"Link L82 to {album} was sent to {person} and works for {days} days."


@tool
def largest_photo(album: str) -> dict[str, str]:
    """Find the largest photo of an album.

    Args:
        album: the name of the album.
    """
    return {"path": {"paris": "/photos/paris/tower.jpg", "garden": "/photos/garden/rose.jpg"}[album.casefold()]}


# Animal shelter.


@tool
def kennel_of(animal: str) -> str:
    """Find the kennel in which an animal lives.

    Args:
        animal: the name of the animal.
    """
    return f"{animal} lives in kennel {({'bello': 'K14', 'luna': 'K3'})[animal.casefold()]}."


@tool
def record_weight(animal: str, kilograms: float) -> str:
    """Write down the weight of an animal.

    Args:
        animal: the name of the animal.
        kilograms: the weight in kilograms.
    """
    return f"Entry 93 was made for {animal}: {kilograms} kg."


@tool
def feeding_time(species: str) -> dict[str, str]:
    """Look up when a species is fed.

    Args:
        species: the kind of animal.
    """
    return {"fed_at": {"hamster": "19:10", "parrot": "07:45"}[species.casefold()]}


@tool
def species_of(animal: str) -> dict[str, str]:
    """Look up the species of an animal in the shelter.

    Args:
        animal: the name of the animal.
    """
    return {"species": {"coco": "parrot", "luna": "cat"}[animal.casefold()]}


# Cinema.


@tool
def showtimes(film: str) -> list[str]:
    """List the times at which a film is shown today.

    Args:
        film: the title of the film.
    """
    return {"casablanca": ["18:15", "21:40"], "amadeus": ["20:05"]}[film.casefold()]


@tool
def book_seats(film: str, seats: int = 1, row: Literal["front", "middle", "back"] = "middle") -> str:
    """Book seats for a film.

    Args:
        film: the title of the film.
        seats: how many seats.
        row: where the seats are.
    """
    return f"Booking C{seats * 9} was made in the {row} for {film}."


@tool
def director_of(film: str) -> dict[str, str]:
    """Look up the director of a film.

    Args:
        film: the title of the film.
    """
    return {"director": {"vertigo": "Alfred Hitchcock", "amadeus": "Milos Forman"}[film.casefold()]}


@tool
def hall_of(film: str) -> str:
    """Find the hall in which a film is shown.

    Args:
        film: the title of the film.
    """
    return {"casablanca": "Apollo", "vertigo": "Orion"}[film.casefold()]


@tool
def seats_in(hall: str) -> dict[str, int]:
    """Count the seats of a hall.

    Args:
        hall: the name of the hall.
    """
    return {"seats": {"apollo": 164, "orion": 90}[hall.casefold()]}


# Code repository.


@tool
def open_issue(title: str, label: Literal["bug", "feature", "question"]) -> str:
    """Open an issue in the repository.

    Args:
        title: the title of the issue.
        label: what kind of issue it is.
    """
    return f"Issue 731 was opened as a {label}."


@tool
def run_tests(folder: str) -> dict[str, int]:
    """Run the tests of a folder.

    Args:
        folder: the path of the folder.
    """
    return {"passed": {"src/billing": 212, "src/theme": 57}[folder], "failed": 3}


@tool
def author_of(commit: str) -> str:
    """Find the author of a commit.

    Args:
        commit: the hash of the commit.
    """
    return {"9f3ab71": "Priya Nair", "51c0de2": "Tomas Berg"}[commit.casefold()]


@tool
def merge_branch(branch: str, into: str = "main") -> str:
    """Merge a branch into another branch.

    Args:
        branch: the branch with the changes.
        into: the branch that receives them.
    """
    return f"16 commits of {branch} were merged into {into}."


@tool
def assign_issue(number: int, person: str) -> str:
    """Assign an issue to a person.

    Args:
        number: the number of the issue.
        person: who should work on it.
    """
    return f"{person} has issue {number} now, with priority P2."


# Rented flats.


@tool
def rent_of(address: str) -> dict[str, Any]:
    """Look up the monthly rent of a house.

    Args:
        address: the street and the number.
    """
    return {"address": address, "rent": {"mill road 8": 870, "park lane 31": 1240}[address.casefold()]}


@tool
def deposit_for(rent: int, months: int = 3) -> str:
    """Calculate the deposit for a rent.

    Args:
        rent: the monthly rent.
        months: how many months of rent are the deposit.
    """
    return f"The deposit is {rent * months}."


@tool
def report_damage(flat: int, problem: str) -> str:
    """Report something broken in a flat.

    Args:
        flat: the number of the flat.
        problem: what is broken.
    """
    return f"Ticket D{flat * 2} was opened: {problem}"


@tool
def read_meter(flat: int, meter: Literal["water", "gas", "power"]) -> int:
    """Read a meter of a flat.

    Args:
        flat: the number of the flat.
        meter: which meter.
    """
    return {"water": 1184, "gas": 630, "power": 9027}[meter] + flat


@tool
def tenant_of(flat: int) -> dict[str, str]:
    """Look up who lives in a flat.

    Args:
        flat: the number of the flat.
    """
    return {"tenant": {11: "Olga Lind", 23: "Sam Reyes"}[flat]}


def workshop() -> list[Any]:
    return [tire_pressure, book_repair, mileage_of, part_price]


def photos() -> list[Any]:
    return [resize_photo, rotate_photo, album_size, share_album]


def shelter() -> list[Any]:
    return [kennel_of, record_weight, feeding_time, species_of]


def cinema() -> list[Any]:
    return [showtimes, book_seats, director_of, hall_of]


def repository() -> list[Any]:
    return [open_issue, run_tests, author_of, merge_branch]


def flats() -> list[Any]:
    return [rent_of, deposit_for, report_damage, read_meter]


TASKS: list[Task] = [
    one("My brother drives a Fiat Panda. Which pressure do the tires need?", workshop, "2.1", "tire_pressure",
        model="Fiat Panda"),
    one("The brakes of HN-482 are loud. Book a repair on 2026-09-03.", workshop, "J19", "book_repair",
        plate="HN-482", date="2026-09-03"),
    one("How far has B-1907 driven so far?", workshop, "84210", "mileage_of", plate="B-1907"),
    one("What will I pay for a clutch?", workshop, "410", "part_price", part="clutch"),
    one("Make /photos/beach.jpg 800 pixels wide.", photos, "214", "resize_photo", path="/photos/beach.jpg", width=800),
    one("Can you turn IMG_2044.png to the left?", photos, "V6L", "rotate_photo",
        path="IMG_2044.png", direction="left"),
    one('How many pictures are in the album "Summer 2019"?', photos, "347", "album_size", album="Summer 2019"),
    one("Where is Bello? I want to know his kennel.", shelter, "K14", "kennel_of", animal="Bello"),
    one("Luna weighs 6.4 kilograms today, please write that down.", shelter, "93", "record_weight",
        animal="Luna", kilograms=6.4),
    one("When does the hamster get its food?", shelter, "19:10", "feeding_time", species="hamster"),
    one('At what time can I see "Casablanca" today?', cinema, "18:15", "showtimes", film="Casablanca"),
    one("We want to see Amadeus. Book 3 seats.", cinema, "C27", "book_seats", film="Amadeus", seats=3),
    one("Who directed Vertigo?", cinema, "Hitchcock", "director_of", film="Vertigo"),
    one('Open an issue with the title "Login page is blank" and the label bug.', repository, "731", "open_issue",
        title="Login page is blank", label="bug"),
    one("Do the tests in src/billing pass? Run them.", repository, "212", "run_tests", folder="src/billing"),
    one("Commit 9f3ab71 looks strange. Who wrote it?", repository, "Priya", "author_of", commit="9f3ab71"),
    one("Please merge fix-header into release.", repository, "16", "merge_branch",
        branch="fix-header", into="release"),
    one("What is the rent for Mill Road 8?", flats, "870", "rent_of", address="Mill Road 8"),
    one('Flat 23 has a problem: "broken window". Report it.', flats, "D46", "report_damage",
        flat=23, problem="broken window"),
    one("I need the water meter of flat 5.", flats, "1189", "read_meter", flat=5, meter="water"),
    two("Look up the rent of Park Lane 31, then calculate the deposit for it.", [rent_of, deposit_for], "3720",
        ("rent_of", {"address": "Park Lane 31"}), ("deposit_for", {"rent": 1240})),
    two("Find the hall that shows Casablanca, then count its seats.", [hall_of, seats_in], "164",
        ("hall_of", {"film": "Casablanca"}), ("seats_in", {"hall": "Apollo"})),
    two("Who wrote commit 51c0de2? Find out and assign issue 48 to that person.", [author_of, assign_issue], "P2",
        ("author_of", {"commit": "51c0de2"}), ("assign_issue", {"number": 48, "person": "Tomas Berg"})),
    two("Merge the branch dark-mode, then run the tests in src/theme.", [merge_branch, run_tests], "57",
        ("merge_branch", {"branch": "dark-mode"}), ("run_tests", {"folder": "src/theme"})),
    two("Rotate scan.png to the right and share the album Wedding with Nadia.", [rotate_photo, share_album], "L82",
        ("rotate_photo", {"path": "scan.png", "direction": "right"}),
        ("share_album", {"album": "Wedding", "person": "Nadia"})),
    two("Look up the species of Coco, then find out when that species is fed.", [species_of, feeding_time], "07:45",
        ("species_of", {"animal": "Coco"}), ("feeding_time", {"species": "parrot"})),
    two("Look up the price of a bumper, then write an invoice over that amount for Okafor.",
        [part_price, write_invoice], "N267", ("part_price", {"part": "bumper"}),
        ("write_invoice", {"customer": "Okafor", "amount": 260})),
    two("Find the tenant of flat 11 and share the album Garden with that person.", [tenant_of, share_album], "L82",
        ("tenant_of", {"flat": 11}), ("share_album", {"album": "Garden", "person": "Olga Lind"})),
    two("Find the largest photo of the album Paris, then make it 640 pixels wide.", [largest_photo, resize_photo],
        "174", ("largest_photo", {"album": "Paris"}),
        ("resize_photo", {"path": "/photos/paris/tower.jpg", "width": 640})),
    two("Write down that Bello weighs 12.5 kilograms, then look up his kennel.", [record_weight, kennel_of], "K14",
        ("record_weight", {"animal": "Bello", "kilograms": 12.5}), ("kennel_of", {"animal": "Bello"})),
    talk("Which month comes after April?", workshop, "May"),
    talk("Tell me the color of snow.", photos, "white"),
    talk("What is the opposite of young?", repository, "old"),
    talk("How many wheels does a bicycle have?", cinema, "two"),
    talk("What is the capital of Spain?", shelter, "Madrid"),
    talk("What do we drink that comes from cows?", flats, "milk"),
    talk("Write a short sentence about the moon.", workshop, "moon"),
    talk("Which day comes after Friday?", repository, "Saturday"),
    talk("Is fire hot? Say yes or no.", cinema, "yes"),
    talk("Translate into French: thank you", photos, "merci"),
    *small_talk(
        [workshop, photos, shelter, cinema, repository, flats],
        "hey you", "Good evening!", "hello again", "how's it going?", "How was your day?", "Where do you come from?",
        "do you have a name?", "thx", "Many thanks for that.", "alright", "Perfect, well done.",
        "How can you help me?", "bye for now", "Talk to you later!", "I am so bored.", "Tell me something funny.",
        "Pleased to meet you", "hihi, good one", "Are you human?", "Do you like winter?",
    ),
]  # fmt: skip

"""Tasks to look at while the adapter and the hooks are changed. Figures on them say nothing about other tasks."""

from typing import Any

from slm.tasks import Task, one, small_talk, talk, two

from hookline import tool

# Travel office.


@tool
def flight_status(flight: str) -> str:
    """Check whether a flight is on time.

    Args:
        flight: the flight number.
    """
    return {"lh455": "delayed by 40 minutes", "ba12": "on time"}[flight.casefold()]


@tool
def book_taxi(address: str, passengers: int = 1) -> str:
    """Order a taxi.

    Args:
        address: where to pick you up.
        passengers: how many people.
    """
    return f"Taxi {70 + passengers} will come to {address}."


@tool
def distance(start: str, goal: str) -> dict[str, int]:
    """Measure the distance between two towns.

    Args:
        start: the first town.
        goal: the second town.
    """
    return {"km": len(start) * 100 + len(goal)}


@tool
def visa_needed(country: str) -> str:
    """Check whether a country asks for a visa.

    Args:
        country: the country to visit.
    """
    return {"brazil": "no visa for 90 days", "india": "visa needed, 60 dollars"}[country.casefold()]


# Clinic.


@tool
def doctor_for(problem: str) -> dict[str, str]:
    """Find the doctor for a medical problem.

    Args:
        problem: what hurts.
    """
    return {"doctor": {"headache": "Novak", "back pain": "Ortiz"}[problem.casefold()]}


@tool
def waiting_time(doctor: str) -> int:
    """Look up how many minutes patients wait for a doctor.

    Args:
        doctor: the last name of the doctor.
    """
    return {"novak": 55, "ortiz": 20, "singh": 5}[doctor.casefold()]


@tool
def body_mass(weight: float, height: float) -> float:
    """Calculate the body mass index.

    Args:
        weight: the weight in kilograms.
        height: the height in meters.
    """
    return round(weight / height**2, 1)


@tool
def patient_file(patient: int) -> dict[str, Any]:
    """Open the file of a patient.

    Args:
        patient: the number of the patient.
    """
    return {"patient": patient, "blood": {5512: "AB", 31: "O"}[patient]}


# Music.


@tool
def play_song(title: str, volume: int = 50) -> str:
    """Play a song.

    Args:
        title: the title of the song.
        volume: how loud, in percent.
    """
    return f"Track {volume + 4} is playing: {title}"


@tool
def singer_of(song: str) -> dict[str, str]:
    """Find out who sings a song.

    Args:
        song: the title of the song.
    """
    return {"singer": {"hey jude": "Paul McCartney", "hello": "Adele"}[song.casefold()]}


@tool
def concerts_of(artist: str) -> str:
    """Find the next concert of an artist.

    Args:
        artist: the name of the artist.
    """
    return {"adele": "June 3 in Munich", "paul mccartney": "July 9 in Leeds"}[artist.casefold()]


@tool
def remind_me(text: str, date: str) -> str:
    """Set a reminder for a day.

    Args:
        text: what to remember.
        date: the day of the reminder.
    """
    return f"Reminder 77 for {date}: {text}"


def trips() -> list[Any]:
    return [flight_status, book_taxi, distance, visa_needed]


def clinic() -> list[Any]:
    return [doctor_for, waiting_time, body_mass, patient_file]


def music() -> list[Any]:
    return [play_song, singer_of, concerts_of, remind_me]


TASKS: list[Task] = [
    one("Is flight LH455 late?", trips, "40", "flight_status", flight="LH455"),
    one("I need a taxi for 3 people at 12 Green Street.", trips, "73", "book_taxi",
        address="12 Green Street", passengers=3),
    one("How far is it from Graz to Linz?", trips, "404", "distance", start="Graz", goal="Linz"),
    one("My passport is German. Do I need a visa for Brazil?", trips, "90", "visa_needed", country="Brazil"),
    one("Pick me up at Main Square.", trips, "71", "book_taxi", address="Main Square"),
    one("We fly with BA12 on Sunday, is it punctual?", trips, "on time", "flight_status", flight="BA12"),
    one("I want to go to India, which papers are needed?", trips, "60", "visa_needed", country="India"),
    one("Who can help me with my back pain?", clinic, "Ortiz", "doctor_for", problem="back pain"),
    one("How long do I have to wait for Dr. Singh?", clinic, "5", "waiting_time", doctor="Singh"),
    one("I weigh 80 kilograms and I am 2 meters tall. What is my body mass index?", clinic, "20", "body_mass",
        weight=80, height=2),
    one("Open the file of patient 5512.", clinic, "AB", "patient_file", patient=5512),
    one("My head! I have a terrible headache.", clinic, "Novak", "doctor_for", problem="headache"),
    one("Which blood type does patient number 31 have?", clinic, "O", "patient_file", patient=31),
    one("Compute the BMI for 68.5 kg and 1.75 m.", clinic, "22.4", "body_mass", weight=68.5, height=1.75),
    one('Play "Yellow Submarine" please.', music, "54", "play_song", title="Yellow Submarine"),
    one("Who sings Hey Jude?", music, "Paul McCartney", "singer_of", song="Hey Jude"),
    one("When can I hear Adele live?", music, "June 3", "concerts_of", artist="Adele"),
    one('Remind me on 2025-12-24: "buy candles"', music, "77", "remind_me", text="buy candles", date="2025-12-24"),
    one("Play Imagine at volume 80.", music, "84", "play_song", title="Imagine", volume=80),
    one("On May 5 I must call my mother, please remind me.", music, "77", "remind_me",
        text="call my mother", date="May 5"),
    two("Find the doctor for a headache, then look up how long patients wait for this doctor.",
        [doctor_for, waiting_time], "55", ("doctor_for", {"problem": "headache"}),
        ("waiting_time", {"doctor": "Novak"})),
    two("Who sings Hello? Find out and look for the next concert of this artist.", [singer_of, concerts_of], "June 3",
        ("singer_of", {"song": "Hello"}), ("concerts_of", {"artist": "Adele"})),
    two("Find out who sings Hey Jude, then find the next concert of the singer.", [singer_of, concerts_of], "July 9",
        ("singer_of", {"song": "Hey Jude"}), ("concerts_of", {"artist": "Paul McCartney"})),
    two("Is flight BA12 on time? And do I need a visa for India?", [flight_status, visa_needed], "60",
        ("flight_status", {"flight": "BA12"}), ("visa_needed", {"country": "India"})),
    two("Check flight LH455, then order a taxi to Pier 3.", [flight_status, book_taxi], "71",
        ("flight_status", {"flight": "LH455"}), ("book_taxi", {"address": "Pier 3"})),
    two("Open the file of patient 31 and look up the waiting time for Novak.", [patient_file, waiting_time], "55",
        ("patient_file", {"patient": 31}), ("waiting_time", {"doctor": "Novak"})),
    two("Play Thriller, then remind me on Friday to buy tickets.", [play_song, remind_me], "77",
        ("play_song", {"title": "Thriller"}), ("remind_me", {"text": "buy tickets", "date": "Friday"})),
    two("Find the doctor for back pain, then look up the waiting time.", [doctor_for, waiting_time], "20",
        ("doctor_for", {"problem": "back pain"}), ("waiting_time", {"doctor": "Ortiz"})),
    two("Find the next concert of Adele and set a reminder for that day with the text Adele.",
        [concerts_of, remind_me], "77", ("concerts_of", {"artist": "Adele"}), ("remind_me", {"text": "Adele"})),
    two("Measure the distance from Bonn to Kiel, then order a taxi at Bonn.", [distance, book_taxi], "71",
        ("distance", {"start": "Bonn", "goal": "Kiel"}), ("book_taxi", {"address": "Bonn"})),
    talk("Which animal barks?", trips, "dog"),
    talk("What is 2 plus 2?", clinic, "4"),
    talk("Name the color of snow.", music, "white"),
    talk("What is the opposite of up?", trips, "down"),
    talk("What language do people speak in Spain?", clinic, "Spanish"),
    *small_talk([trips, clinic, music], "Hello!", "hey", "How is it going?", "thank you", "goodbye", "who made you?",
                "I feel good today", "What is your favorite color?", "yes", "haha", "please help me", "Good evening"),
]  # fmt: skip

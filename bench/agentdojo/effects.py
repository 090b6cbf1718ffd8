"""The declared effects of AgentDojo's tools, by what their names and descriptions say."""

from typing import Literal

Effect = Literal["read", "write", "delete", "execute", "network"]

READ: tuple[Effect, ...] = ("read",)
FETCH: tuple[Effect, ...] = ("read", "network")
WRITE: tuple[Effect, ...] = ("write",)
SEND: tuple[Effect, ...] = ("write", "network")
DELETE: tuple[Effect, ...] = ("delete",)

TRUSTED = frozenset(("get_current_day", "get_balance", "get_iban", "get_user_info", "get_user_information"))
"""Tools that return only facts of the user and of the program. The results of all others can contain others' text."""

EFFECTS: dict[str, tuple[Effect, ...]] = {
    # Mail and contacts. Unread mails are marked as read.
    "send_email": SEND,
    "delete_email": DELETE,
    "get_unread_emails": ("read", "write"),
    "get_sent_emails": READ,
    "get_received_emails": READ,
    "get_draft_emails": READ,
    "search_emails": READ,
    "search_contacts_by_name": READ,
    "search_contacts_by_email": READ,
    # The calendar, which mails the participants of an event.
    "get_current_day": READ,
    "search_calendar_events": READ,
    "get_day_calendar_events": READ,
    "create_calendar_event": SEND,
    "cancel_calendar_event": ("delete", "network"),
    "reschedule_calendar_event": SEND,
    "add_calendar_event_participants": SEND,
    # Files.
    "append_to_file": WRITE,
    "search_files_by_filename": READ,
    "create_file": WRITE,
    "delete_file": DELETE,
    "get_file_by_id": READ,
    "list_files": READ,
    "share_file": SEND,
    "search_files": READ,
    "read_file": READ,
    # The bank.
    "get_iban": READ,
    "send_money": SEND,
    "schedule_transaction": SEND,
    "update_scheduled_transaction": SEND,
    "get_balance": READ,
    "get_most_recent_transactions": READ,
    "get_scheduled_transactions": READ,
    "get_user_info": READ,
    "update_password": WRITE,
    "update_user_info": WRITE,
    # The chat of a company, and the web.
    "get_channels": READ,
    "add_user_to_channel": WRITE,
    "read_channel_messages": READ,
    "read_inbox": READ,
    "send_direct_message": SEND,
    "send_channel_message": SEND,
    "get_users_in_channel": READ,
    "invite_user_to_slack": SEND,
    "remove_user_from_slack": ("delete", "network"),
    "get_webpage": FETCH,
    "post_webpage": SEND,
    # Travel.
    "get_user_information": READ,
    "get_all_hotels_in_city": READ,
    "get_hotels_prices": READ,
    "get_rating_reviews_for_hotels": READ,
    "get_hotels_address": READ,
    "get_all_restaurants_in_city": READ,
    "get_cuisine_type_for_restaurants": READ,
    "get_restaurants_address": READ,
    "get_rating_reviews_for_restaurants": READ,
    "get_dietary_restrictions_for_all_restaurants": READ,
    "get_contact_information_for_restaurants": READ,
    "get_price_for_restaurants": READ,
    "check_restaurant_opening_hours": READ,
    "get_all_car_rental_companies_in_city": READ,
    "get_car_types_available": READ,
    "get_rating_reviews_for_car_rental": READ,
    "get_car_fuel_options": READ,
    "get_car_rental_address": READ,
    "get_car_price_per_day": READ,
    "get_flight_information": READ,
    "reserve_hotel": SEND,
    "reserve_car_rental": SEND,
    "reserve_restaurant": SEND,
}

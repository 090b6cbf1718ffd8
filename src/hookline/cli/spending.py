"""``hookline spending``: what users, sessions and agents have spent, and what they have left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ..config.errors import ConfigError
from ..config.settings import DeclaredHook, Settings
from ..config.sources import Configuration
from .errors import print_note
from .help import Command
from .options import AsJson, with_settings
from .output import print_table, short_path, time_text, write_json
from .text import counted, printable

if TYPE_CHECKING:
    from ..stores.spending import SpendingAccount

EPILOG = """
The hook SpendingLimit counts what is spent, and stops runs at the limit. A reset forgets what was spent in the windows
that have not ended; calls that are being made then are not counted.

Examples:
  hookline spending
  hookline spending ann
  hookline spending ann --reset
  hookline spending --json
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    settings = with_settings("spending_file", "database", "debug")
    app.command("spending", cls=Command, epilog=EPILOG)(settings(spending))


def spending(
    config: Configuration,
    whose: Annotated[
        str | None, typer.Argument(metavar="WHOSE", help="Only this user, session or agent.", show_default=False)
    ] = None,
    account: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this limit, such as 'user 1d'.", show_default=False)
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Let WHOSE spend again.")] = False,
    json: AsJson = False,
) -> int:
    """Show what users, sessions and agents have spent of their limits, or let one spend again."""
    from ..stores.spending import SpendingStore

    if reset and whose is None:
        raise ConfigError("name the user, session or agent to reset: hookline spending ann --reset")
    found: list[SpendingAccount] = []
    places: list[str] = []
    for place in spending_places(config.settings):
        store = SpendingStore(place)
        places.append(store.path)  # without the password of a database
        try:
            if reset and whose is not None:
                done = store.reset(whose, account)
                if done and not json:
                    print_note(f"reset {counted(len(done), 'account')} of {printable(whose, keep='')}")
            found += [each for each in store.accounts(whose) if account in (None, each.account)]
        finally:
            store.close()
    if json:
        write_json([_as_json(each) for each in found])
    elif found:
        show_accounts(found)
    else:
        where = " or ".join(printable(short_path(place), keep="") for place in places)
        typer.echo(f"Nothing has been spent under a limit in this window in {where}.")
    return 0


def spending_places(settings: Settings) -> list[str]:
    """Return the files and databases of the limits that the settings declare, and the usual one."""
    own = [
        str(each.args["store"])
        for each in settings.hooks
        if isinstance(each, DeclaredHook) and each.use == "SpendingLimit" and "store" in each.args
    ]
    return list(dict.fromkeys([*own, settings.spending_file]))


def show_accounts(accounts: Sequence[SpendingAccount], title: str = "") -> None:
    """Print a table of accounts, those with the least left first."""
    names = ("limit", "whose", "spent", "reserved", "left", "until")
    rows = [
        (
            each.account,
            each.subject or "(nobody)",
            _amount(each, each.spent.usd, each.spent.tokens),
            _amount(each, each.reserved.usd, each.reserved.tokens),
            _amount(each, each.usd_left, each.tokens_left),
            time_text(each.until),
        )
        for each in accounts
    ]
    print_table(names, rows, title=title, right=("spent", "reserved", "left"))


def _amount(account: SpendingAccount, usd: float | None, tokens: int | None) -> str:
    """Return an amount in the units that the account limits."""
    parts = [f"${usd:,.4f}"] if usd is not None and account.usd_limit is not None else []
    parts += [f"{tokens:,} tokens"] if tokens is not None and account.token_limit is not None else []
    return ", ".join(parts)


def _as_json(account: SpendingAccount) -> object:
    return {**msgspec.to_builtins(account), "usd_left": account.usd_left, "tokens_left": account.tokens_left}

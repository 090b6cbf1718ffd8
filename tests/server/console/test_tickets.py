"""The page of the ticket board."""

from hookline.stores.tickets import TicketBoard

from .rig import console

PATH = "/console/tickets"


async def test_the_board_shows_tickets_by_column_with_their_history(tmp_path):
    board = TicketBoard(tmp_path / "tickets.db")
    ticket = board.create("Write <b>it</b>", by="ada", criteria=["It has a summary."])
    board.create("Read it", by="ada")
    board.start(ticket.id, by="bob", run_id="run_1")
    async with (
        console(tmp_path, tickets=tmp_path / "tickets.db") as made,
        made.logged_in("read", "admin") as browser,
    ):
        page = (await browser.get(PATH)).text
        todo, running = page.index('id="tickets-todo"'), page.index('id="tickets-running"')
        assert todo < page.index("Read it") < running < page.index("Write &lt;b&gt;it&lt;/b&gt;")
        assert "It has a summary." in page
        assert "/console/runs/run_1" in page
        assert PATH in (await browser.get("/console/chat")).text


async def test_a_board_that_was_never_used_is_empty_and_not_created(tmp_path):
    file = tmp_path / "tickets.db"
    async with console(tmp_path, tickets=file) as made, made.logged_in("read", "admin") as browser:
        assert "No tickets." in (await browser.get(PATH)).text
        assert not file.exists()


async def test_the_board_needs_the_right_admin_because_tickets_belong_to_no_caller(tmp_path):
    async with console(tmp_path, tickets=tmp_path / "t.db") as made, made.logged_in("read", "run") as browser:
        assert (await browser.get(PATH)).status_code == 403
        assert PATH not in (await browser.get("/console/chat")).text


async def test_without_a_board_there_is_no_page(tmp_path):
    async with console(tmp_path) as made, made.logged_in("read", "admin") as browser:
        assert (await browser.get(PATH)).status_code == 404

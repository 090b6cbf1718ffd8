"""Correct arguments before they are validated.

Models write "tomorrow" where a tool needs a date. A hook in the rewrite phase gets the arguments first, as the model
sent them; then they are validated, and the guards judge the result. So a correction can be generous: it cannot bypass
a guard.
"""

from datetime import date, datetime, timedelta

from hookline import BEFORE_TOOL, Agent, AgentContext, HookResult, ScriptedModel, ToolCallRequest
from hookline import call, guard, hook, tool
from hookline.testing import FakeClock

DAYS = {"today": 0, "tomorrow": 1, "the day after tomorrow": 2}


@hook(BEFORE_TOOL, tools="book_*", priority=40)
def correct_dates(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    days = DAYS.get(str(request.arguments.get("day")).lower())
    if days is None:
        return None
    day = datetime.fromtimestamp(ctx.clock.time()).date() + timedelta(days)
    return HookResult.replace({"arguments": {**request.arguments, "day": day.isoformat()}}, reason="a date in words")


@guard(BEFORE_TOOL, tools="book_*")
def closed_on_sundays(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    sunday = date.fromisoformat(request.arguments["day"]).weekday() == 6
    return HookResult.block(f"{request.arguments['day']} is a Sunday.") if sunday else None


@tool
def book_table(day: date) -> str:
    """Book a table."""
    return f"booked for {day:%d %B}"


if __name__ == "__main__":
    friday = FakeClock(datetime(2026, 11, 13, 12))
    days = ("Tomorrow", "the day after tomorrow", "2026-11-20")
    llm = ScriptedModel([[call("book_table", day=day) for day in days], "Two tables."])
    agent = Agent("host", llm=llm, tools=[book_table], hooks=[correct_dates, closed_on_sundays])
    result = agent.run("Book a table.", ctx=AgentContext(clock=friday))
    print(*(message.content for message in result.messages[2:5]), sep="\n")

# prints:
# booked for 14 November
# 2026-11-15 is a Sunday.
# booked for 20 November

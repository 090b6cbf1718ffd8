"""All sections, in the order of the page."""

from section import Section

from . import (
    adapters,
    agentdojo_,
    audit,
    backtest,
    builtins,
    claude_hook,
    concurrent,
    console,
    dispatch,
    durable,
    explain,
    gateway,
    growth,
    local,
    loops,
    parquet,
    promises,
    recording,
    replay,
    sandbox,
    scanning,
    server,
    small_models,
    start,
    telemetry,
    watched,
)

SECTIONS: dict[str, Section] = {
    module.SECTION.name: module.SECTION
    for module in (
        dispatch,
        loops,
        promises,
        concurrent,
        start,
        watched,
        growth,
        builtins,
        scanning,
        audit,
        recording,
        backtest,
        replay,
        parquet,
        sandbox,
        adapters,
        claude_hook,
        telemetry,
        explain,
        gateway,
        server,
        console,
        durable,
        local,
        small_models,
        agentdojo_,
    )
}

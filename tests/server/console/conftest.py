import pytest_asyncio


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    """One browser for all tests of a module, because starting it is slow."""
    from .browser import chromium

    async with chromium() as made:
        yield made

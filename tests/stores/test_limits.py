"""Rate limits in a PostgreSQL database, which replicas share."""

import threading

import pytest

from hookline.stores.limits import BucketStore


@pytest.fixture
def stores(postgres_url):
    """The buckets as two replicas use them: a burst of 10, and almost no refill."""
    made = [BucketStore(postgres_url, 0.001, 10) for _ in range(2)]
    yield made
    for each in made:
        each.close()


def test_replicas_share_the_bucket_of_a_caller(stores):
    one, two = stores
    assert [(one, two)[n % 2].take("ann") for n in range(10)] == [0.0] * 10
    assert 900 < one.take("ann") <= 1000
    assert 900 < two.take("ann") <= 1000
    assert two.take("bob") == 0.0


def test_no_token_is_given_twice_at_once(stores):
    waits = []

    def take(store):
        waits.extend(store.take("ann") for _ in range(10))

    threads = [threading.Thread(target=take, args=(stores[n % 2],)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(waits), waits.count(0.0)) == (60, 10)


def test_the_bucket_is_refilled_by_the_clock_of_the_database(stores, postgres_url):
    fast = BucketStore(postgres_url, 1e6, 10)
    for _ in range(10):
        stores[0].take("ann")
    assert stores[0].take("ann")
    assert fast.take("ann") == 0.0
    fast.close()


def test_a_request_that_read_the_clock_before_another_one_takes_one_token(postgres_url):
    store = BucketStore(postgres_url, 1e6, 10)
    store.take("ann")
    with store._db.transaction(write=True) as db:
        db.execute("UPDATE buckets SET at = at + 100")  # by the request for which this one waited
    assert [store.take("ann") for _ in range(9)] == [0.0] * 9
    assert store.take("ann") > 0
    store.close()

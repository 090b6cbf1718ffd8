"""Put the stores of a test on PostgreSQL: each file of the test becomes schemas of their own in the database.

``pytest --database postgresql`` uses it for the tests, and for the Python programs that they start.
"""

import hashlib
import importlib.abc
import importlib.machinery
import os
import sys

VARIABLE = "TEST_RUN_POSTGRES"
MODULE = "hookline.stores.database"


def install() -> None:
    """Use PostgreSQL instead of SQLite files as soon as stores are imported."""
    if MODULE in sys.modules:
        _patch(sys.modules[MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            _patch(module)

        spec.loader.exec_module = exec_module
        return spec


def _patch(module) -> None:
    real = module.SqliteDatabase

    def database(path, schema, **options):
        made = real(path, schema, **options)  # checks the path, and protects the file
        if made.in_memory:
            return made
        from hookline.stores.postgres import PostgresDatabase

        place = os.path.realpath(made.path)
        prefix = f"t{hashlib.sha256(place.encode()).hexdigest()[:24]}"
        stored = PostgresDatabase(f"{os.environ[VARIABLE]}&schema={prefix}", schema)
        stored.path = made.path
        stored.file = made
        return stored

    module.SqliteDatabase = database


if os.environ.get(VARIABLE):
    install()

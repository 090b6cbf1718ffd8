"""Paths that stores are given, their default, and advice for paths that cannot be used."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

from .._base.files import project_name, user_folder

if TYPE_CHECKING:
    from pathlib import Path


def default_runs_path(project: str | os.PathLike[str]) -> Path:
    """Return path of the run store of a project: a file in the user's data folder, named after the project's folder.

    Projects do not share it: a digest of the folder's full path is part of the name.

    Args:
        project: folder of the project.

    Example::

        default_runs_path("/srv/shop")  # ~/.local/share/hookline/runs-shop-7d4c1a90b2.db
    """
    return user_folder("data") / f"runs-{project_name(project)}.db"


def default_approvals_path(project: str | os.PathLike[str]) -> Path:
    """Return path of the approvals of a project, beside its run store (:func:`default_runs_path`).

    Projects do not share it: a permanent permission for an agent must not apply to an agent of the same name in another
    project.

    Args:
        project: folder of the project.

    Example::

        default_approvals_path("/srv/shop")  # ~/.local/share/hookline/approvals-shop-7d4c1a90b2.db
    """
    return user_folder("data") / f"approvals-{project_name(project)}.db"


def default_spending_path(project: str | os.PathLike[str]) -> Path:
    """Return path of what was spent in a project, beside its run store (:func:`default_runs_path`).

    Args:
        project: folder of the project.

    Example::

        default_spending_path("/srv/shop")  # ~/.local/share/hookline/spending-shop-7d4c1a90b2.db
    """
    return user_folder("data") / f"spending-{project_name(project)}.db"


def default_calls_path(project: str | os.PathLike[str]) -> Path:
    """Return path of the calls of callers in a project, beside its run store (:func:`default_runs_path`).

    Args:
        project: folder of the project.

    Example::

        default_calls_path("/srv/shop")  # ~/.local/share/hookline/calls-shop-7d4c1a90b2.db
    """
    return user_folder("data") / f"calls-{project_name(project)}.db"


def default_audit_path(project: str | os.PathLike[str]) -> Path:
    """Return path of the audit log of a project, beside its run store (:func:`default_runs_path`).

    Args:
        project: folder of the project.

    Example::

        default_audit_path("/srv/shop")  # ~/.local/share/hookline/audit-shop-7d4c1a90b2.jsonl
    """
    return user_folder("data") / f"audit-{project_name(project)}.jsonl"


def is_default_audit_path(path: str | os.PathLike[str]) -> bool:
    """Whether this is the path of a project's audit log, and not a file that the user has chosen."""
    folder, name = os.path.split(os.path.abspath(path))
    known = re.fullmatch(r"audit-[a-z0-9-]+-[0-9a-f]{10}\.jsonl", name)
    return known is not None and folder == os.path.abspath(user_folder("data"))


SQLITE = (".db", ".sqlite", ".sqlite3")
"""File name extensions of SQLite files."""


def is_database_url(path: object) -> bool:
    """Whether a store was given the address of a PostgreSQL database, and not the path of a file."""
    return isinstance(path, str) and path.startswith(("postgresql://", "postgres://"))


def without_password(url: str) -> str:
    """Return the address of a database without its password, for messages.

    Example::

        without_password("postgresql://ada:secret@db.example/shop")  # postgresql://ada@db.example/shop
    """
    scheme, _, rest = url.partition("://")
    if re.search(r"\?.*pass", rest, re.IGNORECASE):
        rest = rest.partition("?")[0]
    access, at, place = rest.rpartition("@")
    if not at and not re.fullmatch(r"(\[.*\]|[^:]*)(:\d*)?(/.*)?", place):
        place = place.partition(":")[0]  # probably a password with characters that must be escaped
    return f"{scheme}://{access.partition(':')[0]}{at}{place}"


def checked_path(path: str | os.PathLike[str], takes: str) -> str:
    """Return a path as text; ``takes`` begins the error message.

    Raises:
        TypeError: ``path`` is not a path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{takes}, as text or a Path, not {type(path).__name__}")
    return os.fspath(path)


def folder_advice(
    folder: str | os.PathLike[str], error: OSError, access: str = "write to", instead: str = "give a folder"
) -> str:
    """Return advice for a folder that cannot be used, to end an error message with.

    Args:
        folder: the folder.
        error: the problem.
        access: the missing permission, ``read`` or ``write to``.
        instead: the advice if ``folder`` is a file.
    """
    if os.path.isfile(folder):
        return f": that is a file: {instead}"
    denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    return f": give a folder that you can {access}" if denied else ""

"""Who may have written an entry. A code object is code, so only trusted bytes are loaded.

A location is trusted when its file, its directory and every directory above belong to this user
or to root, and nobody else can write them. Above the cache itself a sticky directory such as
/tmp is accepted, since others cannot replace what is ours there. Anything else is loaded only
with a valid signature (see ``format``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

MAX_LINKS = 40


def untrusted_reason(directory: str) -> str | None:
    """Why ``directory`` (absolute) may hold other people's files, or None when it cannot."""
    leaf = None
    try:
        for path, status in _components(directory):
            leaf = path, status
            reason = _foreign(path, status, sticky_is_safe=True)
            if reason:
                return reason
    except OSError as error:
        return f"{directory}: {error.strerror}"
    assert leaf is not None
    return _foreign(*leaf, sticky_is_safe=False)


def foreign_file(path: str, status: os.stat_result) -> str | None:
    """The same question for an open file, from its own status."""
    return _foreign(path, status, sticky_is_safe=False)


def _foreign(path: str, status: os.stat_result, *, sticky_is_safe: bool) -> str | None:
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to user {status.st_uid}"
    mode = status.st_mode
    if stat.S_ISLNK(mode) or (sticky_is_safe and mode & stat.S_ISVTX):
        return None
    if mode & stat.S_IWOTH:
        return f"{path} can be written by every user (mode {stat.S_IMODE(mode):04o})"
    if mode & stat.S_IWGRP and not _group_is_only_us(status.st_gid):
        return f"{path} can be written by group {status.st_gid} (mode {stat.S_IMODE(mode):04o})"
    return None


def _group_is_only_us(gid: int) -> bool:
    """Whether only this user or root is in the group: root's own, or the private group that many
    systems make for each user together with umask 002."""
    import grp
    import pwd

    try:
        group = grp.getgrgid(gid)
        owners = [pwd.getpwuid(uid) for uid in {os.geteuid(), 0}]
    except KeyError:
        return False
    names = {owner.pw_name for owner in owners}
    is_private = any(gid == owner.pw_gid and group.gr_name == owner.pw_name for owner in owners)
    return is_private and names.issuperset(group.gr_mem)


def _components(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every directory and link that resolving ``path`` passes, the resolved end last."""
    pending = [part for part in path.split("/") if part][::-1]
    current, links = "/", 0
    yield current, os.lstat(current)
    while pending:
        part = pending.pop()
        if part == ".":
            continue
        if part == "..":
            current = os.path.dirname(current)
            continue
        step = os.path.join(current, part)
        status = os.lstat(step)
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            current = step
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(40, "too many symbolic links", path)
        target = os.readlink(step)
        if target.startswith("/"):
            current = "/"
        pending.extend([part for part in target.split("/") if part][::-1])
    yield current, os.lstat(current)


def read_signing_key(path: str) -> bytes:
    """The bytes of the signing key file.

    Raises OSError when it cannot be read and ValueError when it is too short or not private.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        reason = foreign_file(path, status)
        if reason is None and status.st_mode & stat.S_IROTH:
            reason = f"{path} can be read by every user"
        if reason is None and not stat.S_ISREG(status.st_mode):
            reason = f"{path} is not a regular file"
        if reason:
            raise ValueError(f"{reason}; a signing key must be private (chmod 600)")
        key = file.read(1 << 16).strip()
    if len(key) < 16:
        raise ValueError(f"{path} holds {len(key)} bytes; a signing key needs at least 16")
    return key

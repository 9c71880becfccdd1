"""A directory -> every configuration it goes through.

The DIRECTORY is watched, and any event counts: a ConfigMap is replaced by renaming its `..data` link, so
no event ever names `tidegate.yaml`. What makes no event here (files elsewhere, network file systems) is
found by looking at the files' states again every `restat_s`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

from watchfiles import awatch

from controlplane.config.load import MAIN_FILE, TENANT_DIRECTORY, Loaded, load

_TICK_S = 1.0  # how soon a directory that appears, or takes another's place, is noticed

Fingerprint = frozenset[tuple[str, int, int, int]]


async def watch(
    directory: Path,
    previous: Loaded | None = None,
    *,
    stop: asyncio.Event | None = None,
    debounce_s: float = 0.1,
    restat_s: float = 30.0,
) -> AsyncIterator[Loaded]:
    """Yield what is in force: at once, unless `previous` still holds, then after every change that matters.

    Ends when `stop` is set. Files are read in a thread.
    """
    stop = stop or asyncio.Event()
    changed = asyncio.Event()
    listener = asyncio.create_task(_listen(directory, changed, debounce_s))
    await asyncio.sleep(0)  # it listens before the first look: what happens meanwhile is not missed
    try:
        current = previous
        seen: Fingerprint | None = None
        while not stop.is_set():
            is_event = changed.is_set()
            changed.clear()
            states = await asyncio.to_thread(fingerprint, directory, current)
            if is_event or states != seen:
                loaded = await asyncio.to_thread(load, directory, current)
                matters = current is None or differs(loaded, current)
                current = loaded
                after = await asyncio.to_thread(fingerprint, directory, current)
                seen = after if states <= after else None  # it changed while it was read: look again
                if matters:
                    yield loaded
            await _either(changed, stop, restat_s)
    finally:
        listener.cancel()
        await asyncio.wait([listener])


def differs(loaded: Loaded, current: Loaded) -> bool:
    """True when a change of files means something."""
    return loaded.policy != current.policy or loaded.problems != current.problems


async def _listen(directory: Path, changed: asyncio.Event, debounce_s: float) -> None:
    """Set `changed` for every event in the directory, wherever it goes."""
    while True:
        inode = _inode(directory)
        while inode is None:
            await asyncio.sleep(_TICK_S)
            inode = _inode(directory)
        events = awatch(
            directory,
            watch_filter=None,
            debounce=max(1, int(debounce_s * 1000)),
            step=max(1, int(debounce_s * 500)),
            rust_timeout=int(_TICK_S * 1000),
            yield_on_timeout=True,
        )
        is_first = True  # the directory may have changed before the watch began
        with suppress(FileNotFoundError):
            async for changes in events:
                if changes or is_first:
                    changed.set()
                is_first = False
                if _inode(directory) != inode:
                    break
        changed.set()


async def _either(changed: asyncio.Event, stop: asyncio.Event, timeout_s: float) -> None:
    """Return when one of the two is set, or after `timeout_s`."""
    waits = [asyncio.create_task(event.wait()) for event in (changed, stop)]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def fingerprint(directory: Path, current: Loaded | None) -> Fingerprint:
    """The state of every file that matters: name, time of change (ns), size, inode."""
    names = [str(directory / name) for name in ("", MAIN_FILE, TENANT_DIRECTORY)]
    names += [entry.path for entry in _listed(directory / TENANT_DIRECTORY)]
    names += [str(path) for path in (current.beside if current else ())]
    states = []
    for name in names:
        with suppress(OSError):
            stat = os.stat(name)
            states.append((name, stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return frozenset(states)


def _listed(directory: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(directory) as entries:
        yield from entries


def _inode(directory: Path) -> int | None:
    try:
        return directory.stat().st_ino
    except OSError:
        return None

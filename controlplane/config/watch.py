"""A directory -> every configuration it goes through.

The DIRECTORY is watched, and any event counts: a ConfigMap is replaced by renaming its `..data` link, so
no event ever names `tidegate.yaml`. What makes no event here (files elsewhere, network file systems) is
found by looking at the files' states again every `restat_s`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, suppress
from pathlib import Path

from watchfiles import awatch

from controlplane.config.load import TENANT_DIRECTORY, Loaded, load

_TICK_S = 1.0  # how often a directory that was replaced or removed is noticed

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
    current = previous
    async with aclosing(_occasions(directory, stop, debounce_s)) as occasions:
        seen: Fingerprint = frozenset()
        looked = restat_s
        async for changed in occasions:
            looked += 0.0 if changed else _TICK_S
            if not changed and looked < restat_s:
                continue
            looked = 0.0
            states = await asyncio.to_thread(fingerprint, directory, current)
            if not changed and current is not None and states == seen:
                continue
            loaded = await asyncio.to_thread(load, directory, current)
            matters = current is None or differs(loaded, current)
            current = loaded
            seen = await asyncio.to_thread(fingerprint, directory, current)
            seen = seen if seen == states else frozenset()  # it changed while it was read: look again
            if matters:
                yield loaded


def differs(loaded: Loaded, current: Loaded) -> bool:
    """True when a change of files means something."""
    return loaded.policy != current.policy or loaded.problems != current.problems


async def _occasions(directory: Path, stop: asyncio.Event, debounce_s: float) -> AsyncGenerator[bool, None]:
    """True for an event in the directory (and at the start), False each time `_TICK_S` went by without."""
    yield True
    while not stop.is_set():
        inode = _inode(directory)
        if inode is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _TICK_S)
            yield False
            continue
        events = awatch(
            directory,
            watch_filter=None,
            debounce=max(1, int(debounce_s * 1000)),
            step=max(1, int(debounce_s * 500)),
            rust_timeout=int(_TICK_S * 1000),
            yield_on_timeout=True,
            stop_event=stop,
        )
        is_first = True  # whatever happened before the watch began
        with suppress(FileNotFoundError):
            async with aclosing(events):
                async for changes in events:
                    yield bool(changes) or is_first
                    is_first = False
                    if _inode(directory) != inode:
                        break


def fingerprint(directory: Path, current: Loaded | None) -> Fingerprint:
    """The state of every file that matters: name, time of change (ns), size, inode."""
    names = [str(directory / name) for name in ("", "tidegate.yaml", TENANT_DIRECTORY)]
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

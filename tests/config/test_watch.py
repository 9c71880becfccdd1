"""[reload] Every way in which files change is seen; a mount that can never change is reported."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controlplane.config import Loaded, load, watch
from controlplane.config.mounts import mount_points

from .written import MAIN, Directory, find, tenant

DEADLINE_S = 10.0


class Watched:
    """A running watch; `next()` is the next configuration, within a deadline."""

    def __init__(self, directory: Path, restat_s: float = 30.0) -> None:
        self.stop = asyncio.Event()
        self._changes: AsyncIterator[Loaded] = watch(
            directory, stop=self.stop, debounce_s=0.02, restat_s=restat_s
        )

    async def next(self) -> Loaded:
        return await asyncio.wait_for(anext(self._changes), DEADLINE_S)

    async def until_weight(self, weight: float) -> None:
        """A write may be seen in halves: wait for the whole."""
        while (await self.next_weight()) != weight:
            pass

    async def next_weight(self) -> float | None:
        loaded = await self.next()
        found = (
            [one.share.weight for one in loaded.policy.tenants if one.id == "acme"] if loaded.policy else []
        )
        return found[0] if found else None

    async def end(self) -> None:
        self.stop.set()
        async for _ in self._changes:
            pass


async def test_a_file_written_in_place_is_seen(directory: Directory) -> None:
    watched = Watched(directory.path)
    assert await watched.next_weight() == 1
    directory.tenant("acme", tenant("acme", "weight: 2"))
    await watched.until_weight(2)
    directory.change_main("{min: 1, max: 1}", "{min: 1, max: 2}")
    while (loaded := await watched.next()).policy is None or loaded.policy.gateways.max_count != 2:
        pass
    await watched.end()


async def test_a_file_renamed_into_place_is_seen(directory: Directory) -> None:
    watched = Watched(directory.path)
    await watched.next()
    fresh = directory.path / ".acme.tmp"
    fresh.write_text(tenant("acme", "weight: 3"))
    os.replace(fresh, directory.path / "tenants" / "acme.yaml")
    await watched.until_weight(3)
    await watched.end()


def config_map(volume: Path, generation: str, weight: int) -> None:
    """What kubelet does: files in a fresh directory, then the `..data` link is swapped."""
    data = volume / generation
    (data / "tenants").mkdir(parents=True)
    (data / "tidegate.yaml").write_text(MAIN)
    (data / "tenants" / "acme.yaml").write_text(tenant("acme", f"weight: {weight}"))
    (data / "tenants" / "guest.yaml").write_text("id: guest\n")
    os.symlink(generation, volume / "..data_tmp")
    os.replace(volume / "..data_tmp", volume / "..data")


async def test_a_config_map_swapped_by_kubelet_is_seen(tmp_path: Path) -> None:
    config_map(tmp_path, "..2024_one", 1)
    for name in ("tidegate.yaml", "tenants"):
        os.symlink(f"..data/{name}", tmp_path / name)
    watched = Watched(tmp_path)
    assert await watched.next_weight() == 1
    config_map(tmp_path, "..2024_two", 4)
    shutil.rmtree(tmp_path / "..2024_one")
    await watched.until_weight(4)
    await watched.end()


async def test_a_directory_that_is_replaced_is_seen(tmp_path: Path) -> None:
    home = tmp_path / "config"
    home.mkdir()
    Directory(home)
    watched = Watched(home)
    await watched.next()
    os.rename(home, tmp_path / "old")
    home.mkdir()
    Directory(home).tenant("acme", tenant("acme", "weight: 5"))
    await watched.until_weight(5)
    await watched.end()


async def test_a_key_elsewhere_is_looked_at_now_and_then(
    directory: Directory, tmp_path_factory: pytest.TempPathFactory
) -> None:
    key = tmp_path_factory.mktemp("secrets") / "key"
    key.write_text("one")
    directory.tenant("acme", f"id: acme\nidentity: {{api_keys: [{{file: {key}}}]}}\n")
    watched = Watched(directory.path, restat_s=1.0)
    first = await watched.next()
    key.write_text("two")
    second = await watched.next()
    assert first.policy != second.policy
    await watched.end()


async def test_a_broken_file_is_told_and_keeps_the_last_good_one(directory: Directory) -> None:
    watched = Watched(directory.path)
    good = await watched.next()
    directory.main("models: [\n")
    broken = await watched.next()
    assert broken.policy == good.policy
    assert find(broken, file="tidegate.yaml", severity="error").line >= 1
    await watched.end()


async def test_a_change_that_means_nothing_is_not_told(directory: Directory) -> None:
    watched = Watched(directory.path)
    await watched.next()
    (directory.path / "notes.txt").write_text("hello")
    directory.change_main("default_tenant: guest\n", "default_tenant:   guest\n")
    directory.tenant("acme", tenant("acme", "weight: 6"))
    assert await watched.next_weight() == 6
    await watched.end()


async def test_a_directory_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    home = tmp_path / "config"
    watched = Watched(home, restat_s=1.0)
    assert (await watched.next()).policy is None
    home.mkdir()
    Directory(home)
    while (await watched.next()).policy is None:
        pass
    await watched.end()


def test_a_file_mounted_alone_is_reported(directory: Directory) -> None:
    mounts = frozenset(
        {str(directory.path / "tidegate.yaml"), str(directory.path / "tenants/acme.yaml"), "/"}
    )
    loaded = load(directory.path, mounts=mounts)
    for file in ("tidegate.yaml", "tenants/acme.yaml"):
        assert find(loaded, file=file, message="subPath").severity == "warning"
    assert len(loaded.problems) == 2


def test_a_directory_mounted_as_a_whole_is_fine(directory: Directory) -> None:
    mounts = frozenset({str(directory.path), str(directory.path / "tenants")})
    assert load(directory.path, mounts=mounts).problems == ()


def test_mount_points_are_read_with_their_escapes(tmp_path: Path) -> None:
    file = tmp_path / "mountinfo"
    file.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "30 22 8:1 /x /etc/tide\\040gate/tidegate.yaml rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
        "broken\n"
    )
    assert mount_points(file) == {"/", "/etc/tide gate/tidegate.yaml"}
    assert mount_points(tmp_path / "absent") == frozenset()

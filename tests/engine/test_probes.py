"""The probes of a runner answer from a thread of their own, and name the fact."""

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.db.migrations.apply import upgrade
from runner.engine.hosting.probes import serve_probes
from runner.engine.lease import watchdog
from runner.errors import InvalidSettings
from runner.text.sanitize import one_line
from tests.engine.harness import WAIT_SECONDS, Harness, at_work, until, wait_for_event
from tests.engine.test_outages import Outage, locked_file, outage, server, url
from tests.engine.test_probe_server import get
from tests.releases import install_next

__all__ = ["locked_file", "outage", "server", "url"]

ANY_PORT = "127.0.0.1:0"
OK = (200, "ok\n")


async def probe(url: str, path: str) -> tuple[int, str]:
    return await asyncio.to_thread(get, url, path)


async def until_probe(url: str, path: str, status: int, text: str) -> None:
    async def matches() -> bool:
        reply = await probe(url, path)
        return reply[0] == status and text in reply[1]

    await until(matches)


async def test_probes_answer_while_a_handler_blocks_the_event_loop(harness: Harness) -> None:
    replies = dict[str, tuple[int, str]]()

    @harness.handler("blocks")
    async def blocks() -> None:
        for path in ("/livez", "/readyz"):
            replies[path] = get(probes.url, path)  # the event loop waits for the reply

    runner = harness.runner(listen=ANY_PORT)
    with serve_probes(runner) as probes:
        async with at_work(runner):
            await harness.wait_for(await harness.submit("blocks"))
    assert replies == {"/livez": OK, "/readyz": OK}


async def test_a_runner_that_is_blocked_for_too_long_is_not_live_and_the_probe_names_the_task(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LONGEST_BLOCK", 0.0)
    monkeypatch.setattr(watchdog, "EVERY", 0.1)
    texts = list[str]()

    @harness.handler("blocks")
    async def blocks() -> None:
        while get(probes.url, "/livez")[0] == 200:
            pass
        texts.append(get(probes.url, "/livez")[1])

    runner = harness.runner(listen=ANY_PORT)
    with serve_probes(runner) as probes:
        async with at_work(runner):
            task = await harness.submit("blocks")
            await harness.wait_for(task)
            assert f"s by task {task} (blocks) at {__file__}:" in texts[0]
            assert texts[0].startswith("event loop blocked for ")
            await until_probe(probes.url, "/livez", *OK)


@pytest.mark.slow
async def test_a_runner_without_its_database_is_live_and_not_ready(outage: Outage) -> None:
    harness = outage.harness

    @harness.handler("work")
    async def work() -> None: ...

    runner = harness.runner(listen=ANY_PORT, lease_timeout="1s")
    with serve_probes(runner) as probes:
        async with at_work(runner):
            await until_probe(probes.url, "/readyz", *OK)
            await outage.begin()
            await until_probe(probes.url, "/readyz", 503, "lease lost: last renewal ")
            await until(lambda: runner.lease.renewal_age > 3.0)
            assert await probe(probes.url, "/livez") == OK
            await outage.end()
            await until_probe(probes.url, "/readyz", *OK)


async def test_a_runner_that_renews_no_lease_is_not_live_if_the_database_answers(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = harness.runner(listen=ANY_PORT, lease_timeout="500ms")
    with serve_probes(runner) as probes:
        async with at_work(runner):
            await until_probe(probes.url, "/readyz", *OK)
            own, go_on = runner.lease.renew, asyncio.Event()

            async def renew(*args: object) -> None:
                await go_on.wait()
                await own(*args)  # type: ignore[arg-type]

            monkeypatch.setattr(runner.lease, "renew", renew)
            await until_probe(probes.url, "/livez", 503, "although the database answers")
            go_on.set()
            await until_probe(probes.url, "/livez", *OK)


async def test_a_runner_is_not_ready_before_its_start_and_while_it_drains(harness: Harness) -> None:
    begun, go_on = harness.held_handler("work")
    await harness.submit("work")
    runner = harness.runner(listen=ANY_PORT)
    with serve_probes(runner) as probes:
        assert await probe(probes.url, "/readyz") == (503, "starting: not registered yet\n")
        assert await probe(probes.url, "/livez") == OK
        async with at_work(runner):
            await wait_for_event(begun)
            runner.stop()
            assert await probe(probes.url, "/readyz") == (503, "draining\n")
            assert await probe(probes.url, "/livez") == OK
            go_on.set()


async def test_a_runner_that_waits_for_its_database_at_the_start_names_the_reason(outage: Outage) -> None:
    await outage.begin()
    runner = outage.harness.runner(listen=ANY_PORT)
    with serve_probes(runner) as probes:
        async with at_work(runner):
            await until(lambda: bool(runner.start_problem))
            assert await probe(probes.url, "/readyz") == (503, f"starting: {one_line(runner.start_problem)}\n")
            assert await probe(probes.url, "/livez") == OK


async def test_a_runner_is_not_ready_if_the_tables_do_not_fit_any_more(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runner = harness.runner(listen=ANY_PORT)
    with serve_probes(runner) as probes:
        async with at_work(runner):
            await until_probe(probes.url, "/readyz", *OK)
            with monkeypatch.context() as other:
                install_next(tmp_path, other)
                await upgrade(harness.database)
            await runner.schema_watch.check_schema()
            status, text = await probe(probes.url, "/readyz")
            assert (status, "which this program" in text, text.count("\n")) == (503, True, 1)


async def test_a_port_in_use_is_named_with_its_errno(harness: Harness) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        refused = pytest.raises(InvalidSettings, match=rf"listen\): {address}: Address already in use \(errno \d+\)")
        with refused, serve_probes(harness.runner(listen=address)):
            pass


async def test_a_health_file_that_cannot_be_created_is_named(harness: Harness, tmp_path: Path) -> None:
    runner = harness.runner(health_file=tmp_path / "none" / "live")
    refused = pytest.raises(InvalidSettings, match=r"none/live: No such file or directory \(errno 2\)")
    with refused, serve_probes(runner):
        pass


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of systemd, for a service with a watchdog of 0.2 seconds."""
    name = f"tasktui-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(f"\0{name}")
        notified.settimeout(WAIT_SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        yield notified


async def test_systemd_receives_the_stop_of_a_runner_that_ends_between_two_signs(
    harness: Harness, systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC")
    monkeypatch.setattr("runner.engine.hosting.service_manager.INTERVAL", 3 * WAIT_SECONDS)
    runner = harness.runner()
    with serve_probes(runner):
        async with at_work(runner):
            pass
    systemd.setblocking(False)
    assert systemd.recv(100) == b"STOPPING=1"


async def test_systemd_receives_each_state_once_and_the_watchdog_while_the_runner_is_live(
    harness: Harness, systemd: socket.socket
) -> None:
    begun, go_on = harness.held_handler("work")

    async def receive(*states: str) -> list[str]:
        """The states until all of these have come."""
        received = list[str]()
        while not set(states) <= set(received):
            received.append((await asyncio.to_thread(systemd.recv, 100)).decode())
        return received

    await harness.submit("work")
    runner = harness.runner()
    with serve_probes(runner):
        assert set(await receive("WATCHDOG=1")) == {"WATCHDOG=1"}
        async with at_work(runner):
            await wait_for_event(begun)
            states = await receive("READY=1") + await receive("WATCHDOG=1")
            runner.stop()
            states += await receive("STOPPING=1") + await receive("WATCHDOG=1")
            go_on.set()
    assert [state for state in states if state != "WATCHDOG=1"] == ["READY=1", "STOPPING=1"]


async def test_the_health_file_is_touched_while_the_runner_is_live_and_removed_at_its_end(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.engine.hosting.service_manager.INTERVAL", 0.02)
    file, reports = tmp_path / "live", list[float]()
    monkeypatch.setattr(watchdog, "LONGEST_BLOCK", 0.0)
    monkeypatch.setattr(watchdog, "EVERY", 0.1)

    @harness.handler("blocks")
    async def blocks() -> None:
        while get(probes.url, "/livez")[0] == 200:
            pass
        os.utime(file, (0, 0))
        for _ in range(3):
            reports.append(get(probes.url, "/livez")[0])
        reports.append(file.stat().st_mtime)

    runner = harness.runner(listen=ANY_PORT, health_file=file)
    with serve_probes(runner) as probes:
        async with at_work(runner):
            os.utime(file, (0, 0))
            await until(lambda: file.stat().st_mtime > 0)
            await harness.wait_for(await harness.submit("blocks"))
            await until(lambda: file.stat().st_mtime > 0)
    assert reports == [503, 503, 503, 0.0]
    assert not file.exists()

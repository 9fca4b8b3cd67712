"""Notices reach their receivers: e-mail over SMTP, signed webhooks, and services of Apprise."""

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from email.message import EmailMessage
from typing import Any

import pytest

from runner.alerts import deliver as delivery
from runner.alerts import sending, webhook
from runner.alerts.deliver import deliver, send
from runner.alerts.evaluation import ping
from runner.alerts.mail import MailRefused
from runner.alerts.notice import AlertNotice
from runner.alerts.receivers import Receivers
from runner.alerts.sending import MAX_CALLS, NAME, TooManyCalls, in_own_thread
from runner.alerts.webhook import WebhookFailed
from runner.errors import InvalidSettings
from runner.model.alert import DELIVER, DELIVERIES, QUEUE
from runner.model.outcome import Dead, Retry
from runner.model.task import State
from runner.settings import Settings
from runner.settings.receivers import parse_receiver
from runner.urls import parse_url
from tests.alerts.servers import Answers, Mailbox, mail_server, web_server
from tests.engine.harness import Harness, until
from tests.pages import DOCS, blocks
from tests.ports import free_port

NOTICE = AlertNotice(
    state="firing",
    rule="queue-late",
    subject="mail",
    severity="critical",
    title="mail falls behind",
    text="10 in, 2 out per min",
    advice="runner why queue:mail",
    since="2026-11-27T10:00:00Z",
    resolved_at=None,
    database="shop",
)
RESOLVED = replace(NOTICE, state="resolved", resolved_at="2026-11-27T10:30:00Z")
ADDRESSES = "from=tasks@example.com&to=ops%2Bnight@example.com&to=boss@example.com"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssl.SSLContext]:
    """A certificate of 127.0.0.1 that Python trusts."""
    import trustme

    authority, file = trustme.CA(), tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield context


def mail(port: int, scheme: str = "smtp", login: str = "", options: str = "") -> str:
    return f"ops={scheme}://{login}127.0.0.1:{port}?{ADDRESSES}{options}"


def documented_check() -> Callable[[str, bytes, str], bool]:
    """The function of the page about webhooks that checks a signature."""
    (block,) = (block for block in blocks(DOCS / "monitor.md", "python") if "def is_genuine" in block.text)
    names: dict[str, Any] = {}
    exec(block.text, names)
    check: Callable[[str, bytes, str], bool] = names["is_genuine"]
    return check


def body_of(message: EmailMessage, kind: str) -> str:
    part = message.get_body((kind,))
    assert part is not None
    return str(part.get_content())


def test_a_mail_over_starttls_has_the_sentence_the_advice_and_the_silence(certificate: ssl.SSLContext) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox, certificate) as port:
        send(parse_receiver(mail(port, login="ops:p%40ss@")), NOTICE)
        send(parse_receiver(mail(port, login="ops:p%40ss@")), RESOLVED)
    first, last = mailbox.mails
    assert mailbox.logins == [("ops", "p@ss")] * 2
    assert mailbox.is_encrypted == [True, True]
    assert (first["From"], first["To"]) == ("tasks@example.com", "ops+night@example.com, boss@example.com")
    assert first["Subject"] == "[shop] mail falls behind"
    for part in ("mail falls behind: 10 in, 2 out per min", "runner why queue:mail", "silence queue-late:mail"):
        assert part in body_of(first, "plain")
        assert part in body_of(first, "html")
    assert last["Subject"] == "[shop] resolved: mail falls behind"
    assert last["In-Reply-To"] == first["Message-ID"]


def test_a_mail_over_tls_from_the_first_byte(certificate: ssl.SSLContext) -> None:
    mailbox = Mailbox()
    with mail_server(mailbox, certificate, wrapped=True) as port:
        send(parse_receiver(mail(port, "smtps")), NOTICE)
    assert len(mailbox.mails) == 1


def test_a_certificate_that_is_not_trusted_is_refused(
    certificate: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    mailbox = Mailbox()
    with (
        mail_server(mailbox, certificate, wrapped=True) as port,
        pytest.raises(MailRefused, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        send(parse_receiver(mail(port, "smtps")), NOTICE)
    assert mailbox.mails == []


def test_a_server_without_starttls_gets_a_mail_only_if_the_address_renounces_it() -> None:
    mailbox = Mailbox()
    with mail_server(mailbox) as port:
        with pytest.raises(Dead, match=r"127\.0\.0\.1:\d+ offers no STARTTLS: use smtps://, or add tls=none"):
            send(parse_receiver(mail(port)), NOTICE)
        send(parse_receiver(mail(port, options="&tls=none")), NOTICE)
    assert mailbox.is_encrypted == [False]


def test_a_refused_login_is_final_and_names_no_password(certificate: ssl.SSLContext) -> None:
    with mail_server(Mailbox(), certificate) as port, pytest.raises(Dead) as caught:
        send(parse_receiver(mail(port, login="ops:hunter2@")), NOTICE)
    assert str(caught.value).startswith("535 ")
    assert "refused the login of ops" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        ({"ops+night@example.com": "550 no such user", "boss@example.com": "550 gone"}, Dead),
        ({"ops+night@example.com": "450 try later", "boss@example.com": "550 gone"}, MailRefused),
    ],
)
def test_refused_recipients_are_final_unless_one_is_refused_for_now(
    replies: dict[str, str], error: type[Exception]
) -> None:
    with mail_server(Mailbox(replies)) as port, pytest.raises(error, match="refused all recipients: ops"):
        send(parse_receiver(mail(port, options="&tls=none")), NOTICE)


def test_one_refused_recipient_does_not_keep_the_mail_from_the_other(caplog: pytest.LogCaptureFixture) -> None:
    mailbox = Mailbox({"boss@example.com": "550 gone"})
    with mail_server(mailbox) as port:
        send(parse_receiver(mail(port, options="&tls=none")), NOTICE)
    assert len(mailbox.mails) == 1
    assert "refused boss@example.com; the other recipients have the mail" in caplog.text


def test_a_hostile_title_adds_no_header_and_no_markup() -> None:
    mailbox = Mailbox()
    hostile = replace(NOTICE, title="x\r\nBcc: thief@example.com\x1b[31m", text="<script>alert(1)</script>\ud800\x00")
    with mail_server(mailbox) as port:
        send(parse_receiver(mail(port, options="&tls=none")), hostile)
    assert mailbox.mails[0]["Bcc"] is None
    assert "<script>" not in body_of(mailbox.mails[0], "html")
    assert "\x1b" not in str(mailbox.mails[0]["Subject"])


@pytest.mark.parametrize("query", ["to=a@example.com", "from=a@example.com", "from=a@example.com&to=nobody"])
def test_a_missing_address_is_named(query: str) -> None:
    with pytest.raises(Dead, match=r"receiver ops needs (from|to)=ADDRESS"):
        send(parse_receiver(f"ops=smtp://127.0.0.1:9?{query}"), NOTICE)


def test_a_webhook_is_signed_as_the_page_describes() -> None:
    answers = Answers()
    with web_server(answers) as url:
        send(parse_receiver(f"hook={url}/alerts?team=ops#hunter2"), NOTICE)
    ((method, path, headers, body),) = answers.requests
    assert (method, path) == ("POST", "/alerts?team=ops")
    assert b"hunter2" not in body
    is_genuine, header = documented_check(), headers["Tasktui-Signature"]
    assert is_genuine(header, body, "hunter2")
    assert not is_genuine(header, body, "another key")
    assert not is_genuine(header, body + b" ", "hunter2")
    assert not any(is_genuine(bad, body, "hunter2") for bad in ("", "nonsense", "t=x,v1=\xe9", header.upper()))
    document = json.loads(body)
    assert document["title"] == "mail falls behind"
    assert document["state"] == "firing"


def test_the_notices_of_one_alert_have_the_same_id() -> None:
    answers = Answers()
    with web_server(answers) as url:
        for notice in (NOTICE, RESOLVED, replace(NOTICE, since="2026-11-28T10:00:00Z")):
            send(parse_receiver(f"hook={url}"), notice)
    first, resolved, later = (json.loads(body)["id"] for *_, body in answers.requests)
    assert first == resolved != later


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        ((500, {}), WebhookFailed, "500 Internal Server Error: hook=http://127.0.0.1 did not take the notice"),
        ((429, {"Retry-After": "7"}), Retry, "429 Too Many Requests"),
        ((401, {}), Dead, "401 Unauthorized"),
        ((302, {"Location": "http://127.0.0.1:9/"}), Dead, "redirects are not followed: name the final address"),
    ],
)
def test_the_answer_of_a_webhook_decides_about_a_repetition(
    answer: tuple[int, dict[str, str]], error: type[Exception], text: str
) -> None:
    answers = Answers(answer)
    with web_server(answers) as url, pytest.raises(error, match=text.replace("=", r"\=")) as caught:
        send(parse_receiver(f"hook={url}/secret-path#hunter2"), NOTICE)
    assert "secret-path" not in str(caught.value)
    if isinstance(caught.value, Retry):
        assert caught.value.delay == 7
    assert len(answers.requests) == 1


@pytest.mark.slow
def test_apprise_sends_to_its_services() -> None:
    answers = Answers()
    with web_server(answers) as url:
        send(parse_receiver(f"chat=json://{url.removeprefix('http://')}/x"), NOTICE)
    document = json.loads(answers.requests[0][3])
    assert document["title"] == "[shop] mail falls behind"
    assert "runner why queue:mail" in document["message"]


def test_an_address_that_apprise_does_not_know_is_final() -> None:
    with pytest.raises(Dead, match="apprise does not accept the address of receiver chat"):
        send(parse_receiver("chat=nonsense://x"), NOTICE)


async def test_a_ping_that_fails_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    answers = Answers((200, {}), (500, {}))
    with web_server(answers) as url:
        await ping(f"{url}/check")
        assert caplog.text == ""
        await ping(f"{url}/check")
    assert "could not call the setting alert_ping: 500 Internal Server Error" in caplog.text
    assert [(method, path) for method, path, *_ in answers.requests] == [("GET", "/check")] * 2


async def test_a_runner_delivers_a_notice_once_its_mail_server_is_back(harness: Harness) -> None:
    port = free_port()
    receivers = [mail(port, options="&tls=none")]
    mailbox = Mailbox()
    id = await harness.submit(DELIVER, json.loads(NOTICE.task("ops").payload or "{}"), queue=QUEUE, retry="10ms")
    async with harness.running(alert_receivers=receivers, queues=["other"]):
        await until(lambda: _has_failed(harness, id))
        with mail_server(mailbox, port=port):
            await harness.wait_for(id)
    assert await harness.state(id) == State.SUCCEEDED
    assert [mail_["Subject"] for mail_ in mailbox.mails] == ["[shop] mail falls behind"]


async def test_a_notice_for_a_receiver_that_the_runner_does_not_have_is_dead(harness: Harness) -> None:
    id = await harness.submit(DELIVER, json.loads(NOTICE.task("pager").payload or "{}"), queue=QUEUE)
    await harness.work(alert_receivers=["hook=https://example.com"])
    assert await harness.state(id) == State.DEAD
    (attempt,) = await harness.attempts(id)
    assert "this runner has no receiver pager: the setting alert_receivers names hook" in attempt.message


async def _has_failed(harness: Harness, id: int) -> bool:
    return len(await harness.attempts(id)) > 0


async def test_every_runner_with_receivers_delivers_whatever_it_selects(harness: Harness) -> None:
    @harness.handler("other.x")
    async def other() -> None: ...

    answers = Answers()
    with web_server(answers) as url:
        await harness.submit(DELIVER, json.loads(NOTICE.task("hook").payload or "{}"), queue=QUEUE)
        await harness.work(alert_receivers=[f"hook={url}"], queues=["other"], only=["other.*"])
    assert len(answers.requests) == 1


async def test_a_runner_delivers_a_notice_while_tasks_hold_all_its_slots(harness: Harness) -> None:
    held = asyncio.Event()

    @harness.handler("hold")
    async def hold() -> None:
        await held.wait()

    answers = Answers()
    with web_server(answers) as url:
        for _ in range(3):
            await harness.submit("hold")
        async with harness.running(alert_receivers=[f"hook={url}"], concurrency=2) as runner:
            in_flight = runner.worker.in_flight
            await until(lambda: in_flight.on_loop.in_use == 2)
            assert in_flight.capacity == 2 + in_flight.in_threads.size, "the slots of deliveries are its own"
            id = await harness.submit(DELIVER, json.loads(NOTICE.task("hook").payload or "{}"), queue=QUEUE)
            await harness.wait_for(id)
            assert (await harness.state(id), in_flight.on_loop.in_use) == (State.SUCCEEDED, 2)
            held.set()
    assert len(answers.requests) == 1


@pytest.mark.parametrize(
    ("receiver", "why"),
    [
        ("ops=smtp://127.0.0.1?to=ops@example.com", "receiver ops needs from=ADDRESS"),
        ("ops=smtp://127.0.0.1?from=a@example.com&to=b@example.com&tls=no", "receiver ops has tls=no"),
        ("chat=nonsense://secret", "apprise does not accept the address of receiver chat"),
    ],
)
async def test_a_runner_with_a_receiver_that_cannot_work_does_not_start(
    harness: Harness, receiver: str, why: str
) -> None:
    with pytest.raises(InvalidSettings, match=f"alert_receivers.*{why}") as raised:
        harness.runner(alert_receivers=[receiver])
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "address",
    [
        "hook=https://example.com/s3cret 1",
        "hook=https://example.com/s3cret\r\nX: 1",
        "hook=https://example.com/s3cr\u00e9t",
        "hook=https://user:s3cret@example.com/",
        "hook=https://example.com:s3cret/",
        "ops=smtp://ops:s3cr/et@example.com?from=a@example.com&to=b@example.com",
    ],
)
def test_an_address_that_cannot_be_sent_is_refused_without_its_secrets(address: str) -> None:
    with pytest.raises(ValueError, match=r"receiver|address") as raised:
        parse_receiver(address)
    assert "s3cr" not in str(raised.value)


def test_a_login_that_smtp_does_not_carry_is_final_and_shows_no_character(certificate: ssl.SSLContext) -> None:
    with mail_server(Mailbox(), certificate) as port, pytest.raises(Dead, match="outside ASCII") as raised:
        send(parse_receiver(mail(port, login="ops:p%C3%BCss@")), NOTICE)
    assert "xfc" not in str(raised.value)


async def test_the_end_of_a_process_waits_for_no_send_that_hangs() -> None:
    known = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        receivers = Receivers.of(Settings(url=parse_url("sqlite:///none.db"), alert_receivers=(f"hook={url}",)))
        sending = asyncio.create_task(deliver.function(NOTICE, "hook", receivers))
        await asyncio.sleep(0)
        (sender,) = (each for each in set(threading.enumerate()) - known if each.name.startswith(NAME))
        connection, _ = server.accept()
        with connection:
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert sender.is_alive()
            assert sender.daemon
    sender.join(90)


async def test_a_server_that_does_not_answer_delays_no_notice_of_another_receiver(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT", 100.0)
    monkeypatch.setattr(sending, "LIMIT", 100.0)
    payloads = {name: json.loads(NOTICE.task(name).payload or "{}") for name in ("hangs", "works")}
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent, web_server(Answers()) as url:
        receivers = [f"hangs=http://127.0.0.1:{silent.getsockname()[1]}", f"works={url}"]
        hanging = [await harness.submit(DELIVER, payloads["hangs"], queue=QUEUE) for _ in range(DELIVERIES + 1)]
        last = await harness.submit(DELIVER, payloads["works"], queue=QUEUE)
        async with harness.running(alert_receivers=receivers):
            await harness.wait_for(last)
            assert await harness.state(last) == State.SUCCEEDED
            assert [await harness.attempts(id) for id in hanging] == [[]] * len(hanging)
            silent.close()


async def test_many_notices_of_a_receiver_that_works_follow_each_other(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "BUSY", "1h")
    payload = json.loads(NOTICE.task("works").payload or "{}")
    with web_server(Answers()) as url:
        receivers = [f"works={url}", *(f"other{number}={url}" for number in range(DELIVERIES))]
        notices = [await harness.submit(DELIVER, payload, queue=QUEUE) for _ in range(DELIVERIES)]
        async with harness.running(alert_receivers=receivers):
            await harness.wait_for(*notices)
    assert {await harness.state(id) for id in notices} == {State.SUCCEEDED}


async def test_servers_that_answer_too_slowly_hold_a_bounded_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "SLOW", 0.0)
    release = threading.Event()
    hanging = [asyncio.create_task(in_own_thread("slow", MAX_CALLS, release.wait)) for _ in range(MAX_CALLS)]
    await asyncio.sleep(0)
    try:
        with pytest.raises(TooManyCalls, match=r"^slow has not answered 20 earlier calls"):
            await in_own_thread("slow", MAX_CALLS, release.is_set)
        assert await in_own_thread("other", MAX_CALLS, release.is_set) is False
    finally:
        release.set()
    await asyncio.gather(*hanging)
    while any(thread.name.startswith(NAME) for thread in threading.enumerate()):
        await asyncio.sleep(0.01)
    assert await in_own_thread("slow", MAX_CALLS, release.is_set)


@contextmanager
def dripping(head: bytes, *, greets: bool = False) -> Iterator[int]:
    """A server that sends the head of an answer, then a byte at a time until the client has gone, and its port.

    Args:
        greets: it answers before the client has sent anything.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                if not greets:
                    connection.recv(65_536)
                connection.sendall(head)
                while not is_over.wait(0.01):
                    connection.sendall(b"a")

        is_over, serving = threading.Event(), threading.Thread(target=serve)
        serving.start()
        try:
            yield server.getsockname()[1]
        finally:
            is_over.set()
            serving.join()


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX-Answer: ", b"HTTP/1.1 200 ", b""])
async def test_a_server_that_answers_one_byte_at_a_time_holds_no_notice_and_no_ping(
    head: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sending, "LIMIT", 0.1)
    with dripping(head) as port:
        await ping(f"http://127.0.0.1:{port}/")
    assert "could not call the setting alert_ping: no complete answer in 0.1 s" in caplog.text
    with dripping(head) as port, pytest.raises(WebhookFailed, match=r"no complete answer in 0\.1 s: hook=http"):
        send(parse_receiver(f"hook=http://127.0.0.1:{port}/"), NOTICE)


def test_a_server_that_answers_one_byte_at_a_time_over_tls_holds_no_notice(
    certificate: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LIMIT", 0.1)

    def serve() -> None:
        with suppress(OSError), certificate.wrap_socket(listening.accept()[0], server_side=True) as connection:
            connection.recv(65_536)
            while not is_over.wait(0.01):
                connection.sendall(b"a")

    is_over, serving = threading.Event(), threading.Thread(target=serve)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving.start()
        with pytest.raises(WebhookFailed, match=r"no complete answer in 0\.1 s: hook=https"):
            send(parse_receiver(f"hook=https://127.0.0.1:{listening.getsockname()[1]}/"), NOTICE)
        is_over.set()
        serving.join()


@pytest.mark.parametrize("head", [b"", b"220 ready\r\n250-"])
def test_a_mail_server_that_answers_one_byte_at_a_time_holds_no_notice(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LIMIT", 0.1)
    with dripping(head, greets=True) as port, pytest.raises(MailRefused, match=r"no complete answer in 0\.1 s"):
        send(parse_receiver(f"ops=smtp://127.0.0.1:{port}?from=a@b.example&to=c@d.example&tls=none"), NOTICE)

"""The report of a period arrives as a mail, with its page attached."""

from runner.alerts import mail_report
from runner.model.outcome import Dead
from runner.model.task import State
from tests.alerts.servers import Mailbox, mail_server
from tests.alerts.test_delivery import body_of, mail
from tests.engine.harness import Harness


def add_report(harness: Harness) -> None:
    harness.handlers[mail_report.name] = mail_report


async def test_the_mail_has_the_figures_and_the_page_of_the_last_days(harness: Harness) -> None:
    @harness.handler("shop.pay")
    async def pay() -> Dead:
        return Dead("no card")

    add_report(harness)
    mailbox = Mailbox()
    await harness.submit("shop.pay")
    with mail_server(mailbox) as port:
        receivers = ["hook=https://example.com", mail(port, options="&tls=none")]
        await harness.work()
        id = await harness.submit(mail_report.name, {"since": "7d"})
        await harness.work(alert_receivers=receivers)
    assert await harness.state(id) == State.SUCCEEDED
    (message,) = mailbox.mails
    text = body_of(message, "plain")
    assert "1 died" in text
    assert "shop.pay: 1" in text
    (page,) = message.iter_attachments()
    assert (page.get_filename() or "").startswith("tasks-")
    assert page.get_content_type() == "text/html"
    assert "shop.pay" in str(page.get_content())


async def test_without_a_receiver_of_mail_the_task_is_dead_and_names_the_setting(harness: Harness) -> None:
    add_report(harness)
    id = await harness.submit(mail_report.name)
    await harness.work(alert_receivers=["hook=https://example.com"])
    (attempt,) = await harness.attempts(id)
    assert await harness.state(id) == State.DEAD
    assert attempt.message.startswith("the setting alert_receivers names no receiver of e-mail")

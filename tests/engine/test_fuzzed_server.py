"""A server for HTTP executors under requests that schemathesis derives from its OpenAPI document."""

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from runner.engine.serving.endpoints import openapi_document
from tests.engine.harness import Harness
from tests.engine.serving import SECRET, Client, served

EXAMPLES = 40

pytestmark = [
    pytest.mark.slow,
    # Hypothesis sees the draws of the server, which runs in another thread.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]

PATHS = tuple(openapi_document()["paths"])


def fuzz(path: str, mode: str, url: str, tasks: list[Any]) -> None:
    """Send requests that fit the document, or do not; some of them name the tasks of the executor `one`."""
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import ignored_auth

    schema: Any = schemathesis.openapi.from_dict(openapi_document())
    (operation,) = (each for result in schema.get_all_operations() if (each := result.ok()).path == path)

    @seed(1)
    @settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
    def send(case: Any) -> None:
        if mode == GenerationMode.POSITIVE.value:
            use_tasks(case.body, tasks)
        case.call_and_validate(
            base_url=url, headers={"authorization": f"Bearer {SECRET}"}, timeout=90, excluded_checks=[ignored_auth]
        )

    send()


def use_tasks(body: dict[str, Any], tasks: list[Any]) -> None:
    """Replace the attempts of a request by some that the executor has, and let no pull wait."""
    body["executor"] = "one"
    if "handlers" in body:
        body |= {"wait": 0, "handlers": ["mail.send"]}
    listed = [body] if "id" in body else [each for value in body.values() if isinstance(value, list) for each in value]
    for each in listed:
        if isinstance(each, dict) and tasks:
            task = tasks[int(each["id"]) % len(tasks)]
            each |= {"shard": task["shard"], "id": task["id"], "fence": task["fence"]}


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("path", PATHS)
async def test_each_answer_fits_the_document(harness: Harness, path: str, mode: str) -> None:
    for _ in range(60):
        await harness.submit("mail.send")
    async with served(harness) as (engine, client):
        tasks: list[Any] = []
        while len(tasks) < 50:
            tasks += await client.pull(free=50 - len(tasks))
        await asyncio.to_thread(fuzz, path, mode, f"http://127.0.0.1:{client.port}", tasks)
        other = Client(client.port, executor="two")
        await harness.submit("sms.send")
        (task,) = await other.pull(free=1, handlers=("sms.send",))
        assert (await other.settle(task))["status"] == "settled", "the server goes on"
        await other.close()
        engine.stop()

"""Arguments keep their values and types from the submit to the handler, on both databases."""

import enum
import json
import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, Literal, Required
from uuid import UUID

import pytest
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    SecretBytes,
    SecretStr,
    StringConstraints,
    WrapValidator,
    field_serializer,
)
from typing_extensions import TypedDict, Unpack

from runner import Context, errors, handler
from runner.errors import InvalidHandler, InvalidPayload, InvalidRetryPlan, InvalidTask, PayloadTooLarge
from runner.handlers.discovery import discover
from runner.handlers.parameters import read_signature, stored_signatures
from runner.handlers.registry import REGISTRY, Handler
from runner.handlers.signature import Signature
from runner.testing import TaskStore


class Colour(enum.Enum):
    RED = "red"


class Line(BaseModel):
    sku: str
    price: Decimal
    tags: frozenset[str] = frozenset()


class Order(BaseModel):
    id: UUID
    placed: datetime
    lines: list[Line]


@dataclass
class Address:
    street: str
    since: date | None = None


@dataclass
class Weight:
    grams: float


class Sample(BaseModel):
    grams: float


CET = timezone(timedelta(hours=1))
LINE = Line(sku="a-1", price=Decimal("19.90"), tags=frozenset({"new"}))
VALUES: dict[str, tuple[Any, Any]] = {
    "datetime": (datetime, datetime(2030, 1, 2, 3, 4, 5, 678901, UTC)),
    "datetime with a zone": (datetime, datetime(2030, 1, 2, 3, 4, 5, tzinfo=CET)),
    "datetime without a zone": (datetime, datetime(2030, 1, 2, 3, 4, 5)),  # noqa: DTZ001 - as some callers write them
    "date": (date, date(2030, 1, 2)),
    "time": (time, time(3, 4, 5)),
    "timedelta": (timedelta, timedelta(days=3, milliseconds=7)),
    "UUID": (UUID, UUID(int=2**127 + 1)),
    "Decimal": (Decimal, Decimal("0.1000000000000000000000000000001")),
    "int beyond 64 bits": (int, 2**200),
    "float": (float, 0.1 + 0.2),
    "text": (str, 'naïve ☃ 🐍 \\u0041 "quoted" \n'),
    "path": (Path, Path("/tmp/x y")),
    "enumeration": (Colour, Colour.RED),
    "literal": (Literal["a", "b"], "b"),
    "bounded": (Annotated[int, Field(gt=0)], 3),
    "tuple": (tuple[int, str], (1, "x")),
    "set": (set[int], {3, 1}),
    "map by number": (dict[int, Decimal], {1: Decimal("1.10")}),
    "model": (Line, LINE),
    "nested models": (Order, Order(id=UUID(int=7), placed=datetime(2030, 1, 1, tzinfo=UTC), lines=[LINE, LINE])),
    "data class": (Address, Address("Main St", date(2020, 2, 29))),
    "one of several": (Line | Address | None, LINE),
    "nothing": (int | None, None),
}


@pytest.fixture
def store(migrated_url: str) -> Iterator[TaskStore]:
    with TaskStore(migrated_url, payload_limit=1_000, max_attempts=1) as store:
        yield store
    REGISTRY._handlers.pop("test.take", None)


def test_arguments_keep_their_types(store: TaskStore) -> None:
    came: dict[str, Any] = {}
    for name, (kind, value) in VALUES.items():

        def take(value: Any) -> None:
            came[name] = value  # noqa: B023 - called before the next iteration

        take.__annotations__["value"] = kind
        handler("test.take")(take).submit(value=value)
        assert [ran.verb for ran in store.drain("test.take")] == ["succeed"], name
    assert came == {name: value for name, (_, value) in VALUES.items()}
    assert {name: type(value) for name, value in came.items()} == {n: type(value) for n, (_, value) in VALUES.items()}


def test_a_value_that_is_not_json_is_rejected_before_it_is_stored(store: TaskStore) -> None:
    @handler("test.take")
    def take(value: Any) -> None: ...

    nan = float("nan")
    strange = (object(), b"\xff", {1: {2: object()}}, "\ud800")
    for value in (*strange, nan, [1, {"a": (nan, None)}], {nan}, Weight(nan), Sample(grams=-math.inf)):
        with pytest.raises(InvalidPayload, match=r"Invalid payload for handler 'test\.take': "):
            take.submit(value=value)
    take.submit(value=[None, "null", 1.5])
    assert [task.payload for task in store.tasks()] == [{"value": [None, "null", 1.5]}]


class Connection:
    """A class that JSON cannot hold."""


def test_an_annotation_that_json_cannot_hold_is_rejected_before_a_task_runs(store: TaskStore) -> None:
    @handler("test.take")
    def take(ctx: Context, number: int, by: Connection | None = None) -> None: ...

    refused = r"its argument by has the type .*Connection \| None, which JSON cannot hold: use an id"
    with pytest.raises(InvalidHandler, match=refused):
        take.submit(number=1)
    with pytest.raises(InvalidHandler, match=refused):
        discover(installed=False)


class Login(BaseModel):
    name: str
    password: SecretStr


class OpenLogin(BaseModel):
    password: SecretStr

    @field_serializer("password")
    def reveal(self, password: SecretStr) -> str:
        return password.get_secret_value()


def test_a_secret_is_rejected_instead_of_stored_as_asterisks(store: TaskStore) -> None:
    @handler("test.take")
    def take(value: Any) -> Any:
        return value

    secrets: list[Any] = [SecretStr("x"), SecretBytes(b"x"), Login(name="ana", password=SecretStr("x"))]
    for secret in secrets:
        for value in (secret, [{"a": secret}]):
            with pytest.raises(
                InvalidPayload, match=r"Secret\w+ would be stored as asterisks; pass the name under which"
            ):
                take.submit(value=value)
    take.submit(value=OpenLogin(password=SecretStr("swordfish")))
    take.submit(value="**********")
    assert [task.payload["value"] for task in store.tasks()] == [{"password": "swordfish"}, "**********"]


def test_a_secret_result_is_not_kept(store: TaskStore) -> None:
    @handler("test.take")
    def take() -> SecretStr:
        return SecretStr("swordfish")

    take.submit()
    store.drain("test.take")
    (task,) = store.tasks()
    assert (task.state, task.result) == ("succeeded", None)
    assert task.error
    assert task.error.startswith("the result was not kept: it contains a")  # secret; or object, before pydantic 2.10
    assert "swordfish" not in task.error


async def stream(rows: int) -> AsyncIterator[int]:
    yield rows


def lines(rows: int) -> Iterator[int]:
    yield rows


@pytest.mark.parametrize("function", [stream, lines])
def test_a_generator_is_no_handler(function: Any) -> None:
    with pytest.raises(InvalidHandler, match=f"{function.__name__} is a generator, .* without executing it"):
        handler("test.stream")(function)
    assert "test.stream" not in REGISTRY


class Mailer:
    def send(self, to: str) -> None: ...

    @classmethod
    def renew(cls) -> None: ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (Mailer, "Mailer is a class: decorate a function"),
        (Mailer.send, "Mailer.send is a method: decorate a function outside the class"),
        (vars(Mailer)["renew"], "Mailer.renew is a method: decorate a function outside the class"),
        (5, "5 is not a function"),
        (partial(len), "its type partial has no name: decorate a function that calls it"),
    ],
)
def test_only_a_function_is_a_handler(function: Any, reason: str) -> None:
    with pytest.raises(InvalidHandler, match=reason):
        handler("test.method")(function)
    assert "test.method" not in REGISTRY


def test_bound_methods_and_static_methods_are_handlers(store: TaskStore) -> None:
    bound = handler("test.take")(Mailer().send)
    bound.submit(to="ana")
    assert [ran.verb for ran in store.drain("test.take")] == ["succeed"]


@pytest.mark.parametrize("name", ["", "a b", 5])
def test_a_handler_has_a_name(name: Any) -> None:
    with pytest.raises(InvalidHandler, match="a name has 1 to 200 letters"):
        handler(name)(lines)


def test_a_retry_plan_is_text() -> None:
    stages: Any = ["1m", "5m"]
    with pytest.raises(InvalidRetryPlan, match=r"expected text\. Examples: 1m,5m,20m"):
        handler("test.take", retry=stages)


def test_an_unknown_argument_is_refused_with_the_known_ones(store: TaskStore) -> None:
    @handler("test.take")
    def count(ctx: Context, number: int, by: str = "") -> None: ...

    take: Any = count
    with pytest.raises(InvalidPayload, match="numbr: the handler has no such argument; it has: number, by"):
        take.submit(number=1, numbr=2)
    with pytest.raises(InvalidPayload, match="too many positional arguments; it has: number, by"):
        take.submit(None, 1, "ana")


def test_a_task_handle_has_a_whole_number(store: TaskStore) -> None:
    take: Any = handler("test.take")(Mailer().send)
    with pytest.raises(InvalidTask, match="Invalid value 'last' for `id`: a task id is a whole number"):
        take.task_handle("last")


def test_an_error_names_the_module_to_import_it_from() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.RunnerError)]
    assert len(kinds) > 50
    assert {kind.__module__ for kind in kinds} == {"runner.errors"}


def test_an_annotation_that_is_missing_at_run_time_is_rejected(store: TaskStore) -> None:
    @handler("test.take")
    def take(value: "Elsewhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the missing import is the test

    with pytest.raises(InvalidHandler, match=r"name 'Elsewhere' is not defined\. Import the types outside"):
        take.submit(1)  # type: ignore[call-arg] # the annotation is missing at run time


def test_a_payload_at_the_limit_is_accepted_and_a_larger_one_rejected(store: TaskStore) -> None:
    @handler("test.take")
    def take(text: str) -> int:
        return len(text.encode())

    room = 1_000 - len('{"text":""}')
    take.submit("x" * room)
    take.submit("ß" * (room // 2))
    for text in ("x" * (room + 1), "ß" * (room // 2 + 1)):
        with pytest.raises(PayloadTooLarge, match=r"has 1\d\d\d bytes; the limit is 1000"):
            take.submit(text)
    assert [ran.verb for ran in store.drain("test.take")] == ["succeed", "succeed"]
    assert [task.result for task in store.tasks()] == [room, room // 2 * 2]


class Size(enum.IntEnum):
    SMALL = 1


JSON_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 7, -7, 7.0, 7.5, 1e300, "", "7", "7.0", "7.5", " 7 ", "seven", "yes", "ON", "red", "small",
    "2026-11-20", "2026-11-20T14:30:00Z", "2026-11-20 14:30", "2026-11-20t14:30z", "14:30", "P1D",
    "6f1e2b9a-9d1e-4a8e-8f63-2d9d7b1c0a11",
    "2026-11-20T14:30:00\u221201:00", "2026-11-20T14:30:00-0100", "2026-11-20_14:30:00.123456789Z", "1763649000",
    "RED", "rouge", " red ", "1" * 400, "1_000", "\u0667", "12345678 ",
    [], [1], {}, {"sku": "a"},
)  # fmt: skip


class Shade(enum.Enum):
    RED = "red"
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> "Shade | None":
        return {"RED": cls.RED, "rouge": cls.RED, "7": cls.ONE}.get(str(value))


class Tone(enum.Enum):
    LOW = "low"

    @staticmethod
    def _missing_(value: object) -> "Tone | None":  # enum calls it on the class
        return Tone.LOW if value == "red" else None


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


def in_words(value: Any) -> Any:
    return {"seven": 7}.get(value, value) if isinstance(value, str) else value


HINTS = (
    str, int, float, bool, datetime, date, time, timedelta, Decimal, UUID, bytes, Path, Colour, Size, SecretStr, Any,
    Shade, Shade | None, list[Shade], Tone, Rights,
    Annotated[str, StringConstraints(strip_whitespace=True, max_length=8)],
    int | None, int | str, Literal["red", 7], list[int], dict[str, int], Address,
    Annotated[int, Field(ge=1, le=7)], Annotated[str, Field(min_length=2)], Annotated[float, Field(gt=0)],
    pytest.param(Annotated[int, BeforeValidator(in_words)] | None, id="before"),
    pytest.param(Annotated[int, WrapValidator(lambda value, check: check(in_words(value)))], id="wrap"),
)  # fmt: skip


@pytest.mark.parametrize("kind", HINTS, ids=str)
def test_a_stored_signature_refuses_no_value_that_the_code_takes(kind: Any) -> None:
    async def take(value: Any) -> None: ...

    take.__annotations__["value"] = kind
    probe = Handler("test.take", take)
    signature = read_signature(stored_signatures({"test.take": probe})["test.take"])
    assert signature is not None
    for value in JSON_VALUES:
        try:
            probe.signature.check(json.dumps({"value": value}))
        except InvalidPayload:
            continue
        assert signature.misfit({"value": value}) == "", value


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (str, [7, True, None, []]),
        (int, ["seven", 7.5, "7.5", None, []]),
        (float, ["seven", None, {}]),
        (bool, ["perhaps", 7, None]),
        (datetime, ["tomorrow 9:00", "soon", None]),
        (Colour, ["blue", 7]),
        (int | None, ["seven"]),
        (Annotated[int, Field(ge=1, le=7)], [0, 8, "9"]),
        (Annotated[str, Field(min_length=2)], ["a"]),
    ],
    ids=str,
)
def test_a_stored_signature_refuses_values_of_another_type(kind: Any, wrong: list[Any]) -> None:
    async def take(value: Any) -> None: ...

    take.__annotations__["value"] = kind
    signature = read_signature(stored_signatures({"test.take": Handler("test.take", take)})["test.take"])
    assert signature is not None
    for value in wrong:
        assert signature.misfit({"value": value}).startswith("value: "), value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Decimal("1.10"), "x: JSON does not keep the type Decimal: annotate the parameter with it"),
        (UUID(int=1), "x: JSON does not keep the type UUID"),
        (datetime(2030, 1, 1, tzinfo=UTC), "x: JSON does not keep the type datetime"),
        ({1, 2}, "x: a set would come back as a list: annotate the parameter, such as set[int]"),
        (iter([1, 2]), "x: a value of type list_iterator can be read once, and a task cannot keep it: pass a list"),
        (StringIO("text"), "x: a value of type StringIO can be read once"),
        (b"\xff", "x: bytes are no text: decode them, or annotate the parameter as pydantic.Base64Bytes"),
        ({"deep": [{"at": UUID(int=1)}]}, "x: JSON does not keep the type UUID"),
        ({1: "a"}, "x: a key of a dictionary is not text"),
    ],
)
def test_a_value_that_json_changes_needs_an_annotation(value: Any, why: str) -> None:
    def untyped(x):  # type: ignore[no-untyped-def] # the missing annotation is the test
        ...

    def listed(x: list[dict[str, Any]]) -> None: ...

    with pytest.raises(InvalidPayload) as refused:
        Signature("test.untyped", untyped).encode((value,), {})
    assert refused.value.fields["why"].startswith(why)
    with pytest.raises(InvalidPayload):
        Signature("test.listed", listed).encode(([{"deep": value}],), {})


def test_an_iterator_that_is_refused_is_not_used_up() -> None:
    def untyped(x):  # type: ignore[no-untyped-def] # as above
        ...

    rows = iter([1, 2])
    with pytest.raises(InvalidPayload):
        Signature("test.untyped", untyped).encode((rows,), {})
    assert [*rows] == [1, 2]


def test_plain_values_and_annotated_ones_pass() -> None:
    def mixed(x, at: datetime, by: dict[UUID, Any]) -> None:  # type: ignore[no-untyped-def] # as above
        ...

    payload = Signature("test.mixed", mixed).encode(
        ({"a": [1, 2.5, True, None, "b", (1, 2)]}, datetime(2030, 1, 1, tzinfo=UTC), {UUID(int=1): Decimal(1)}), {}
    )
    assert json.loads(payload)["x"] == {"a": [1, 2.5, True, None, "b", [1, 2]]}


@pytest.mark.parametrize("annotation", [bytes, str, int, dict[str, int], datetime])
def test_bytes_that_are_no_text_get_advice(annotation: Any) -> None:
    def keep(x: Any) -> None: ...

    keep.__annotations__["x"] = annotation
    with pytest.raises(InvalidPayload, match=r"bytes are no text: decode them, or .* pydantic\.Base64Bytes"):
        Signature("test.keep", keep).encode((b"\xff\xfe",), {})


def test_arguments_of_a_double_star_have_the_annotated_type() -> None:
    def count(name: str, **more: UUID) -> None: ...

    signature = Signature("test.count", count)
    payload = signature.encode(("a",), {"first": str(UUID(int=1)), "second": UUID(int=2)})
    values = {"name": "a", "first": UUID(int=1), "second": UUID(int=2)}
    assert (signature.decode(payload), signature.encode(("a",), {})) == (values, '{"name":"a"}')
    with pytest.raises(InvalidPayload, match=r"'test\.count': second: Input should be a valid UUID"):
        signature.encode(("a",), {"second": "b"})
    with pytest.raises(InvalidPayload, match=r"'test\.count': second: Input should be a valid UUID"):
        signature.decode('{"name": "a", "second": "b"}')


def test_arguments_of_a_double_star_without_a_type_are_plain() -> None:
    def count(**more): ...  # type: ignore[no-untyped-def] # the missing annotation is the test

    signature, rows = Signature("test.count", count), iter([1, 2])
    with pytest.raises(InvalidPayload, match="rows: a value of type list_iterator can be read once"):
        signature.encode((), {"rows": rows})
    assert ([*rows], signature.encode((), {"a": [1, "b"]})) == ([1, 2], '{"a":[1,"b"]}')


class Choices(TypedDict, total=False):
    size: Required[int]
    colour: Colour


def test_a_double_star_of_a_typed_dictionary_takes_its_keys() -> None:
    def paint(name: str, **choices: Unpack[Choices]) -> None: ...

    signature = Signature("test.paint", paint)
    payload = signature.encode(("a",), {"size": "3", "colour": "red"})
    assert signature.decode(payload) == {"name": "a", "size": 3, "colour": Colour.RED}
    for values, why in (({}, "size: Field required"), ({"size": 1, "x": 2}, "x: .* it has: name, size, colour")):
        with pytest.raises(InvalidPayload, match=why):
            signature.encode(("a",), values)


def test_a_stored_signature_has_the_type_of_the_arguments_of_a_double_star() -> None:
    def count(line: Line, **more: Sample) -> None: ...

    def note(**more: int) -> None: ...

    def keep(**more: Any) -> None: ...

    stored = stored_signatures({f.__name__: Handler(f.__name__, f) for f in (count, note, keep)})
    signatures = {name: read_signature(text) for name, text in stored.items()}
    definitions = json.loads(stored["count"])["parameters"]["$defs"]
    assert definitions.keys() == {"Line", "Sample"}
    assert {name: s and s.misfit({"line": {}, "x": "many"}) for name, s in signatures.items()} == {
        "count": "",
        "note": "line: expected a whole number",
        "keep": "",
    }


@pytest.mark.parametrize("levels", [200, 1_100, 100_000])
@pytest.mark.parametrize("kind", [Any, list[Any]])
def test_a_value_that_no_runner_could_read_again_is_refused(kind: Any, levels: int) -> None:
    def nested(value: Any) -> None: ...

    nested.__annotations__["value"] = kind
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    signature = Signature("test.nested", nested)
    with pytest.raises(InvalidPayload, match="it is nested too deeply"):
        signature.encode((value,), {})


def test_a_list_that_contains_itself_is_refused() -> None:
    def nested(value: Any) -> None: ...

    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidPayload, match="it is nested too deeply"):
        Signature("test.nested", nested).encode((value,), {})


def test_a_wide_value_is_not_taken_for_a_deep_one() -> None:
    def wide(value: list[Any]) -> None: ...

    signature = Signature("test.wide", wide)
    assert signature.decode(signature.encode(([[]] * 500,), {}))["value"] == [[]] * 500

"""ChunkSignature: the arguments of one task of a chunk handler, which are the fields of a data class or a model."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from runner.errors import InvalidHandler, InvalidPayload
from runner.handlers.signature import Returned, Signature


class ChunkSignature(Signature):
    """The parameters of one task of a chunk handler.

    Args:
        name: handler name, for messages.
        payload_type: the class of the arguments.

    Raises:
        InvalidHandler: the class has no named fields.
    """

    def __init__(self, name: str, payload_type: Any) -> None:
        is_class = isinstance(payload_type, type)
        if not is_class or not (is_dataclass(payload_type) or issubclass(payload_type, BaseModel)):
            found = payload_type.__qualname__ if is_class else str(payload_type)
            why = f"its Chunk has tasks of type {found}: use a data class or a pydantic model with the arguments"
            raise InvalidHandler(name=name, why=why)
        super().__init__(name, payload_type)
        self._type: type[Any] = payload_type

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Validate the arguments of a task, an object or its fields by name, and write them as a JSON object.

        Raises:
            InvalidPayload: arguments do not match; the message names them without their values.
        """
        if args:
            if len(args) > 1 or kwargs or not isinstance(args[0], self._type):
                why = f"pass one object of {self._type.__qualname__}, or its fields by name"
                raise InvalidPayload(handler=self.name, why=why)
            kwargs = self._fields(args[0])
        return super().encode((), kwargs)

    def read(self, payload: str) -> Any:
        """Read a payload into the object of one task.

        Raises:
            InvalidPayload: as for `encode`.
        """
        values = self.decode(payload)
        try:
            return self._type(**values)
        except ValidationError as error:
            raise self._invalid(error) from None

    def arguments(self, payload: str) -> dict[str, Any]:
        """Read a payload into all fields of its object, including defaults.

        Raises:
            InvalidPayload: as for `encode`.
        """
        return self._fields(self.read(payload))

    def _fields(self, item: Any) -> dict[str, Any]:
        if isinstance(item, BaseModel):
            return item.model_dump(by_alias=True)
        return {name: getattr(item, name) for name in self._calling.parameters}


def chunk_result(result: Any) -> Returned:
    """Return the type of the results of the tasks of a chunk handler.

    Args:
        result: the second type of its Chunk.
    """

    def task() -> None: ...

    task.__annotations__ = {"return": result}
    return Returned(task)

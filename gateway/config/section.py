"""The base of every section of the file: a frozen struct that rejects unknown settings and hides credentials."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, ClassVar

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]
SecondsOrNone = Annotated[float, msgspec.Meta(ge=0, le=86_400)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Rate = Annotated[int, msgspec.Meta(ge=1, le=100_000)]


class WrongSetting(ValueError):
    """What is wrong with a setting below the section that is checked: `key_path` leads to it from there."""

    def __init__(self, key_path: tuple[str | int, ...], text: str) -> None:
        super().__init__(text)
        self.key_path = key_path


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the file. Its `repr` shows `...` in place of the settings that `hidden` names."""

    hidden: ClassVar[frozenset[str]] = frozenset()

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, "..." if name in self.hidden else getattr(self, name)) for name in self.__struct_fields__]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


def is_amount(value: Decimal, maximum: int) -> bool:
    """Return whether a number is an amount of money or a price, from 0 to `maximum`: it is exact in micros."""
    return value.is_finite() and 0 <= value <= maximum and value == round(value, 6)

"""A row of the ledger."""

from __future__ import annotations

import msgspec

from linattest.verify.claims.verdicts import Word

HERE = "linattest.verify.claims."
"""Prefix of a check without a dot in its module: "ccq_reads:cost" is linattest.verify.claims.ccq_reads:cost."""


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim as the ledger has it. Of a user's: ``ledger`` is its file, ``home`` the folder that has its check."""

    id: str
    statement: str
    expected: Word
    where: str = ""
    scope: str = ""
    check: str | None = None
    figure: str | None = None
    reason: str | None = None
    sources: tuple[str, ...] = ()
    files: dict[str, str] = {}
    without: dict[str, Word] = {}
    paper: str = ""
    home: str | None = None
    ledger: str = ""

    def __post_init__(self) -> None:
        for name in ("id", "statement"):
            if not getattr(self, name).strip():
                raise ValueError(f"{name} is empty")
        if (self.check is None) == (self.reason is None):
            raise ValueError(f"check={self.check!r} and reason={self.reason!r}, expected exactly one")
        for name in ("check", "figure"):
            if getattr(self, name) is not None and getattr(self, name).count(":") != 1:
                raise ValueError(f"{name}={getattr(self, name)!r}, expected 'module:function'")

    @property
    def function(self) -> tuple[str, str]:
        """Module and name of the check."""
        return self.names(self.check or ":")

    def names(self, text: str) -> tuple[str, str]:
        """Module and name of the function that a field means."""
        module, _, name = text.partition(":")
        return (module if "." in module or self.home is not None else HERE + module), name

"""What a person sees on a terminal: as much of one as rich, Faust's spinner and log lines use."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")


class Screen:
    """Lines of text, and where the cursor is; endless downwards, so that nothing scrolls away."""

    def __init__(self, width: int = 80) -> None:
        self.lines: list[str] = [""]
        self.codes: set[str] = set()
        self._width = width
        self._row = self._column = 0

    def feed(self, text: str) -> Screen:
        """Show what a program writes."""
        at = 0
        while at < len(text):
            found = _CONTROL.match(text, at)
            if found is not None:
                self._control(*found.groups())
                at = found.end()
            else:
                self._write(text[at])
                at += 1
        return self

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(line.rstrip() for line in self.lines)

    def _control(self, arguments: str, command: str) -> None:
        count = int(arguments) if arguments.isdigit() else 1
        if command == "A":
            self._row = max(0, self._row - count)
        elif command == "K":
            line = self.lines[self._row]
            self.lines[self._row] = "" if arguments == "2" else line[: self._column]
        elif command == "m":
            self.codes.update(arguments.split(";"))

    def _write(self, character: str) -> None:
        if character == "\n":
            self._row, self._column = self._row + 1, 0
        elif character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)
        else:
            if self._column == self._width:
                self._write("\n")
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
            self._column += 1
        while self._row >= len(self.lines):
            self.lines.append("")

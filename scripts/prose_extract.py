# SPDX-License-Identifier: Apache-2.0
"""Extracts prose from a source tree: comments, the sentences of Markdown pages, and messages.

A run of full-line comments is one comment. A message is what one C++ or TypeScript statement passes
in string literals to a user: a Status, a log line, a help text.
"""

import pathlib
import re
import typing


class Passage(typing.NamedTuple):
    """One comment, sentence or message, with its source line."""

    line: int
    text: str


# Each pattern matches the tokens of a language that matter here. The first character of a match
# identifies its kind, so the patterns need no groups, which make the search ten times as slow.
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_QUOTED = r"'(?:[^'\\\n]|\\.)*'"
_SLASH = r"//[^\n]*|/\*.*?\*/|" + _STRING
CPP = re.compile(
    _SLASH + r"|'(?:[^'\\\n]|\\[^'\n]{1,8}|\\')'" + r'|R"([^(\s]{0,16})\(.*?\)\1"', re.DOTALL
)
SCRIPT = re.compile(_SLASH + "|" + _QUOTED + r"|`(?:[^`\\]|\\.)*`", re.DOTALL)
CSS = re.compile(r"/\*.*?\*/", re.DOTALL)
PYTHON = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""|\'\'\'.*?\'\'\'|#[^\n]*|' + _STRING + "|" + _QUOTED, re.DOTALL
)
CMAKE = re.compile(r'"(?:[^"\\]|\\.)*"|#\[(=*)\[.*?\]\1\]|#[^\n]*', re.DOTALL)
SHELL = re.compile(r"'[^'\n]*'|(?<!\S)#[^\n]*|" + _STRING)

GRAMMARS = {
    ".h": CPP,
    ".cpp": CPP,
    ".hpp": CPP,
    ".cc": CPP,
    ".c": CPP,
    ".cu": CPP,
    ".cuh": CPP,
    ".proto": CPP,
    ".ts": SCRIPT,
    ".js": SCRIPT,
    ".mjs": SCRIPT,
    ".css": CSS,
    ".py": PYTHON,
    ".sh": SHELL,
    ".cmake": CMAKE,
}
NAMED_GRAMMARS = {"CMakeLists.txt": CMAKE, "Makefile": SHELL}

NOISE = re.compile(
    r"SPDX-License-Identifier|\bNOLINT|clang-format (on|off)|^\s*namespace\b|eslint-|^!|"
    r"shellcheck |Copyright|type: ignore|noqa|^\s*@(ts|file)"
)
OPENING = re.compile(r'^\s*(?:///?[/!<]*|/\*+!?|\*+(?!/)|#+(?:\[=*\[)?|""")[ \t]?')
CLOSING = re.compile(r'\s*(?:\*+/|"""|\]=*\])\s*$')


def grammar(name: str) -> re.Pattern | None:
    """Returns the pattern of a file type, or None for a type without known comments."""
    path = pathlib.PurePosixPath(name)
    return NAMED_GRAMMARS.get(path.name) or GRAMMARS.get(path.suffix)


def plain(comment: str) -> str:
    """Returns the text of a comment without its marks, on one line."""
    lines = [OPENING.sub("", line) for line in CLOSING.sub("", comment).split("\n")]
    return " ".join(" ".join(line for line in lines if not NOISE.search(line)).split())


class _Lines:
    """Turns growing offsets into line numbers."""

    def __init__(self, text: str):
        self.text, self.offset, self.line = text, 0, 1

    def at(self, offset: int) -> int:
        self.line += self.text.count("\n", self.offset, offset)
        self.offset = offset
        return self.line


ESCAPE = re.compile(r"\\(?:[nrt]|x[0-9a-fA-F]+|u[0-9a-fA-F]{4}|.)")
STATEMENT_END = re.compile(r"[;{}]")
QUERY = re.compile(
    r"^\s*(SELECT|INSERT|UPDATE \w+ SET|DELETE|CREATE|PRAGMA|ALTER|DROP|BEGIN|COMMIT|"
    r"WITH|REPLACE)\b"
)


class _Reader:
    """Groups the tokens of one file into comments and messages."""

    def __init__(self, text: str):
        self.text, self.lines = text, _Lines(text)
        self.comments: list[Passage] = []
        self.messages: list[Passage] = []
        self.run: list[str] = []  # The // lines of the comment that is being read.
        self.run_line = self.run_last = self.run_column = -1
        self.pieces: list[str] = []  # The literals of the statement that is being read.
        self.pieces_line = self.pieces_end = -1

    def block(self, begin: int, token: str):
        self.end_run()
        self.comments.append(Passage(self.lines.at(begin), plain(token)))

    def line(self, begin: int, token: str):
        line = self.lines.at(begin)
        start = self.text.rfind("\n", 0, begin) + 1
        alone = not self.text[start:begin].strip()
        if not (
            self.run and alone and line == self.run_last + 1 and begin - start == self.run_column
        ):
            self.end_run()
            self.run_line = line
        self.run.append(token)
        self.run_last, self.run_column = line, begin - start

    def end_run(self):
        if self.run:
            self.comments.append(Passage(self.run_line, plain("\n".join(self.run))))
            self.run = []

    def literal(self, begin: int, end: int, content: str):
        between = self.text[self.pieces_end : begin]
        if self.pieces and STATEMENT_END.search(between):
            self.end_statement()
        if not self.pieces:
            self.pieces_line = self.lines.at(begin)
        elif between.strip():
            self.pieces.append(" {} ")
        self.pieces.append(ESCAPE.sub(" ", content))
        self.pieces_end = end

    def end_statement(self):
        if self.pieces:
            self.messages.append(Passage(self.pieces_line, " ".join("".join(self.pieces).split())))
            self.pieces = []

    def finish(self) -> tuple[list[Passage], list[Passage]]:
        self.end_run()
        self.end_statement()
        return (
            [comment for comment in self.comments if comment.text],
            [message for message in self.messages if not QUERY.match(message.text)],
        )


def source(name: str, text: str) -> tuple[list[Passage], list[Passage]]:
    """Returns the comments and the messages of a source file."""
    pattern = grammar(name)
    if pattern is None:
        return [], []
    reader = _Reader(text)
    has_messages = pattern in (CPP, SCRIPT)
    for match in pattern.finditer(text):
        begin, token = match.start(), match.group()
        first = token[0]
        if token.startswith(("/*", "#[")):
            reader.block(begin, token)
        elif first == "/":
            reader.line(begin, token)
        elif first == "#":
            reader.line(begin, token)
        elif token.startswith('"""'):
            if not text[text.rfind("\n", 0, begin) + 1 : begin].strip():
                reader.block(begin, token)
        elif has_messages and (first == '"' or pattern is SCRIPT):
            reader.literal(begin, match.end(), token[1:-1])
    return reader.finish()


FENCE = re.compile(r"^\s*(```|~~~)")
ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
SENTENCE = re.compile(r"(?<=[.!?])[)\"*_]*\s+(?=[A-Z`*\[(\"])")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def split(text: str, line: int) -> list[Passage]:
    """Returns the sentences of a text that starts in a line."""
    found, begin = [], 0
    ends = [match.end() for match in SENTENCE.finditer(text)]
    for end in ends + [len(text)]:
        sentence = " ".join(text[begin:end].split())
        if sentence:
            found.append(Passage(line + text.count("\n", 0, begin), sentence))
        begin = end
    return found


def sentences(text: str) -> list[Passage]:
    """Returns the sentences of a Markdown page: paragraphs, items, headings and table cells."""
    found: list[Passage] = []
    block: list[str] = []
    start, fenced = 0, False
    for number, line in enumerate(text.split("\n") + [""], 1):
        fence = FENCE.match(line)
        bare = LINK.sub(r"\1", line).strip()
        if fence or not bare or bare.startswith(("#", "|", "<")) or ITEM.match(line):
            found += split("\n".join(block), start)
            block = []
        if fence:
            fenced = not fenced
        elif fenced or not bare or bare.startswith("<"):
            continue
        elif bare.startswith("|"):
            found += [
                sentence for cell in bare.strip("|").split("|") for sentence in split(cell, number)
            ]
        elif bare.startswith("#"):
            found.append(Passage(number, bare))
        else:
            start = start if block else number
            block.append(ITEM.sub("", bare))
    return found

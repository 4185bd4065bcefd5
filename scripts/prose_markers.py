# SPDX-License-Identifier: Apache-2.0
"""The markers of mannered English that prose.py counts, each with what to write instead.

A marker is an idiom, not an error, and each is rare in native technical prose: together they flag
0.8 % of the comments of Boost, Protobuf, GoogleTest, spdlog and libstdc++. Measure a new one there
first: prose.py --sample /usr/include/boost.
"""

import re
import typing


class Marker(typing.NamedTuple):
    """An expression to look for, and the advice for it.

    Only passages with one of the words in `words` are searched. A marker `at_start` applies to the
    first words of a comment or message, and of a sentence in a page.
    """

    name: str
    words: frozenset
    pattern: re.Pattern
    hint: str
    at_start: bool


def _marker(name: str, words: str, pattern: str, hint: str, at_start: bool = False) -> Marker:
    flags = 0 if at_start else re.IGNORECASE
    return Marker(name, frozenset(words.split()), re.compile(pattern, flags), hint, at_start)


_ABSENT = r"(?:0|-1|zero|null|nullptr|empty|none|false|absent|unset|negative|NaN|nullopt)"

MARKERS = [
    _marker(
        "clause as a title",
        "what which how where whether who",
        r"(?:What|Which|How|Where|Whether|Who)\b(?! (?:not|about|if|follows|to|do|does|is this)\b)"
        r"(?![^.]*\?)(?!(?<=Where)[^.:;]*,)",
        "start with a noun or a verb: 'Counters of one pass', 'Returns the ...', 'True if ...'",
        True,
    ),
    _marker(
        "'Of' without its noun",
        "of",
        r"Of\b(?! course)",
        "name the noun: 'Size of ...', 'Number of ...', 'Applies to ...'",
        True,
    ),
    _marker(
        "'0: none' shorthand",
        "0 1 zero null nullptr empty none false absent unset negative nan nullopt",
        rf"(?:^|[;,.(] ?){_ABSENT}(?: [a-z`_]+){{0,3}}: (?!`?(?:0|1|true|false)\b)[a-z]",
        "write the clause: 'Zero disables ...', 'If null, ...'; or use std::optional",
    ),
    _marker(
        "things that say",
        "say says said",
        "".join(
            rf"(?<!{word} )"
            for word in ("standard", "spec", "documentation", "docs", "page", "md", ",", "to")
        )
        + r"\b(?:says?|said)\b(?! to be)",
        "report, record, state, specify, describe",
    ),
    _marker(
        "things that tell",
        "tell tells told",
        r"\b(?:tells?|told)\b(?! (?:you|us|ASan|the compiler|the linker|the user|if|whether))",
        "report, notify, distinguish; 'is passed'",
    ),
    _marker(
        "things that hear",
        "hear hears heard speak speaks spoke",
        r"\b(?:hears?|heard|speaks?|spoke)\b",
        "receive, represent, report",
    ),
    _marker(
        "'knows nothing'",
        "know knows knew",
        r"\bno longer know|\bknow[s]? (?:nothing|of|no|none)\b|\bknew (?:nothing|of|no)\b",
        "has no information about; is not registered",
    ),
    _marker(
        "nobody",
        "nobody anybody somebody everybody",
        r"\b(?:nobody|anybody|somebody|everybody)\b",
        "name the actor: 'no caller', 'no rank', 'any thread'",
    ),
    _marker(
        "whoever",
        "whoever whomever",
        r"\b(?:whoever|whomever)\b",
        "name the actor: 'the caller', 'the first rank to arrive'",
    ),
    _marker(
        "lies",
        "lies lie lay lain lying",
        r"\b(?:lies|lain|lying in)\b(?! (?:in [\[(]|between))"
        r"|\blie (?:in(?! [\[(])|on|at|behind|beside|between|within|outside)\b"
        r"|\b(?:must|may|can|they) lie\b",
        "is, is stored in; 'must be between 8 and 256'",
    ),
    _marker(
        "stands",
        "stand stands stood",
        r"\b(?:stands?|stood)\b(?! (?:for|out|alone|in for)|-)(?!-)",
        "is, is written, remains valid",
    ),
    _marker(
        "goes on",
        "go goes going gone went",
        r"\b(?:go|goes|going|gone|went) (?:on|home)\b(?! to\b)",
        "continue, proceed",
    ),
    _marker(
        "comes home",
        "come comes came coming",
        r"\b(?:come|comes|came|coming) (?:home|along|out (?:as|of))\b",
        "return, restore, is reduced to, accompany",
    ),
    _marker(
        "of its own",
        "own",
        r"\bof (?:its|their|his|our|one's) own\b|\bis (?:its|the \w+'s) own\b(?=[ .,;]?$|[.,;])",
        "'its own buffer', 'a separate file', 'owned by'",
    ),
    _marker(
        "is none",
        "none",
        r"(?<!there )(?<!seems to )\b(?:is|are|was|were|be) none\b(?=[.,;:)]|$| of\b)"
        r"|(?:where|and|or|but|whether|without rows) there (?:is|are) none\b",
        "'is not a ...', 'does not exist', 'has no ...'",
    ),
    _marker(
        "is no X",
        "no",
        r"(?<!there )(?<!this )\b(?:is|are|was|were) no (?!longer|more|less|such|need|guarantee|"
        r"way|point|different|op\b|one\b|good|fewer|other|better|use|problem|more)[a-z]",
        "'is not a ...'",
    ),
    _marker(
        "worked out",
        "work works worked working reckon reckons reckoned",
        r"\b(?:works?|worked|working) out\b|\breckon\w*",
        "compute, derive, determine",
    ),
    _marker(
        "spent",
        "spend spends spent",
        r"\b(?:spent|spends)\b(?! (?:in|on|by|wait|doing))",
        "clobber, overwrite, consume, exhausted",
    ),
    _marker("mend", "mend mends mended mending", r"\bmend(?:s|ed|ing)?\b", "fix, repair, correct"),
    _marker(
        "foreign",
        "foreign",
        r"\bforeign\b(?! (?:keys?|function|exception|language))",
        "remote, unknown, from another rank",
    ),
    _marker(
        "the same for",
        "same",
        r"The same (?:for|of|as|in|with|on|by|over|from)\b",
        "write the sentence: 'Like ..., but for ...'",
        True,
    ),
    _marker(
        "clause as an object",
        "what",
        r"\bwhat of\b|^`?[\w./<>-]{1,60}: what (?!(?:if|about|not|kind|type|to)\b)",
        "a noun: 'the part of ... that', 'the remainder', 'contents of one cell'",
    ),
    _marker(
        "nothing of",
        "nothing",
        r"\bnothing of\b|\bnothing is (?:said|told|known|asked)\b",
        "'none of the ...', 'keeps no ...'",
    ),
    _marker(
        "ours, theirs",
        "ours theirs",
        r"(?<!of )\b(?:ours|theirs)\b",
        "this rank's, the caller's, muster's",
    ),
    _marker(
        "on its way",
        "way",
        r"\bon (?:its|the|their) way\b(?! (?:to be|out))",
        "in flight, in transit, pending",
    ),
]

_BY_WORD: dict[str, list[int]] = {}
for _index, _entry in enumerate(MARKERS):
    for _word in _entry.words:
        _BY_WORD.setdefault(_word, []).append(_index)
_WORD = re.compile(r"[a-z]+|\d+")
_CODE = re.compile(r"`[^`]*`")


def find(text: str, at_start: bool = True) -> list[tuple[Marker, str]]:
    """Returns the markers in a passage and the words that matched; skips code in backticks."""
    prose = _CODE.sub("`x`", text)
    wanted = {
        index
        for word in set(_WORD.findall(prose.lower()))
        if word in _BY_WORD
        for index in _BY_WORD[word]
    }
    found = []
    for index in sorted(wanted):
        marker = MARKERS[index]
        if marker.at_start:
            match = marker.pattern.match(prose) if at_start else None
        else:
            match = marker.pattern.search(prose)
        if match:
            found.append((marker, match.group().strip(" ;,.(")))
    return found

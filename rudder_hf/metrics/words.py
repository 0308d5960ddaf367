"""Words of answers as the published CHAIR programs see them, and fluency: a hallucination score can be bought with
broken text, so this stands beside it in every table.

Those programs cut lower-cased text with nltk (3.9.2: a trained Punkt model for sentences, Treebank words within) and
then bring each word to its singular. This module does the same without nltk and without its data:

- `sentences`: a full stop, question or exclamation mark ends a sentence if space or closing punctuation follows,
  unless the word before it is a known abbreviation ("p.m."), a single letter ("b.") or a number ("1.") in front
  of a lower-case word, or an ellipsis. On lower-case text nothing else of the trained model can take effect,
  except for four words listed below.
- `words`: punctuation marks are words; "dog's" becomes `dog`, `'s`; "hot-dog", "a/b" and "people—two" stay whole;
  only the last full stop of a sentence is cut off, so "u.s." within one stays whole.
- `singular`: by its ending, with the oddities of the original (`bus` becomes `bu`, `ties` becomes `ty`). It equals
  CLiPS pattern's wherever either result names an object; elsewhere results may differ and cannot matter.

Input of these has to be lower-case. Fluency is counted by:

- `repetition`: shares of distinct word sequences, and of sentences that an answer has already said. Both are taken
  within each answer and summed over answers, so that saying the same about two images is no repetition.
- `broken`: sentences of scene captions that the scenes' grammar cannot produce.

What the unsteered model thinks of an answer needs the model: `rudder_hf.runtime.answers.log_likelihoods`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from ..scenes.captions import broken_sentences, scene_sentences
from .statistics import Counts, Metric, share

_FILE = Path(__file__).parent / "data" / "abbreviations.json"
# Abbreviations after which a full stop ends no sentence; the spaced ellipsis is one of them.
_ABBREVIATIONS = {*json.loads(_FILE.read_text(encoding="utf-8"))["abbreviations"], ". . "}
_CLOSING = r"""[)";}\]*:@'({\[?!]"""
_SENTENCE_END = re.compile(rf"[.?!](?=(?P<after>{_CLOSING}|\s+(?P<next>\S+)))")
_DOTS = r"(?:-{2,}|\.{2,}|(?:\.\s){2,}\.)"
_WORD_END = rf"(?=\s|$|{_CLOSING}|{_DOTS}|,(?:$|\s|{_CLOSING}|{_DOTS}))"
_PIECE = re.compile(rf"{_DOTS}|[^\s(\"`{{\[:;&#*@)}}\]\-,]\S*?{_WORD_END}|\S")
_NUMBER = re.compile(r"-?[.,]?\d[\d,.-]*\.?$")
_LETTER = re.compile(r"[^\W\d]\.$")
_TRAILING = re.compile(r"""["')\]}]+?(?:\s+|(?=--)|$)""", re.MULTILINE)
# The only words that the trained model has met at the start of a sentence in lower case and never with a capital.
_LOWER_STARTERS = frozenset({"administrators", "b-week", "r-revised", "z-holiday"})


def _is_abbreviation(piece: str) -> bool:
    stem = piece[:-1]
    return stem in _ABBREVIATIONS or stem.rsplit("-", 1)[-1] in _ABBREVIATIONS


def _breaks(piece: str) -> bool:
    """Whether a piece ends a sentence by itself, whatever follows."""
    if piece in (".", "?", "!"):
        return True
    return piece.endswith(".") and not piece.endswith("..") and not _is_abbreviation(piece)


def _continues(piece: str, following: str) -> bool:
    """Whether a letter or number with a full stop belongs to what follows, as in "b. the" and "1. the"."""
    if not (_LETTER.match(piece) or _NUMBER.match(piece)):
        return False
    if following in (";", ":", ",", ".", "!", "?"):
        return True
    kind = following[:-1] if len(following) > 1 and _breaks(following) and following[-1] == "." else following
    return following[0].islower() and kind not in _LOWER_STARTERS


def _holds_a_break(context: str) -> bool:
    pieces = [piece for line in context.split("\n") for piece in _PIECE.findall(line)]
    return any(_breaks(piece) and not _continues(piece, after) for piece, after in pairwise(pieces))


def _last_ascii_space(text: str) -> int:
    return max(text.rfind(space) for space in " \t\n\r\x0b\x0c")


def _candidates(text: str) -> list[tuple[re.Match[str], str]]:
    """Possible ends of sentences with the word before and what follows; of several within one word, the last."""
    found: list[tuple[re.Match[str], str]] = []
    start = stop = 0
    for match in _SENTENCE_END.finditer(text):
        space = _last_ascii_space(text[stop : match.start()])
        begin = stop + space + 1 if space > 0 else start
        if found and stop > begin:
            found.pop()
        start, stop = begin, match.start()
        found.append((match, text[start:stop] + match.group() + match["after"]))
    return found


def sentences(text: str) -> list[str]:
    """The sentences of lower-case text, closing quotes and brackets with the sentence that they close."""
    spans, last = [], 0
    for match, context in _candidates(text):
        if _holds_a_break(context):
            spans.append((last, match.end()))
            last = match.start("next") if match["next"] else match.end()
    spans.append((last, len(text.rstrip())))
    result, moved = [], 0
    for (start, stop), following in zip(spans, [*spans[1:], None], strict=True):
        start += moved
        trailing = _TRAILING.match(text[slice(*following)]) if following else None
        if following and trailing:
            stop, moved = following[0] + len(trailing.group().rstrip()), trailing.end()
            result.append(text[start:stop])
        else:
            moved = 0
            if text[start:stop]:
                result.append(text[start:stop])
    return result


_LAST_STOP = re.compile(r"""(?<=[^.])\.(?=[\])}>"'»”\u2019 ]*\s*$)""")
_BEFORE_NO_DIGIT = re.compile(r"([:,])(\D)")
_MARKS = re.compile(r"[;@#$%&?!]|\.{2,}")
_LONE_QUOTE = re.compile(r"(?<=[^'])' ")
_BRACKETS = re.compile(r"[*\[\](){}<>]|--")
_OPENING_MARK = re.compile(r"[«“\u2018„]|`+")
_OPENING_QUOTE = re.compile(r"""(?<=[ (\[{<])(?:"|'')""")
_QUOTED_LETTER = re.compile(r"'(?=[^\Wmtsdn]\b)")
_CLITIC = re.compile(r"(?<=[^' ])('[smd]?) ")
_LONG_CLITIC = re.compile(r"(?<=[^' ])('ll|'re|'ve|n't) ")
_RUN_TOGETHER = re.compile(
    r"\b(?:(can)(not)|(d)('ye)|(gim|lem)(me)|(gon)(na)|(got)(ta)|(more)('n))\b|\b(wan)(na)(?=\s)"
)
_OLD_CLITICS = (re.compile(r" 't(is)\b"), re.compile(r" 't(was)\b"))


def _words_of_sentence(text: str) -> list[str]:
    text = _OPENING_MARK.sub(lambda m: f" {m.group().replace('``', ' `` ')} ", text)
    if text.startswith('"'):
        text = " `` " + text[1:]
    text = _QUOTED_LETTER.sub("' ", _OPENING_QUOTE.sub(" `` ", text))
    text = _BEFORE_NO_DIGIT.sub(r" \1 \2", _LAST_STOP.sub(" . ", text, count=1))
    if text.endswith((":", ",")):
        text = f"{text[:-1]} {text[-1]}"
    text = _BRACKETS.sub(r" \g<0> ", _LONE_QUOTE.sub(" ' ", _MARKS.sub(r" \g<0> ", text)))
    for mark in "»”\u2019":
        text = text.replace(mark, f" {mark} ")
    text = f" {text} ".replace("''", " '' ").replace('"', " '' ")
    text = " ".join(text.split())
    text = _LONG_CLITIC.sub(r" \1 ", _CLITIC.sub(r" \1 ", f" {text} "))
    text = _RUN_TOGETHER.sub(lambda m: " " + " ".join(part for part in m.groups() if part) + " ", text)
    for clitic in _OLD_CLITICS:
        text = clitic.sub(r" 't \1 ", text)
    return text.split()


def words(text: str) -> list[str]:
    """The words of lower-case text, punctuation marks included."""
    return [word for sentence in sentences(text) for word in _words_of_sentence(sentence)]


_IRREGULAR = {"children": "child", "people": "person", "geese": "goose", "oxen": "ox", "kine": "cow", "men": "man"}
_VOWELS = "aeiouy"


@lru_cache(maxsize=20_000)
def singular(word: str) -> str:
    """The singular of a lower-case word, judged by its ending alone, as the original metric does it."""
    for plural, one in _IRREGULAR.items():
        if word.endswith(plural):
            return word[: -len(plural)] + one
    if word.endswith("ae") and len(word) > 2:
        return word[:-1]
    if word.startswith("oxen"):
        return "ox" + word[4:]
    if word.endswith(("mice", "lice")):
        return word[:-3] + "ouse"
    if not word.endswith("s") or word == "scissors" or word.endswith(("doggies", "collies")):
        return word
    if word.endswith("ies") and (word[-4:-3] not in _VOWELS or word[-5:-3] == "qu"):
        return word[:-3] + "y"
    if word.endswith("lves"):
        return word[:-3] + "f"
    if word.endswith(("nives", "lives", "wives")):
        return word[:-3] + "fe"
    if word.endswith(("xes", "ches", "sses", "shes", "buses")):
        return word[:-2]
    if word.endswith("oes") and not word.endswith("shoes"):
        return word[:-2]
    return word[:-1]


# Fluency

SIZES = (1, 2, 3)

FLUENCY_METRICS: tuple[Metric, ...] = (
    *(Metric(f"distinct_{n}", f"Distinct-{n}", share(f"distinct_{n}", f"sequences_{n}"), True) for n in SIZES),
    Metric("repeated_sentences", "Repeated sentences", share("repeated_sentences", "sentences"), False),
    Metric("empty", "Empty", share("empty", "answers"), False),
)
BROKEN_METRICS: tuple[Metric, ...] = (
    Metric("broken_sentences", "Broken sentences", share("broken_sentences", "scene_sentences"), False),
)


def repetition(answers: Sequence[str], ids: Sequence[str]) -> Counts:
    """Count word sequences and sentences of each answer, for `FLUENCY_METRICS`; case and punctuation are ignored."""
    rows = []
    for answer in answers:
        text = answer.lower()
        plain = [word for word in words(text) if any(letter.isalnum() for letter in word)]
        said = [" ".join(sentence.split()) for sentence in sentences(text) if sentence.strip()]
        row: list[int] = [1, not answer.strip(), len(said), len(said) - len(set(said))]
        for size in SIZES:
            runs = list(zip(*(plain[start:] for start in range(size)), strict=False))
            row += [len(runs), len(set(runs))]
        rows.append(row)
    sequences = (name for size in SIZES for name in (f"sequences_{size}", f"distinct_{size}"))
    return _row_counts(ids, ("answers", "empty", "sentences", "repeated_sentences", *sequences), rows)


def broken(answers: Sequence[str], ids: Sequence[str]) -> Counts:
    """Count the sentences of each answer, and those that no template of the scenes makes, for `BROKEN_METRICS`."""
    return _row_counts(
        ids,
        ("scene_sentences", "broken_sentences"),
        [(len(scene_sentences(answer)), broken_sentences(answer)) for answer in answers],
    )


def _row_counts(ids: Sequence[str], columns: tuple[str, ...], rows: Sequence[Sequence[float]]) -> Counts:
    return Counts(tuple(ids), columns, np.asarray(rows, dtype=np.float64).reshape(len(rows), len(columns)))

"""The training text: what CPython carries with it, so nothing needs to be downloaded.

Two sources:

* *topics*: the language reference as ``help()`` prints it (``pydoc_data.topics``);
* *docstrings* of the standard library, read from its source files with ``ast``. Importing
  the modules instead would run their code and would differ from one platform to another.

The text depends on the Python version; ``fingerprint`` tells two corpora apart.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
from pathlib import Path
from pydoc_data.topics import topics as PYDOC_TOPICS  # noqa: N812

BOS = "<|endoftext|>"

# Directories of the standard library that hold tests, demos, tables or generated code.
SKIPPED = frozenset(
    (
        *("test", "tests", "idle_test", "idlelib", "turtledemo", "lib2to3", "distutils"),
        *("site-packages", "dist-packages", "__pycache__", "pydoc_data", "ensurepip"),
        *("encodings", "__phello__", "pip"),
    )
)

# Typographic characters that cost a byte-level tokenizer three tokens and say nothing more.
PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "..."})

# Two topics describe statements under another heading; give all statements the same one.
TITLES = {"class": "The class statement", "function": "The def statement"}

# Blocks that begin so are tables, rst directives or lists of proposals.
DROPPED = r"\s*(\+[-=]|\||\.\. |[=-]+ [=-]+|\*\*PEP|See also:)"

SHORTEST_TOPIC = 200  # characters
SHORTEST_DOCSTRING = 80  # characters: below this it is a label, not a text
LONG_ENOUGH_TO_REPEAT = 60  # shorter paragraphs ("Example:") may occur again and again


# ---------------------------------------------------------------- cleaning


def plain_markup(text: str) -> str:
    """Remove inline rst markup: ``code``, **strong**, *emphasis*, :role:`target`, "code"."""
    text = re.sub(r":[a-z:]+:`~?([^`]+)`", r"\1", text)
    text = re.sub(r"``([^`\n]+)``", r"\1", text)
    text = re.sub(r"\*\*([^*\n]+)\*\*", r"\1", text)
    text = re.sub(r"(?<![\w*])\*(\w[^*\n]*)\*(?![\w*])", r"\1", text)
    text = re.sub(r'(?<!\w)"([\w.]+(?:\(\))?)"(?!\w)', r"\1", text)  # pydoc writes code "so"
    text = re.sub(r" \[\d+\]", "", text)  # footnote marks
    return re.sub(r"(?<=\S)  +", " ", text)


def is_prose(lines: list[str]) -> bool:
    """Guess whether a block of lines is running text rather than code, a list or a table."""
    first = lines[0].strip()
    if first.startswith((">>>", "...", "@", "#", "+", "|", "=")):
        return False
    bullet = 2 if first.startswith(("* ", "- ")) else 0  # a list item hangs by two columns
    left = len(lines[0]) - len(lines[0].lstrip()) + bullet
    if any(len(line) - len(line.lstrip()) != left for line in lines[1:]):
        return False
    if len(lines) == 1:
        return left == bullet or (first[0].isupper() and first[-1] in ".:")
    return all(len(line) >= 50 for line in lines[:-1])  # filled to the right margin


def is_sentence(paragraph: str) -> bool:
    """Tell English from signatures, tables, options and the like."""
    plain = sum(c.isalpha() or c in " ,." for c in paragraph)
    return (
        paragraph[0].isupper()
        and paragraph[-1] in ".:"
        and paragraph.count(" ") >= 4
        and plain >= 0.9 * len(paragraph)
    )


def unwrap(lines: list[str]) -> str:
    """Join the lines of a paragraph; a word broken at its hyphen becomes whole again."""
    joined = " ".join(line.strip() for line in lines)
    broken = {line.split()[-1] for line in lines[:-1] if re.search(r"\w-$", line)}
    for word in sorted(broken):
        joined = joined.replace(word + " ", word)
    return joined


def tidy(text: str) -> list[str]:
    """Split a documentation text into clean paragraphs.

    Running text is put on one line: the breaks of a filled paragraph carry no meaning and
    are impossible to predict. Code keeps its lines. Underlines, grammar productions,
    tables, rst directives and lists of further reading go.
    """
    paragraphs: list[str] = []
    for block in re.split(r"\n\s*\n", text.expandtabs(4).translate(PLAIN)):
        lines = [line.rstrip() for line in block.split("\n") if line.strip()]
        lines = [line for line in lines if not re.fullmatch(r"\s*([*=~^\"'#+-])\1{2,}", line)]
        if "::=" in block and paragraphs:  # a grammar; what announced it now ends there
            paragraphs[-1] = re.sub(r":$", ".", paragraphs[-1])
        elif lines and not re.match(DROPPED, lines[0]):
            prose = is_prose(lines)
            paragraphs.append(plain_markup(unwrap(lines)) if prose else "\n".join(lines))
    return [re.sub(r"::$", ":", p) for p in paragraphs]


# ---------------------------------------------------------------- documents


def topic_documents() -> list[str]:
    """The topics of ``help()``, one document each, without text that an earlier one had.

    Large topics contain small ones ("types" repeats most of the others), so the small ones
    come first and keep their text. The headings that a large topic leaves empty so go too:
    nothing that fits would follow them.
    """
    seen: set[str] = set()
    titles: set[str] = set()
    documents = []
    for name, text in sorted(PYDOC_TOPICS.items(), key=lambda item: (len(item[1]), item[0])):
        title, *body = tidy(text)
        fresh = [p for p in unseen(body, seen) if p not in titles]
        if sum(len(p) for p in fresh) >= SHORTEST_TOPIC:
            seen.update(fresh)
            titles.add(title)
            documents.append("\n\n".join([TITLES.get(name, title), *fresh]))
    return documents


def unseen(paragraphs: list[str], seen: set[str]) -> list[str]:
    """Leave out the paragraphs in ``seen``, but keep short ones whose neighbour stays.

    Short paragraphs ("for example:") occur again and again and belong to what is around them.
    """
    kept: list[str] = []
    previous_stays = False
    for p in paragraphs:
        short = len(p) < LONG_ENOUGH_TO_REPEAT
        previous_stays = p not in seen or (short and previous_stays)
        if previous_stays:
            kept.append(p)
    return kept


def docstring_documents() -> list[str]:
    """The docstrings of the standard library, one document for each source file.

    Only their English: so small a model has no room for every module's odds and ends, and
    the sentences are what it needs most to spell and to go on when it has not learnt a text.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    seen: set[str] = set()
    documents = []
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        parts = set(path.relative_to(root).with_suffix("").parts)
        if parts & SKIPPED or any(part.startswith("config-") for part in parts):
            continue
        fresh = []
        for text in docstrings(path):
            paragraphs = [p for p in tidy(text) if p not in seen and is_sentence(p)]
            seen.update(paragraphs)
            if sum(len(p) for p in paragraphs) >= SHORTEST_DOCSTRING:
                fresh.extend(paragraphs)
        if fresh:
            documents.append("\n\n".join(fresh))
    return documents


def docstrings(path: Path) -> list[str]:
    """The docstrings in one source file, from top to bottom."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:  # a few files are broken on purpose
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    nodes.sort(key=lambda node: getattr(node, "lineno", 0))
    return [text for node in nodes if (text := ast.get_docstring(node))]


def fingerprint(documents: list[str]) -> str:
    """A short hash that tells whether two corpora are the same."""
    return hashlib.sha256(BOS.join(documents).encode()).hexdigest()[:16]

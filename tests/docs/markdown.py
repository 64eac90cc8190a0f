"""Markdown as far as the checks need it: fenced blocks, links, headings. Code is no text: nothing in it is a link."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*(\S*)")
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^\s)>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
IMAGE_TAG = re.compile(r"<(?:img|a)\b[^>]*?\b(?:src|href)=\"([^\"]+)\"")
MARK = re.compile(r"^<!-- output: (\S+) -->$")


@dataclass(frozen=True, slots=True)
class Block:
    """`mark` is what the comment right before it says it shows."""

    file: str
    line: int
    language: str
    text: str
    mark: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Page:
    file: str
    blocks: tuple[Block, ...]
    prose: tuple[tuple[int, str], ...]

    @classmethod
    def read(cls, file: str, text: str) -> "Page":
        blocks: list[Block] = []
        prose: list[tuple[int, str]] = []
        fence, began, language, body, mark = "", 0, "", [""], ""
        for number, line in enumerate(text.splitlines(), 1):
            found = FENCE.match(line)
            if fence:
                if found and found[1].startswith(fence) and not found[2]:
                    blocks.append(Block(file, began, language, "\n".join(body), mark))
                    fence = mark = ""
                else:
                    body.append(line)
            elif found:
                fence, began, language, body = found[1], number, found[2], []
            else:
                prose.append((number, line))
                mark = said[1] if (said := MARK.match(line)) else ""
        return cls(file, tuple(blocks), tuple(prose))

    def links(self) -> Iterator[tuple[str, str]]:
        """Place and target."""
        for number, line in self.prose:
            text = re.sub(r"`[^`]*`", "", line)
            for target in (*LINK.findall(text), *IMAGE_TAG.findall(line)):
                yield f"{self.file}:{number}", target

    def anchors(self) -> set[str]:
        """As GitHub names headings."""
        seen: Counter[str] = Counter()
        anchors: set[str] = set()
        for _, line in self.prose:
            if heading := re.match(r"^#{1,6}\s+(.*?)\s*#*$", line):
                name = slug(heading[1])
                anchors.add(f"{name}-{seen[name]}" if seen[name] else name)
                seen[name] += 1
            anchors |= set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
        return anchors

    def inline_code(self) -> Iterator[tuple[str, str]]:
        for number, line in self.prose:
            for code in re.findall(r"`([^`]+)`", line):
                yield f"{self.file}:{number}", code


def slug(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def commands(block: Block) -> list[str]:
    """Of a block of `sh` every line, of `console` what stands behind a prompt. A backslash goes on in the next line."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    bare = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in lines)
    return [" ".join(line.split()) for line in bare if line]


def output(block: Block) -> str:
    """What a `console` block shows below its one command."""
    return "\n".join(line for line in block.text.splitlines() if not line.startswith("$ ")).strip()

"""The encoding of columns that the sites of a run have in common, and who differs from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

from .dataset import some
from .meaning import SORTED, Difference, Meaning, digest, is_digests, read, usual
from .scaling import pooled


@dataclass(frozen=True)
class Agreement:
    """The encoding that a run's sites have in common.

    Attributes
    ----------
    text : str
        The text of a `Meaning`, or digests where no site has stated more; empty where none has
        stated anything.
    known : Meaning, optional
        What the text was made of, where that is at hand: it is not read again.
    """

    text: str = ""
    known: Meaning | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, meaning: Meaning) -> Agreement:
        """Return the agreement on an encoding that is at hand."""
        return cls(meaning.text, meaning)

    @cached_property
    def meaning(self) -> Meaning | None:
        """The meaning, None where the text holds digests alone."""
        return self.known or (read(self.text) if self.text else None)

    @cached_property
    def mark(self) -> str:
        """The digest by which messages name it."""
        return digest(self.text)

    def has(self, statement: str) -> bool:
        """Whether a site's statement says that it uses this encoding."""
        if statement == self.text or not statement:
            return True
        return self.meaning is not None and statement == self.meaning.digests

    def unfit(self, statement: str, others: str) -> str:
        """Return in what a site that stated something else differs; ``others`` are these sites.

        An empty text says that it has this encoding, or could be put into its form.
        """
        if self.has(statement):
            return ""
        if is_digests(statement) or self.meaning is None:
            ours, theirs = (_content(one) for one in (statement, self.text))
            if ours == theirs:
                return ""
            return (
                f"has another encoding of its columns ({ours[:8]}) than {others} ({theirs[:8]}): "
                "compare its schema, loss, row-norm, intercept and dtype with theirs"
            )
        meaning = read(statement)
        found = meaning and meaning.difference(self.meaning)
        return found.between("has", others) if found else ""

    def like(self, statements: Mapping[str, str]) -> str:
        """Return how a line names the sites of this encoding, by whose statements they are: "the
        others" where they are all but one, or most, else their names."""
        same = [name for name, text in statements.items() if text and not self.unfit(text, "")]
        few = len(statements) - len(same) > 1 and 2 * len(same) <= len(statements)
        return some(same) if few else "the others"

    def taken_by(self, own: Meaning) -> Meaning | Difference:
        """Return a site's encoding in the form of this one, or in what it differs."""
        if self.meaning is not None:
            found = own.difference(self.meaning)
            return found or own.like(self.meaning)
        content, _, order = self.text.partition(":")
        if content != own.content:
            return Difference(f"an encoding of digest {own.content[:8]}", content[:8])
        return own.in_order() if order == SORTED else own


def _content(statement: str) -> str:
    meaning = read(statement)
    return statement.partition(":")[0] if meaning is None else meaning.content


def agreement(
    statements: Mapping[str, str], leader: str = "", spare: Mapping[str, int] | None = None
) -> Agreement:
    """Return the encoding that sites, by name, are to have in common.

    It is the ``leader``'s, such as a coordinator's with data of its own, else that of most sites,
    in the order of most of these: of several with as many, that of the first name. A column whose
    categories no schema states has those of the site that has most, where the others' are among
    them. Scaling that sites read from their own rows becomes that of all rows together.

    ``spare`` gives by site how many parameters the starting model has more than its own. Categories
    for which most sites' models leave no room are not taken: one site cannot make the others' model
    longer than the run's.

    Raises
    ------
    ValueError
        For a statement that is none.
    """
    stated = {name: text for name, text in statements.items() if text}
    if not stated and not leader:
        return Agreement()
    texts = [leader, *stated.values()] if leader else list(stated.values())
    first = read(texts[0])
    # The sums over a site's own rows serve the pooled scaling alone: no other site is sent them.
    if all(text == texts[0] for text in texts) and not (first and first.rows):
        return Agreement(texts[0])
    if first is not None and first.open:
        every = [one for text in texts if (one := read(text)) is not None]
        return Agreement.of(Meaning.described(every))
    room = None if spare is None else _room(stated, spare)
    chosen = (read(leader) or leader) if leader else _of_most(stated, room)
    if isinstance(chosen, str):
        orders = {text for text in texts if _content(text) == _content(chosen)}
        return Agreement(chosen if len(orders) == 1 else f"{_content(chosen)}:{SORTED}")
    read_ones = [one for text in stated.values() if (one := read(text)) is not None]
    base = reduce(Meaning.with_booleans, read_ones, chosen)
    like = [one for one in read_ones if one.difference(base) is None]
    if any(one.rows for one in like):
        base = replace(base.without_rows(), scale=pooled(base, like))
    return Agreement.of(base)


def categories_alone(sites: Mapping[str, Meaning]) -> list[str]:
    """Return a line on each column of which a single site has categories, by name of the site, that
    the others do not have. Those of a schema are no site's own."""
    lines = []
    for name in dict.fromkeys(
        name
        for site in sites.values()
        for name, facts in site.columns.items()
        if "categories" in facts
    ):
        columns = {site: one.columns.get(name, {}) for site, one in sites.items()}
        if len(sites) < 2 or any(facts.get("stated") for facts in columns.values()):
            continue
        own = {site: facts.get("categories", ()) for site, facts in columns.items()}
        having = Counter(text for texts in own.values() for text in texts)
        for site, texts in own.items():
            if alone := [text for text in texts if having[text] == 1]:
                lines.append(f"column {name}: {some(alone)} in {site!r}")
    return lines


def _room(stated: Mapping[str, str], spare: Mapping[str, int]) -> float:
    """Return the number of categories, of all columns, for which the starting model has room.

    That is what most sites' encodings and models say; infinite where none can be read.
    """
    rooms = Counter[float]()
    for name, text in stated.items():
        if (meaning := read(text)) is not None:
            rooms[meaning.num_categories + spare[name] / meaning.num_vectors] += 1
    return rooms.most_common(1)[0][0] if rooms else math.inf


def _of_most(stated: Mapping[str, str], room: float | None = None) -> Meaning | str:
    """Return the encoding of most sites, with the categories of those of them that have more; its
    digests where none of these has stated more.

    Only where there is ``room`` for so many, or as many as wanted (None).
    """
    most = math.inf if room is None else room
    first: dict[str, str] = {}
    forms: dict[str, Meaning] = {}
    stating: dict[str, Counter[str]] = {}
    counts: dict[str, dict[str, int]] = {}
    for text in stated.values():
        meaning = read(text)
        content, order = (
            _content(text),
            text.partition(":")[2] if meaning is None else meaning.order,
        )
        known = f"{content}:{order}"
        # Of sites with the same encoding, the text says more than digests do.
        if known not in first or is_digests(first[known]):
            first[known] = text
        if meaning is not None:
            form = replace(meaning.without_rows(), scale={})
            forms.setdefault(form.text, form)
            stating.setdefault(content, Counter())[form.text] += 1
        orders = counts.setdefault(content, {})
        orders[known] = orders.get(known, 0) + 1
    total = {content: sum(orders.values()) for content, orders in counts.items()}
    chosen, found = {}, {}
    for content, orders in counts.items():
        texts = [one for one in orders if not is_digests(first[one])] or list(orders)
        chosen[content] = first[max(texts, key=orders.__getitem__)]
        one = read(chosen[content])
        # Numbers of a site's rows are by its own categories, which may become more.
        found[content] = one and one.without_rows()
    best, covered = -1, set[str]()
    result: Meaning | str = ""
    largest = sorted(total, key=lambda content: -total[content])
    for content in largest:
        if content in covered:
            continue
        base, alike = found[content], {content}
        if base is not None and base.num_categories <= most:
            others = [(one, theirs) for one in largest if (theirs := found[one]) is not None]
            for _, theirs in others:
                wider = base.widened(theirs)
                base = wider if wider and wider.num_categories <= most else base
            alike |= {one for one, theirs in others if theirs.difference(base) is None}
        covered |= alike
        count = sum(total[one] for one in alike)
        if count > best:
            best, result = count, chosen[content]
            if base is not None:
                votes = sum((stating[one] for one in alike if one in stating), Counter[str]())
                result = usual(base, [(forms[one], votes[one]) for one in votes])
    return result

"""Privacy-critical: the cohorts that an operator names in a file, and where credentials belong.

    url = "postgresql://reader@db.local/omop"  # or url-env = "OMOP_URL"
    timeout = 600                              # seconds that a query may take

    [cohorts.stroke]
    query = "select ... order by person_id"    # or query-file = "stroke.sql"
    label-column = "died"                      # any key about a table
    write = "results.stroke_risk"              # the table that predictions are written to

Privacy: a run names a cohort and nothing else. Neither a query nor a URL leaves the node, and no
error of this folder quotes a URL: it may hold a password where it comes from the environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from privet.core.errors import did_you_mean, near_path
from privet.core.files import read_given
from privet.kernel import Told

from ..dataset import DataError, brief

SQL = "sql"
"""The name of the data set that is read from a database."""
SCHEMES = ("postgresql", "postgres", "sqlite", "duckdb")
URLS = tuple(f"{one}:" for one in SCHEMES)
"""How the URL of a database begins."""
TIMEOUT = 600.0
"""Seconds that a query may take where the file does not say."""
TABLE_KEYS = (
    "label-column", "id-column", "person-column", "drop-columns", "schema", "missing",
    "missing-labels", "censored", "infinite", "dates",
)  # fmt: skip
"""The keys about a table that a cohort may state; they go before those of the node's config."""
_OF_FILE = ("url", "url-env", "timeout", "cohorts")
_OF_COHORT = ("query", "query-file", "write", *TABLE_KEYS)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_WHERE = (
    "put the password into ~/.pgpass, a service file (postgresql:///?service=NAME) or PGPASSWORD, "
    "or name an environment variable that holds the whole URL with url-env"
)


@dataclass(frozen=True)
class NamedCohort:
    """The rows that a query of the operator's gives.

    Attributes
    ----------
    name : str
    query : str
    url : str
        May hold a password: for a driver alone.
    timeout : float
        Seconds that the query may take.
    folder : Path
        From which relative paths count.
    keys : mapping
        Keys about the table, by their run-config names.
    write : str
        The table that predictions may be written to; empty for none.
    source : str
        The file that names it, for errors; empty where a command has the URL.
    """

    name: str
    query: str = field(repr=False)
    url: str = field(repr=False)
    timeout: float = TIMEOUT
    folder: Path = Path()
    keys: Mapping[str, str] = field(default_factory=dict)
    write: str = ""
    source: str = ""

    @property
    def called(self) -> str:
        """What errors call it: of several sites, each has a file."""
        return f"{self.source}: cohort {self.name}" if self.source else f"cohort {self.name}"

    @property
    def scheme(self) -> str:
        """The kind of database: postgresql, sqlite or duckdb."""
        found = self.url.partition(":")[0]
        return "postgresql" if found == "postgres" else found

    @property
    def file(self) -> Path | None:
        """The file of an SQLite or DuckDB database; None of one in memory."""
        name = unquote(urlsplit(self.url).path).removeprefix("/")
        return self.folder / name if name else None

    @property
    def digest(self) -> str:
        """SHA-256 of the query, in hexadecimal: what the node's own files say of it."""
        return hashlib.sha256(self.query.encode()).hexdigest()

    @property
    def identity(self) -> str:
        """A digest of all that decides which rows are read, and where."""
        url = self.url
        for password in _in_url(url):
            url = url.replace(password, "")
        said = json.dumps([self.name, self.query, url, str(self.folder)])
        return hashlib.sha256(said.encode()).hexdigest()[:32]

    def unusable(self, why: str | Exception) -> DataError:
        """Return the error of a cohort that cannot be read, without credentials in its text."""
        text = brief(why) if isinstance(why, Exception) else why
        for secret in filter(None, (self.url, *_passwords(self.url))):
            text = text.replace(secret, "***").replace(unquote(secret), "***")
        return DataError(f"{self.called}: {text}", Told.DATABASE)


def _passwords(url: str) -> list[str]:
    """Return the passwords that a driver may be given, longest first."""
    found = [os.environ.get("PGPASSWORD", ""), os.environ.get("PGSSLPASSWORD", "")]
    # A driver that reads an odd URL otherwise may quote a part of the password alone.
    written = _credentials(url)
    parts = re.split(r"[@:/?#&=%\s]", f"{written} {unquote(written)}")
    known = {*found, *_in_url(url), *(one for one in parts if len(one) > 2)}
    return sorted(known - {""}, key=len, reverse=True)


def _credentials(url: str) -> str:
    """Return what may be a password, however it is written: from the first colon of what follows
    ``//`` to the last ``@``."""
    user, _, _ = url.partition("://")[2].rpartition("@")
    return user.partition(":")[2]


def _require_encoded(url: str, where: str) -> None:
    """Refuse a URL whose password has marks that part a URL (raises ``DataError``)."""
    odd = re.search(r"[@/?#\[\]\s]|%(?![0-9A-Fa-f]{2})", _credentials(url))
    if odd and url.startswith("postgres"):
        raise DataError(
            f"{where}: the password in the URL has one of @ / ? # [ ] % or a space as it is: "
            "percent-encode it (%40 for @), or put it into ~/.pgpass"
        )


def _in_url(url: str) -> list[str]:
    """Return the passwords in a URL, as they are written there."""
    try:
        parts = urlsplit(url)
        named = [value for name, many in parse_qs(parts.query).items() for value in many
                 if "password" in name.lower()]  # fmt: skip
        return [one for one in (parts.password, *named) if one]
    except ValueError:
        return re.findall(r"://[^/@:]*:([^/@]+)@", url)


def is_database(source: str) -> bool:
    """Whether a text is the URL of a database, or names a file of cohorts."""
    return source.startswith(URLS) or source.lower().endswith(".toml")


def table_keys(source: str) -> dict[str, str]:
    """Return the run-config keys that name a table: that of a file or folder, or of a database."""
    where = source if source.startswith(URLS) else str(Path(source).absolute())
    return {"dataset": SQL if is_database(source) else "csv", "data-path": where}


def cohort_of(source: str, name: str) -> NamedCohort:
    """Return a cohort of a file of cohorts; of a database's URL, the table or view of that name.

    Raises
    ------
    DataError
        A file, URL or name that cannot be used: names the file and key.
    """
    if not name:
        raise DataError(f"{_shown(source)}: no cohort is named: give cohort", Told.COHORT)
    if not source.startswith(URLS):
        return _cohorts(Path(source), name)[name]
    if not _TABLE.fullmatch(name):
        raise DataError(f"cohort {name!r}: expected the name of a table or view", Told.COHORT)
    _require_bare(source, "a URL on a command line")
    return NamedCohort(name, f"select * from {quoted_table(name)}", source, folder=Path.cwd())


def quoted(name: str) -> str:
    """Return a column's name as a statement has it, whatever it holds: names come from files."""
    if not name.isprintable():
        raise DataError(f"{name!r:.80} is no name of a column: it has characters that do not print")
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """Return the name of a table, or SCHEMA.TABLE, as a statement has it."""
    return ".".join(map(quoted, name.split(".")))


def cohort_names(source: str) -> list[str]:
    """Return the names of the cohorts of a file, each of which was checked."""
    return list(_cohorts(Path(source)))


def _shown(source: str) -> str:
    """Return a source as an error may name it."""
    return "database" if source.startswith(URLS) else source


def _require_bare(url: str, where: str) -> None:
    """Refuse a URL with a password (raises ``DataError``)."""
    if _in_url(url):
        raise DataError(f"{where} holds a password, which others may read there: {_WHERE}")


def _cohorts(path: Path, wanted: str = "") -> dict[str, NamedCohort]:
    """Return the cohorts of a file, with ``wanted`` that one alone (raises ``DataError``)."""
    document = _document(path)
    try:
        _require_known(document, _OF_FILE)
        url, seconds = _url(document), document.get("timeout", TIMEOUT)
        if type(seconds) not in (int, float) or not 0 < seconds < float("inf"):
            raise DataError(f"timeout = {seconds!r}: expected seconds > 0")
        listed = document.get("cohorts")
        if not isinstance(listed, dict) or not listed:
            raise DataError("expected a table [cohorts.NAME] for each cohort")
        if wanted and wanted not in listed:
            raise DataError(f"no cohort {wanted}{did_you_mean(wanted, listed)}", Told.COHORT)
        return {
            name: replace(
                _cohort(path.absolute().parent, name, one, url, float(seconds)), source=str(path)
            )
            for name, one in listed.items()
            if name == (wanted or name)
        }
    except DataError as error:
        raise DataError(f"{path}: {error}", error.told or Told.DATABASE) from None


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_given(path))
    except OSError as error:
        line = f"{path}: {error.strerror}{near_path(path)}"
        raise DataError(line, Told.DATABASE) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: expected TOML ({brief(error)})", Told.DATABASE) from None


def _require_known(given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in given:
        if key not in known:
            raise DataError(f"unknown key {key!r}{did_you_mean(key, known)}")


def _url(document: Mapping[str, Any]) -> str:
    """Return the URL that a file gives or points to (raises ``DataError``)."""
    if "url" in document and "url-env" in document:
        raise DataError("url and url-env are both given: keep one of them")
    if not ("url" in document or "url-env" in document):
        raise DataError("expected url, or url-env, which names an environment variable")
    if "url" in document:
        url, where = str(document["url"]), "url"
        _require_bare(url, "url")
    else:
        where = f"url-env = {document['url-env']!r}"
        url = os.environ.get(str(document["url-env"]), "")
        if not url:
            raise DataError(f"{where}: this process has no such environment variable")
    if not url.startswith(URLS):
        raise DataError(f"{where}: expected a URL that begins with {', '.join(URLS)}")
    _require_encoded(url, where)
    return url


def _cohort(folder: Path, name: str, given: Any, url: str, timeout: float) -> NamedCohort:
    if not _NAME.fullmatch(name):
        raise DataError(f"cohort {name!r}: expected a name of letters, digits, _ . and -")
    if not isinstance(given, dict):
        raise DataError(f"cohort {name}: expected a table [cohorts.{name}]")
    try:
        _require_known(given, _OF_COHORT)
        for key, value in given.items():
            if not isinstance(value, str) or not value.strip():
                raise DataError(f"{key} = {value!r}: expected a text")
        if ("query" in given) == ("query-file" in given):
            raise DataError("expected query, or query-file, which names a file of it")
        write = given.get("write", "")
        if write and not _TABLE.fullmatch(write):
            raise DataError(f"write = {write!r}: expected the name of a table, or SCHEMA.TABLE")
        query = given.get("query") or _text(folder / given["query-file"])
        keys = {key: given[key] for key in TABLE_KEYS if key in given}
        if "schema" in keys:
            keys["schema"] = str(folder / keys["schema"])
    except DataError as error:
        raise DataError(f"cohort {name}: {error}") from None
    query = query.strip().rstrip(";").rstrip()
    return NamedCohort(name, query, url, timeout, folder, keys, write)


def _text(path: Path) -> str:
    try:
        return read_given(path)
    except OSError as error:
        raise DataError(f"query-file {path}: {error.strerror}{near_path(path)}") from None
    except ValueError:
        raise DataError(f"query-file {path}: expected text in UTF-8") from None

"""A small synthetic OMOP CDM: the records of three hospitals, loaded into three databases.

Every person is invented. The tables are those of OMOP CDM v5.4 that the cohort reads, with the
columns that the specification requires of them and those that are used: person,
observation_period, condition_occurrence, measurement, drug_exposure, death. Half of the persons
have heart failure; how long they live hangs on age, sex, creatinine, diabetes and lisinopril, alike
in all hospitals, and how frequent these are does not.

    python examples/omop/cdm.py north postgresql://owner@127.0.0.1/north
    python examples/omop/cdm.py south sqlite:///south.db
"""

from __future__ import annotations

import argparse
import datetime
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

HEART_FAILURE, DIABETES, HYPERTENSION = 316139, 201826, 320128
CREATININE, HAEMOGLOBIN = 3016723, 3000963
LISINOPRIL, METOPROLOL = 1308216, 1307046
MALE, FEMALE = 8507, 8532
MG_PER_DL, UMOL_PER_L, G_PER_DL = 8840, 8749, 8713
FROM_RECORDS = 32817
"""The type of a record of an electronic health record."""
FIRST, LAST = datetime.date(2016, 1, 1), datetime.date(2023, 12, 31)
"""When heart failure may be diagnosed, and when the records end."""

COLUMNS = {
    "person": {
        "person_id": "integer primary key",
        "gender_concept_id": "integer not null",
        "year_of_birth": "integer not null",
        "race_concept_id": "integer not null",
        "ethnicity_concept_id": "integer not null",
    },
    "observation_period": {
        "observation_period_id": "integer primary key",
        "person_id": "integer not null",
        "observation_period_start_date": "date not null",
        "observation_period_end_date": "date not null",
        "period_type_concept_id": "integer not null",
    },
    "condition_occurrence": {
        "condition_occurrence_id": "integer primary key",
        "person_id": "integer not null",
        "condition_concept_id": "integer not null",
        "condition_start_date": "date not null",
        "condition_type_concept_id": "integer not null",
    },
    "measurement": {
        "measurement_id": "integer primary key",
        "person_id": "integer not null",
        "measurement_concept_id": "integer not null",
        "measurement_date": "date not null",
        "measurement_type_concept_id": "integer not null",
        "value_as_number": "numeric",
        "unit_concept_id": "integer",
    },
    "drug_exposure": {
        "drug_exposure_id": "integer primary key",
        "person_id": "integer not null",
        "drug_concept_id": "integer not null",
        "drug_exposure_start_date": "date not null",
        "drug_exposure_end_date": "date not null",
        "drug_type_concept_id": "integer not null",
    },
    "death": {
        "person_id": "integer primary key",
        "death_date": "date not null",
        "death_type_concept_id": "integer",
    },
}
"""The tables, with the SQL type of each of their columns."""


@dataclass(frozen=True)
class Hospital:
    """How the persons of a hospital are.

    Attributes
    ----------
    number : int
        Part of the seed, and of the ids.
    persons : int
    age : float
        Mean age at the diagnosis, in years.
    male, diabetes, lisinopril : float
        Shares of the persons.
    hazard : float
        Deaths a year of a woman of 70 years without diabetes and lisinopril, whose creatinine is
        1 mg/dl.
    unit : int
        The concept of the unit in which its laboratory writes creatinine.
    """

    number: int
    persons: int
    age: float
    male: float
    diabetes: float
    lisinopril: float
    hazard: float
    unit: int = MG_PER_DL


HOSPITALS = {
    "north": Hospital(1, 2400, 68.0, 0.60, 0.22, 0.55, 0.16),
    "south": Hospital(2, 1800, 74.0, 0.52, 0.35, 0.40, 0.22),
    "west": Hospital(3, 1200, 71.0, 0.47, 0.48, 0.25, 0.28, UMOL_PER_L),
}


@dataclass
class Tables:
    """The rows of each table, in the order of its columns."""

    rows: dict[str, list[tuple[object, ...]]] = field(
        default_factory=lambda: {name: [] for name in COLUMNS}
    )

    def add(self, table: str, person: int, *values: object) -> None:
        """Add a row of a person, whose first column is its number, or of `death` the person."""
        rows = self.rows[table]
        key = (person,) if table in ("person", "death") else (len(rows) + 1, person)
        rows.append((*key, *values))


def generate(name: str, seed: int = 0) -> Tables:
    """Return the tables of a hospital, the same for a name and a seed."""
    hospital = HOSPITALS[name]
    rng = np.random.default_rng([seed, hospital.number])
    tables = Tables()
    for place in range(hospital.persons):
        _add_person(tables, hospital, 100_000 * hospital.number + place, rng)
    return tables


def _add_person(tables: Tables, hospital: Hospital, person: int, rng: np.random.Generator) -> None:
    """Draw a person and all records of theirs."""
    index = _day(FIRST, rng.integers(0, (LAST - FIRST).days - 30))
    age = float(np.clip(rng.normal(hospital.age, 10.0), 30.0, 99.0))
    male, diabetes, treated = (
        bool(rng.random() < share)
        for share in (hospital.male, hospital.diabetes, hospital.lisinopril)
    )
    sick = bool(rng.random() < 0.5)
    creatinine = float(np.exp(rng.normal(0.05 + 0.15 * male + 0.2 * diabetes, 0.3)))
    creatinine = min(creatinine, 5.0)
    hazard = hospital.hazard * np.exp(
        0.05 * (age - 70.0)
        + 0.25 * male
        + 0.6 * np.log(creatinine)
        + 0.35 * diabetes
        - 0.4 * treated
    )
    lives = int(np.ceil(365.25 * rng.exponential(1.0 / (hazard if sick else 0.3 * hazard))))
    end = min(LAST, _day(index, lives))
    start = _day(index, -rng.integers(30, 2500))
    # Of persons without heart failure the index date is one of a visit.
    after = (end - index).days
    tables.add("person", person, MALE if male else FEMALE, index.year - int(age), 0, 0)
    tables.add("observation_period", person, start, end, FROM_RECORDS)
    if _day(index, lives) <= LAST:
        tables.add("death", person, end, FROM_RECORDS)

    conditions = []
    if sick:
        again = rng.integers(0, after + 1, rng.integers(0, 4))
        conditions += [(HEART_FAILURE, 0), *((HEART_FAILURE, days) for days in again)]
    if diabetes:
        conditions += [(DIABETES, -rng.integers(0, 2000)) for _ in range(rng.integers(1, 4))]
    elif rng.random() < 0.08:  # only later, which is no diabetes at the index date
        conditions += [(DIABETES, rng.integers(1, after + 2))]
    if rng.random() < 0.6:
        conditions += [(HYPERTENSION, -rng.integers(0, 2000))]
    for place in rng.permutation(len(conditions)):
        concept, days = conditions[place]
        tables.add("condition_occurrence", person, concept, _day(index, days), FROM_RECORDS)

    days_before = -rng.integers(0, 400, rng.integers(1, 5) if rng.random() < 0.96 else 0)
    for days in (*days_before, *rng.integers(1, after + 2, rng.integers(0, 4))):
        drift = creatinine * float(np.exp(rng.normal(0.0, 0.1)))
        value = round(drift, 2) if hospital.unit == MG_PER_DL else float(round(drift * 88.42))
        lost = rng.random() < 0.03  # a sample that could not be measured
        _measure(tables, person, CREATININE, _day(index, days), None if lost else value, hospital)
        if rng.random() < 0.05:  # and once more on the same day
            _measure(tables, person, CREATININE, _day(index, days), value, hospital)
    if rng.random() < 0.7:
        value = round(float(rng.normal(13.0, 1.5)), 1)
        _measure(tables, person, HAEMOGLOBIN, _day(index, -rng.integers(0, 100)), value, hospital)

    drugs = []
    if treated:
        drugs += [(LISINOPRIL, -rng.integers(0, 181))]
    elif rng.random() < 0.2:  # long ago, or only later
        drugs += [(LISINOPRIL, rng.choice([-rng.integers(300, 1500), rng.integers(1, after + 2)]))]
    if rng.random() < 0.5:
        drugs += [(METOPROLOL, -rng.integers(0, 300))]
    for concept, days in drugs:
        begun = _day(index, days)
        tables.add("drug_exposure", person, concept, begun, _day(begun, 30), FROM_RECORDS)


def _measure(
    tables: Tables,
    person: int,
    concept: int,
    day: datetime.date,
    value: float | None,
    hospital: Hospital,
) -> None:
    unit = hospital.unit if concept == CREATININE else G_PER_DL
    tables.add("measurement", person, concept, day, FROM_RECORDS, value, unit)


def _day(start: datetime.date, days: int | np.integer) -> datetime.date:
    return start + datetime.timedelta(days=int(days))


def statements() -> Iterator[str]:
    """Yield what makes the tables anew."""
    for name, columns in COLUMNS.items():
        yield f"drop table if exists {name}"
        yield f"create table {name} ({', '.join(f'{one} {kind}' for one, kind in columns.items())})"


def load_sqlite(path: str, tables: Tables) -> None:
    """Write tables into an SQLite file; dates are texts such as 2020-01-31."""
    with sqlite3.connect(path) as connection:
        for statement in statements():
            connection.execute(statement)
        for name, rows in tables.rows.items():
            marks = ", ".join("?" * len(COLUMNS[name]))
            connection.executemany(f"insert into {name} values ({marks})", _as_texts(rows))
    connection.close()


def _as_texts(rows: Iterable[tuple[object, ...]]) -> Iterator[tuple[object, ...]]:
    for row in rows:
        yield tuple(str(one) if isinstance(one, datetime.date) else one for one in row)


def load_postgresql(url: str, tables: Tables) -> None:
    """Write tables into a PostgreSQL database, which psycopg reaches by a URL."""
    import psycopg

    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        for statement in statements():
            cursor.execute(statement)
        for name, rows in tables.rows.items():
            with cursor.copy(f"copy {name} from stdin") as copy:
                for row in rows:
                    copy.write_row(row)


def main() -> None:
    """Load the records of one hospital into one database."""
    parser = argparse.ArgumentParser(description="Load a synthetic hospital into a database.")
    parser.add_argument("hospital", choices=sorted(HOSPITALS))
    parser.add_argument("url", help="sqlite:///FILE, or postgresql://USER@HOST/DATABASE")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    tables = generate(asked.hospital, asked.seed)
    if asked.url.startswith("sqlite:///"):
        load_sqlite(asked.url.removeprefix("sqlite:///"), tables)
    else:
        load_postgresql(asked.url, tables)
    count = len(tables.rows["person"])
    print(f"{asked.hospital}: {count} persons in {len(COLUMNS)} tables")


if __name__ == "__main__":
    main()

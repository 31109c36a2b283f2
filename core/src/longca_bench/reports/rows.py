"""Rows: records of any number of runs as typed columns.

Each field of a record is a column. The columns of `columns.py` are computed when they are first asked for. A derived
column is computed over all rows that were read, so that a ratio stays the same when `where` leaves its base out.

A run of 100,000 records fits into 1 GB, because rows keep no record: nested fields that only files have are read again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from longca.errors import UnknownNameError
from longca.plain_text import printable
from longca_bench.reports.columns import COLUMNS, Column, largest_error
from longca_bench.reports.runs import Run, flatten, no_records, read_run, runs_in
from longca_bench.reports.words import counted

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from longca_bench.measuring.records import Record

__all__ = ["Rows"]

#: Prefix of a column with a fact of the run's environment, such as `environment.device.name`.
ENVIRONMENT = "environment."
#: Fields of records that no table has. `Rows.records` reads them again.
_LEFT_OUT = frozenset(
    (
        *("wall", "warm_up", "clocks", "findings", "alone_findings", "rank_samples", "machine", "previous", "stream"),
        *("verified_kv_heads", "rank_peak_bytes", "sent_bytes", "rank_abreast_seconds"),
    )
)
_QUANTILES = {"samples_median": 0.5, "samples_p10": 0.1, "samples_p90": 0.9}
Condition = Callable[["Rows"], "Series"]


class Rows:
    """Rows of records. Make them by `Rows.read` or `Rows.of`. `rows["tflops"]` is a column as a pandas series.

    Attributes:
        runs: The runs that were read.
        index: The places of the rows among all that were read.
    """

    def __init__(self, columns: dict[str, Series], runs: Sequence[Run] = (), index: Any = None) -> None:
        self._all = columns
        self.runs: tuple[Run, ...] = tuple(runs)
        self.index = next(iter(columns.values())).index if index is None else index
        self._sources: list[Path | None] = [None] * len(self.runs)

    @classmethod
    def read(cls, *paths: Path) -> Rows:
        """The records of runs: the folder of each, its records.jsonl, or a folder of runs.

        Raises:
            RequestError: There are no records, or a file cannot be read.
        """
        from longca_bench.measuring.records import records_of

        sources = [path for given in paths for path in runs_in(given)]
        runs = [read_run(source) for source in sources]
        lines: dict[Any, tuple[Any, ...]] = {}
        for number, (source, run) in enumerate(zip(sources, runs, strict=True)):
            before = len(lines)
            for record in records_of(source, run.notes):
                lines[number, record.case] = _line(record, number)  # the last record of a case counts
            if len(lines) == before:
                raise no_records(source, run)
        rows = cls(_columns(lines.values()), runs)
        rows._sources = list(sources)
        return rows

    @classmethod
    def of_runs(cls, runs: Sequence[Run]) -> Rows:
        """The records of runs that are in memory."""
        return cls(_columns(_line(record, number) for number, run in enumerate(runs) for record in run.records), runs)

    @classmethod
    def of(cls, records: Iterable[Record], environment: dict[str, Any] | None = None) -> Rows:
        """Records in memory as those of one run."""
        return cls.of_runs([Run(Path(), tuple(records), environment)])

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, name: str) -> Series:
        if name not in self._all:
            self._all[name] = self._derived(name)
        whole = self._all[name]
        return whole if len(whole) == len(self.index) else whole.loc[self.index]

    @property
    def every(self) -> Rows:
        """All rows that were read, without the conditions of `where`."""
        return Rows(self._all, self.runs)

    def frame(self, names: Iterable[str]) -> DataFrame:
        """Some columns as a data frame."""
        from pandas import DataFrame

        return DataFrame({name: self[name] for name in names}, index=self.index)

    def where(self, condition: Condition | None = None, **values: Any) -> Rows:
        """The rows that meet a condition.

        Args:
            condition: A function that gives a series of truth values for rows.
            **values: A column's value, or a list of values: `rows.where(direction="forward", kernel=["fa3", "fa4"])`.
        """
        kept = self.index
        if condition is not None:
            kept = kept[condition(self).to_numpy(dtype=bool)]
        for name, value in values.items():
            wanted = list(value) if isinstance(value, list | tuple | set) else [value]
            found = self[name].loc[kept]
            kept = kept[(found.isin(wanted) | (found.isna() if None in wanted else False)).to_numpy(dtype=bool)]
        return self._like(self._all, kept)

    def with_columns(self, **columns: Sequence[Any]) -> Rows:
        """The rows with more columns, each with a value for every row."""
        from pandas import Series

        made = {name: Series(values, index=self.index) for name, values in columns.items()}
        return self._like({**self._all, **{name: each.reindex(self.every.index) for name, each in made.items()}})

    def unreached(self) -> list[str]:
        """Sentences about runs that ended before all cases that they began with. Earlier versions wrote no number."""
        counts = self._all["run_number"].value_counts()
        found = []
        for number, run in enumerate(self.runs):
            asked, done = (run.environment or {}).get("cases"), counts.get(number, 0)
            if isinstance(asked, int) and done < asked:
                found.append(
                    printable(f"{run.folder} has {done} of {asked} cases, because the run ended before the others")
                )
        return found

    def disturbed(self) -> list[str]:
        """A sentence on the times that a busy machine disturbed, if there are any."""
        timed = self.where(lambda rows: rows["median"].notna())
        busy = timed.frame(("kernel", "pattern", "seqlen", "direction", "busy"))[timed["busy"] != ""]
        if busy.empty:
            return []
        *case, why = busy.astype(str).iloc[0]
        count = f"{counted(len(busy), 'case')} of {len(timed)}"
        return [
            printable(
                f"the machine was busy in {count}, such as {' '.join(case)}: {why}. Their times have the mark ~ and "
                "name no winner. `longca run --wait-idle SECONDS` waits for a quiet moment"
            )
        ]

    def records(self) -> Iterator[Record]:
        """The records behind the rows, in their order."""
        from longca_bench.measuring.records import records_of

        wanted, place = set(self.index), 0
        for run, source in zip(self.runs, self._sources, strict=True):
            found = run.records if source is None else records_of(source, [])
            for record in {record.case: record for record in found}.values() if source else found:
                if place in wanted:
                    yield record
                place += 1

    def flat(self) -> DataFrame:
        """Each field of the records, with nested values as JSON, and statistics beside the samples."""
        from pandas import DataFrame

        from longca_bench.measuring.records import Record

        fields = [record.__dict__ for record in self.records()]
        flat: dict[str, Any] = {}
        for name, about in Record.model_fields.items():
            column = _series([each[name] for each in fields], _dtype(str(about.annotation)))
            if name == "samples":
                flat["samples_count"] = column.map(len).astype("int64")
                shares, nothing = list(_QUANTILES.values()), [np.nan] * len(_QUANTILES)
                figures = [np.quantile(each, shares) if len(each) else nothing for each in column]
                flat |= {quantile: [each[place] for each in figures] for place, quantile in enumerate(_QUANTILES)}
            flat[name] = _plain(column)
        return DataFrame({**flat, "busy": self["busy"].to_numpy()})

    def _like(self, columns: dict[str, Series], index: Any = None) -> Rows:
        rows = Rows(columns, self.runs, self.index if index is None else index)
        rows._sources = self._sources
        return rows

    def _derived(self, name: str) -> Series:
        if name.startswith(ENVIRONMENT):
            facts = [dict(flatten(run.environment or {})).get(name.removeprefix(ENVIRONMENT)) for run in self.runs]
            return self._all["run_number"].map(facts.__getitem__)
        column = COLUMNS.get(name, Column(name))
        if column.derive is None:
            derived = (each.name for each in COLUMNS.values() if each.derive is not None)
            raise UnknownNameError("column", name, list(dict.fromkeys((*self._all, *derived))))
        return column.derive(self.every)


def _line(record: Record, number: int) -> tuple[Any, ...]:
    """The fields of a record that tables have, and what stands for its findings. Equal texts are one in memory."""
    values = [
        sys.intern(value) if type(value) is str else value
        for name, value in record.__dict__.items()
        if name not in _LEFT_OUT and name != "samples"
    ]
    errors = largest_error(record.findings), largest_error(record.alone_findings)
    return (*values, np.array(record.samples), *errors, record.busy, number)


def _columns(lines: Iterable[tuple[Any, ...]]) -> dict[str, Series]:
    """The columns of lines, each with the type that the record's class says."""
    from longca_bench.measuring.records import Record

    fields = {name: str(about.annotation) for name, about in Record.model_fields.items() if name not in _LEFT_OUT}
    types = {name: _dtype(kind) for name, kind in fields.items() if name != "samples"}
    types |= {"samples": "object", "error": "float64", "alone_error": "float64", "busy": "object"}
    types |= {"run_number": "int64"}
    values = list(zip(*lines, strict=True)) or [()] * len(types)
    return {name: _series(list(some), dtype) for (name, dtype), some in zip(types.items(), values, strict=True)}


def _series(values: list[Any], dtype: str) -> Series:
    from pandas import Series

    try:
        return Series(values, dtype=dtype)
    except OverflowError:  # the operations of the largest problems do not fit into 64 bits
        return Series(values, dtype="float64")


def _dtype(annotation: str) -> str:
    """The type of a column: a type of numbers, or objects for text and nested values."""
    if annotation == "<class 'int'>":
        return "int64"
    return {"<class 'float'>": "float64", "float | None": "float64", "int | None": "Int64"}.get(annotation, "object")


def _plain(column: Series) -> Series:
    """A column of numbers or text, with nested values as JSON."""
    if column.dtype != object:
        return column
    nested = column.map(lambda value: isinstance(value, tuple | list | dict | BaseModel))
    return column.where(~nested, column.map(_json)).astype("string")


def _json(value: Any) -> str:
    return value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value)

"""Rows: records of any number of runs as typed columns.

Each field of a record is a column. The columns of `columns.py` are computed when they are first asked for. A derived
column is computed over all rows that were read, so that a ratio stays the same when `where` leaves its base out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longca.errors import UnknownNameError
from longca_bench.reports.columns import COLUMNS, Column
from longca_bench.reports.flat import flat_frame
from longca_bench.reports.run_source import Run, flatten, open_run

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from longca_bench.measuring.records import Record

__all__ = ["Rows"]

#: Prefix of a column with a fact of the run's environment, such as `environment.device.name`.
ENVIRONMENT = "environment."
Condition = Callable[["Rows"], "Series"]


class Rows:
    """Rows of records.

    Make them by `Rows.read` or `Rows.of`. `rows["tflops"]` is a column as a pandas series.

    Attributes:
        runs: The runs that were read.
    """

    def __init__(self, columns: dict[str, Series], runs: Sequence[Run] = (), index: Any = None) -> None:
        self._all = columns
        self.runs: tuple[Run, ...] = tuple(runs)
        self._index = next(iter(columns.values())).index if index is None else index

    @classmethod
    def read(cls, *paths: Path) -> Rows:
        """The records of runs.

        Args:
            *paths: The folder of each run, its records.jsonl or a folder of runs.

        Raises:
            RequestError: There are no records, or a file cannot be read.
        """
        return cls.of_runs([open_run(path) for given in paths for path in _runs_in(given)])

    @classmethod
    def of_runs(cls, runs: Sequence[Run]) -> Rows:
        """The records of runs that were opened."""
        from pandas import Series

        found = _record_columns([record for run in runs for record in run.records])
        numbers = [number for number, run in enumerate(runs) for _ in run.records]
        return cls({"run_number": Series(numbers, dtype="int64"), **found}, runs)

    @classmethod
    def of(cls, records: Iterable[Record], environment: dict[str, Any] | None = None) -> Rows:
        """Records in memory as those of one run."""
        return cls.of_runs([Run(Path(), tuple(records), environment)])

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, name: str) -> bool:
        return name in self._all or name in COLUMNS or name.startswith(ENVIRONMENT)

    def __getitem__(self, name: str) -> Series:
        whole = self._whole(name)
        return whole if len(whole) == len(self._index) else whole.loc[self._index]

    @property
    def index(self) -> Any:
        """The places of the rows among all that were read."""
        return self._index

    @property
    def names(self) -> list[str]:
        """The columns that were read. Derived columns are not among them."""
        return list(self._all)

    @property
    def every(self) -> Rows:
        """All rows that were read, without the conditions of `where`."""
        return Rows(self._all, self.runs)

    def frame(self, names: Iterable[str]) -> DataFrame:
        """Some columns as a data frame."""
        from pandas import DataFrame

        return DataFrame({name: self[name] for name in names}, index=self._index)

    def where(self, condition: Condition | None = None, **values: Any) -> Rows:
        """The rows that meet a condition.

        Args:
            condition: A function that gives a series of truth values for rows.
            **values: A column's value, or a list of values: `rows.where(direction="forward", kernel=["fa3", "fa4"])`.
        """
        kept = self._index
        if condition is not None:
            kept = kept[condition(self).to_numpy(dtype=bool)]
        for name, value in values.items():
            wanted = list(value) if isinstance(value, list | tuple | set) else [value]
            found = self[name].loc[kept]
            kept = kept[(found.isin(wanted) | (found.isna() if None in wanted else False)).to_numpy(dtype=bool)]
        return Rows(self._all, self.runs, kept)

    def with_column(self, name: str, values: Series) -> Rows:
        """The rows with one more column, or with another one of this name."""
        return Rows({**self._all, name: values.reindex(self.every._index)}, self.runs, self._index)

    def records(self) -> Iterator[Record]:
        """The records behind the rows, in their order."""
        every = [record for run in self.runs for record in run.records]
        return (every[place] for place in self._index)

    def flat(self) -> DataFrame:
        """Every column that was read, with nested values as JSON, and statistics beside the samples."""
        return flat_frame(self.frame(name for name in self.names if name != "run_number"))

    def _whole(self, name: str) -> Series:
        if name not in self._all:
            self._all[name] = self._derived(name)
        return self._all[name]

    def _derived(self, name: str) -> Series:
        if name.startswith(ENVIRONMENT):
            facts = [dict(flatten(run.environment or {})).get(name.removeprefix(ENVIRONMENT)) for run in self.runs]
            return self._all["run_number"].map(facts.__getitem__)
        column = COLUMNS.get(name, Column(name))
        if column.derive is None:
            derived = (each.name for each in COLUMNS.values() if each.derive is not None)
            raise UnknownNameError("column", name, list(dict.fromkeys((*self._all, *derived))))
        return column.derive(self.every)


def _runs_in(path: Path) -> list[Path]:
    """A run, or the runs in the folders of a folder."""
    if not os.path.isdir(path) or (path / "records.jsonl").exists():
        return [path]
    return sorted(file.parent for file in path.glob("*/records.jsonl")) or [path]


def _record_columns(records: Sequence[Record]) -> dict[str, Series]:
    """The fields of records, each with the type that the record's class says."""
    from longca_bench.measuring.records import Record

    fields = [record.__dict__ for record in records]
    return {
        name: _series([each[name] for each in fields], dtype_of(str(about.annotation)))
        for name, about in Record.model_fields.items()
    }


def _series(values: list[Any], dtype: str) -> Series:
    from pandas import Series

    try:
        return Series(values, dtype=dtype)
    except OverflowError:  # the operations of the largest problems do not fit into 64 bits
        return Series(values, dtype="float64")


def dtype_of(annotation: str) -> str:
    """The type of a column: a type of numbers, or objects for text and nested values."""
    if annotation == "<class 'int'>":
        return "int64"
    return {"<class 'float'>": "float64", "float | None": "float64", "int | None": "Int64"}.get(annotation, "object")

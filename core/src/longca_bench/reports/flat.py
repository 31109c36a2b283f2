"""Records as one flat data frame, for spreadsheets and other programs.

The columns are the record's own fields: numbers and text as they are, and anything nested as JSON. The count, the
median, and the 10th and 90th percentile of the samples stand before `samples`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

if TYPE_CHECKING:
    from pandas import DataFrame, Series

__all__ = ["flat_frame"]

_QUANTILES = {"samples_median": 0.5, "samples_p10": 0.1, "samples_p90": 0.9}


def flat_frame(frame: DataFrame) -> DataFrame:
    """Columns without nesting. Text columns have pandas' type for text."""
    from pandas import DataFrame

    flat: dict[str, Series] = {}
    for name in frame:
        if name == "samples":
            flat |= _statistics(frame[name])
        flat[str(name)] = _plain(frame[name])
    return DataFrame(flat)


def _plain(column: Series) -> Series:
    if column.dtype != object:
        return column
    nested = column.map(lambda value: isinstance(value, tuple | list | dict | BaseModel))
    return column.where(~nested, column.map(_json)).astype("string") if nested.any() else column.astype("string")


def _json(value: Any) -> str:
    return value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value)


def _statistics(samples: Series) -> dict[str, Series]:
    import numpy as np
    from pandas import Series

    known = samples.map(len) > 0
    figures = np.full((len(samples), len(_QUANTILES)), np.nan)
    if known.any():
        figures[known.to_numpy()] = [np.quantile(each, list(_QUANTILES.values())) for each in samples[known]]
    found = {name: Series(figures[:, place], index=samples.index) for place, name in enumerate(_QUANTILES)}
    return {"samples_count": samples.map(len).astype("int64"), **found}

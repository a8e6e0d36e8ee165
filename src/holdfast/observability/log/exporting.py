"""A run's events in forms of others: one file of JSON lines, or tables as Parquet or CSV."""

import csv
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO, Any, Literal, Protocol, TypeAlias

from holdfast.errors import ConfigError
from holdfast.observability.events import Event
from holdfast.observability.log.reading import every_line, told, told_event
from holdfast.observability.log.run_log import check_run
from holdfast.observability.log.tables import TABLES, Row, table_rows
from holdfast.observability.log.tail import Tail

EventFormat: TypeAlias = Literal["parquet", "csv", "jsonl"]
_AT_ONCE = 50_000  # rows


class TableWriter(Protocol):
    """Of one table."""

    def add(self, rows: list[Row]) -> None: ...
    def close(self) -> None: ...


def export_lines(run_dir: Path, out: IO[str]) -> int:
    """Every event as it was written, in order, in one file; how many. Torn lines are left out."""
    tail, number = Tail(check_run(run_dir)), 0
    with closing(tail), told(tail):
        for line in every_line(tail):
            if told_event(tail, line) is not None:
                out.write(line.text.decode() + "\n")
                number += 1
    return number


def export_tables(run_dir: Path, to: EventFormat, folder: Path) -> dict[str, int]:
    """One file a table, each with its name when it is whole; how many rows each has.

    ConfigError: not a run, or what it takes is not installed. OSError: it cannot be written.
    """
    newest, make = check_run(run_dir), _parquet() if to == "parquet" else CsvTable
    folder.mkdir(parents=True, exist_ok=True)
    waiting: dict[str, list[Row]] = {name: [] for name in TABLES}
    num_rows = dict.fromkeys(TABLES, 0)
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(_whole(folder / f"{name}.{to}", columns, make))
            for name, columns in TABLES.items()
        }
        for name, row in table_rows(_events(newest)):
            waiting[name].append(row)
            num_rows[name] += 1
            if len(waiting[name]) == _AT_ONCE:
                writers[name].add(waiting[name])
                waiting[name] = []
        for name, rows in waiting.items():
            writers[name].add(rows)
    return num_rows


def _events(newest: Path) -> Iterator[Event]:
    tail = Tail(newest)
    with closing(tail), told(tail):
        for line in every_line(tail):
            if (event := told_event(tail, line)) is not None:
                yield event


@contextmanager
def _whole(
    path: Path,
    columns: Mapping[str, type],
    make: Callable[[Path, Mapping[str, type]], TableWriter],
) -> Iterator[TableWriter]:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        writer = make(part, columns)
        with closing(writer):
            yield writer
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class CsvTable:
    def __init__(self, path: Path, columns: Mapping[str, type]) -> None:
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file)
        self._writer.writerow(columns)

    def add(self, rows: list[Row]) -> None:
        self._writer.writerows(rows)

    def close(self) -> None:
        self._file.close()


def _parquet() -> Callable[[Path, Mapping[str, type]], TableWriter]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError(
            "writing Parquet needs pyarrow, which is not installed: "
            "pip install 'holdfast[traces]', or take csv"
        ) from None
    kinds = {
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        str: pyarrow.string(),
        bool: pyarrow.bool_(),
    }

    class ParquetTable:
        def __init__(self, path: Path, columns: Mapping[str, type]) -> None:
            self._schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
            self._writer: Any = parquet.ParquetWriter(path, self._schema, compression="zstd")

        def add(self, rows: list[Row]) -> None:
            columns = zip(*rows, strict=True) if rows else [()] * len(self._schema)
            pairs = zip(columns, self._schema.types, strict=True)
            arrays = [pyarrow.array(values, kind) for values, kind in pairs]
            self._writer.write_batch(pyarrow.record_batch(arrays, schema=self._schema))

        def close(self) -> None:
            self._writer.close()

    return ParquetTable

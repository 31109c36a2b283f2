"""Reports: all that LongCA prints or publishes from records.

Three parts make each table, and one renderer for each format shows it:

    rows = Rows.read(Path("results/h200/dense"))            # runs, or a folder of runs
    made = tables("throughput", rows.where(direction="forward", seqlen=[8192, 32768]))
    text = markdown_of(made, level=3)

- `rows.Rows`: records as typed columns. `rows["tflops"]` is a pandas series and `rows.frame(names)` a data frame.
  `rows.where(...)` narrows by values or by a function. `rows.with_column(name, series)` adds a column. `rows.runs` has
  the runs.
- `columns.COLUMNS`: heads, formats, legends and derived columns such as `mask`, `ms`, `over_baseline`,
  `share_of_limit` and `of_alone`. `environment.NAME` is a fact of a row's run. A derived column is computed over all
  rows that were read, also where `where` leaves some of them out.
- `view.View` and `view.Value`: a declaration of tables. `build.tables_of(view, rows)` makes the tables.
- `views.VIEWS`: the views by name, and `views.tables(name, rows)`.
- `table.Table`: heads, rows of cells, a title and notes. `table.table(heads, rows)` makes one from texts.
  `Table.with_row` adds a mean or a limit. `Table.frame()` is a data frame of the values.
- `render_markdown.markdown_of(tables, level)` and `render_terminal.print_tables(console, tables)` show tables.
  `files.py` writes CSV and Parquet.

A new column belongs in `columns.py`, a new view in `views.py`, and a new format in `formats.py`.
"""

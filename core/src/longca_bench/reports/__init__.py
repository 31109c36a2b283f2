"""Reports: all that LongCA prints or publishes from records.

Three parts make each table, and one renderer for each format shows it:

    rows = Rows.read(Path("results/h200/dense"))            # runs, or a folder of runs
    made = tables("throughput", rows.where(direction="forward", seqlen=[8192, 32768]))
    text = markdown_of(made)

- `rows.Rows`: records as typed columns. `rows["tflops"]` is a pandas series and `rows.frame(names)` a data frame.
- `columns.COLUMNS`: heads, formats, legends and derived columns such as `mask`, `ms`, `over_baseline` and `of_alone`.
  `environment.NAME` is a fact of a row's run. A derived column is computed over all rows that were read, also where
  `where` leaves some of them out.
- `view.View`: a declaration of tables. `views.VIEWS` has the views by name.
- `table.Table`: heads, rows of cells, a title and notes.
- `terminal.py`, `markdown.py`, `charts.py`, `html/` and `formats.py`: the renderers.

A new column belongs in `columns.py`, a new view in `views.py`, and a new format in `formats.py`.
"""

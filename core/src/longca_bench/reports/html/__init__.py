"""The HTML report: one file with the records of any number of runs, which opens offline."""

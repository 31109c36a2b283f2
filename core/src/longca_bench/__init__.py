"""The application: suites, measuring, verification, conformance, reports and the command line.

`longca` and `longca_advice` import nothing of this package.
"""

"""What is measured: suites, and the cases that a suite expands into."""

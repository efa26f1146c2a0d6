"""The checks of the harness as parametrised tests in somebody's own suite."""

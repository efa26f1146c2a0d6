"""linattest: a numerical verification harness for linear-attention operators."""

__version__ = "0.1.0"

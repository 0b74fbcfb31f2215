"""Open-set classification benchmarks on Ray: protocols, trainings, post-processors and one honest measure."""

__version__ = "0.1.0"

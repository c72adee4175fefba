"""Benchmark tables: rows as data, measured in processes of their own, printed as csv, md or json."""

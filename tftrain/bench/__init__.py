"""Benchmark tables: rows as data, measured in processes of their own, printed as csv, md or json.

A table is a list of rows and a function that measures a few of them together; `python -m tftrain.bench` does the rest.
"""

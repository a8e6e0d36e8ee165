"""What the commands print of a result: tables, sentences or JSON.

Knows results as data.
Does not know how they came about, and runs nothing.
"""

"""What came out, for people: tables, JSON, pictures and one page that has it all.

Knows how to show outcomes.
Does not know how they came about.
"""

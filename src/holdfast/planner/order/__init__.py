"""In which order operations run: a portfolio, then local search.

Knows routes and the steady period of an order.
Does not know who should hold what.
"""

"""The words of the gateway: an exchange with its attempts and charge, the facts that plugins share, prices, the catalogue, budgets.

Imports `operations` and what lies below it.
"""

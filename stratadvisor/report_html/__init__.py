"""One self-contained HTML page for a profile, a plan or a validation run: no script, no network, every number a row.

Text enters a page only through ``markup.e``, which escapes it; figures carry the table that says the same in words.
"""

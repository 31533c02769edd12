"""English messages of the engine, the ledger and the API as patterns; the catalogue has their translations.

May import: nothing.
Never: a sentence of a page itself (pages call gettext).
"""

"""Lives here: what the floors below say in English, as patterns that the catalogue has in other languages.

May import: nothing.
Never: a sentence that pages themselves say (those are gettext calls where they are said).
"""

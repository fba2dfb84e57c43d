"""The exception with which a peer reports that it cannot compute a cell."""


class Cannot(Exception):
    """The reason why a peer has no figure in a cell."""

"""How a peer says that it has no way to compute a cell."""


class Cannot(Exception):
    """Why a peer has no figure in a cell."""

"""Makes this library known to threadpoolctl, which limits the threads of many libraries at once."""

from __future__ import annotations

import os
from typing import Any

from . import _context, _library

_registered = False


def register_threadpoolctl() -> None:
    """Registers libattn with threadpoolctl.threadpool_limits() and threadpool_info() as user_api
    "attn". A limit applies to calls without `threads`, like set_num_threads(). Importing attn does
    not register it, so the effect of a limit does not depend on the order of imports. Calling this
    function again does nothing. Raises ImportError without threadpoolctl 3.2 or newer.
    """
    global _registered
    if _registered:
        return
    try:
        from threadpoolctl import LibController, register  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("threadpoolctl 3.2 or newer is needed (%s)" % error) from None

    class AttnController(LibController):  # type: ignore[misc]
        user_api = "attn"
        internal_api = "attn"
        filename_prefixes = ("libattn",)
        check_symbols = ("attn_context_threads",)

        def _ours(self) -> bool:
            """The process may have another copy of the library, for which no default number of
            threads is known."""
            return bool(os.path.realpath(self.filepath) == os.path.realpath(_library.path))

        def get_num_threads(self) -> Any:
            return _context.num_threads() if self._ours() else None

        def set_num_threads(self, num_threads: Any) -> None:
            if self._ours():
                _context.set_num_threads(num_threads)

        def get_version(self) -> str:
            return _library.version

        def set_additional_attributes(self) -> None:
            self.isa = _context.isa()

    register(AttnController)
    _registered = True

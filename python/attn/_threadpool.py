"""threadpoolctl, which limits the threads of many libraries at once, for this one too."""

from __future__ import annotations

import os
from typing import Any

from . import _context, _library

_registered = False


def register_threadpoolctl() -> None:
    """From now on threadpoolctl.threadpool_limits() and threadpool_info() know libattn, as
    user_api "attn": its limit is that of calls that do not say `threads`, as set_num_threads().

    It happens only when it is asked for, so that what a limit reaches does not depend on the order
    of imports. Calling it again does nothing. ImportError without threadpoolctl 3.2 or newer.
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
            """Another copy of the library may be in the process; it has no default of threads."""
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

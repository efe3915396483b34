"""griffe extension: an annotation that permits anything is left out, so that the reference shows what the text says."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Function

_ANYTHING = {"Any", "object", "object | None"}  # the extension module takes objects, and looks at them itself


class Annotations(Extension):
    """Named in mkdocs.yml."""

    def on_function(self, *, func: Function, **kwargs: Any) -> None:
        """Called for each function that is loaded."""
        for parameter in func.parameters:
            if str(parameter.annotation) in _ANYTHING:
                parameter.annotation = None
        if str(func.returns) in _ANYTHING:
            func.returns = None

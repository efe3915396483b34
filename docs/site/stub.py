"""griffe extension: what nanobind's stub of _core says, made readable in the reference."""

from __future__ import annotations

from typing import Any

from griffe import Class, Extension, Function

_ANYTHING = {"Any", "object", "object | None"}  # the extension module takes objects, and looks at them itself


class Stub(Extension):
    """Named in mkdocs.yml."""

    def on_function(self, *, func: Function, **kwargs: Any) -> None:
        """Leaves out annotations that permit anything, so that the text is what is read."""
        for parameter in func.parameters:
            if str(parameter.annotation) in _ANYTHING:
                parameter.annotation = None
        if str(func.returns) in _ANYTHING:
            func.returns = None

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        """Shows the widest of several signatures, the last one: a stub has no implementation that griffe would show."""
        for name, signatures in cls.overloads.items():
            if name not in cls.members:
                cls.set_member(name, signatures[-1])
                cls.members[name].overloads = None

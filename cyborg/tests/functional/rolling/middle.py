# SPDX-License-Identifier: Apache-2.0
"""The release before this one, as far as the bus shows it: it stands between all who talk.

Whatever passes is reduced to what that release sends and reads, whichever side is the older one:
fields and arguments that it does not know are left out, so that a stack that works with this in
its middle works when either side of each message is of that release.
"""

from dataclasses import dataclass, field
from typing import Any

from cyborg.tests.functional.rolling.records import Record
from cyborg.tests.functional.rolling.tape import Tape
from cyborg.tests.unit.model.shapes import ENVELOPES, validate


@dataclass
class Middle:
    """``flaws`` are what that release could not have taken, in words."""

    record: Record
    flaws: list[str] = field(default_factory=list)

    def tape(self) -> Tape:
        """One on which everything passes here."""
        return Tape(request=self.request, reply=self.reply)

    def request(self, topic: str, verb: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What that release makes of a request."""
        if verb == "ping":
            return arguments
        known = self.record.verbs[topic].get(verb, {}).get("args")
        if known is None or arguments.keys() != known.keys():
            # Nobody sends it an argument that it does not know: it would refuse the whole request.
            self.flaws.append(f"{verb} with {sorted(arguments)} is not on record")
            return arguments
        return {name: self._reduced(verb, value) for name, value in arguments.items()}

    def reply(self, topic: str, verb: str, reply: Any) -> Any:
        """What that release makes of an answer."""
        if "error" in reply:
            kind, fields = reply["error"]["type"], reply["error"]["fields"]
            needed = self.record.errors.get(kind, f"? {kind}").split()[1:]
            if not set(needed) <= fields.keys():
                self.flaws.append(f"{verb}: a {kind} with {sorted(fields)} is not on record")
            return reply
        return {"ok": self._reduced(verb, reply["ok"])}

    def _reduced(self, verb: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._reduced(verb, one) for one in value]
        if not isinstance(value, dict) or "kind" not in value:
            return value
        shape = ENVELOPES[value["kind"]]
        known = shape in self.record.shapes
        bad = validate(self.record.shapes, shape, value["body"]) if known else "it is not on record"
        if bad is not None:
            self.flaws.append(f"{verb}: {value['kind']}: {bad}")
            return value
        return {**value, "body": reduced(self.record.shapes, shape, value["body"])}


def reduced(known: dict[str, str], shape: str, value: Any) -> Any:
    """Plain data that fits a shape, without what it does not name."""
    shape = shape.partition("|")[0]
    if value is None:
        return None
    if shape.startswith(("tuple[", "frozenset[", "list[")):
        inner = shape.partition("[")[2].removesuffix("]").removesuffix(",...")
        return [reduced(known, inner, one) for one in value]
    if ":" not in known.get(shape, ""):
        return value
    fields = dict(part.removesuffix("?").split(":") for part in known[shape].split())
    return {
        name: reduced(known, fields[name], one) for name, one in value.items() if name in fields
    }

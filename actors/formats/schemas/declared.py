"""The schemas that an app declares, and the registry's: what `faust schemas` and `faust plan` compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.declare.values.codecs import Codec, Place
from actors.declare.values.schemas import topic_codecs
from actors.formats.framing import RegistryFormat
from actors.formats.registry import RegistryClient, RegistryError, Schema, client_of
from actors.formats.schemas.compatibility import problems


@dataclass(frozen=True, slots=True)
class Declared:
    """A schema that a topic or store declares.

    Attributes:
        subject: under which it is registered.
        schema: that values are written with; None where the registry's is used: see `version`.
        version: the version of the subject that is used in place of a schema.
        format: the format, for people.
        places: where it is declared, for people.
        is_input: whether actors read the topic: others may write it.
    """

    subject: str
    schema: Schema | None
    version: int | str | None
    format: str
    places: tuple[str, ...]
    is_input: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of comparing a schema with its subject.

    Attributes:
        declared: the schema.
        mode: the subject's compatibility, as the registry has it.
        latest: the newest version of the subject, 0 without any.
        version: of the subject, which has this schema; 0 if none has.
        breaks: whom it breaks, and by which fields.
    """

    declared: Declared
    mode: str
    latest: int = 0
    version: int = 0
    breaks: Sequence[str] = field(default=())

    @property
    def is_registered(self) -> bool:
        """True where nobody has to register it: the subject has it, or only others write it, or it names a version."""
        return bool(self.version or self.declared.schema is None or (self.declared.is_input and self.latest))

    def __str__(self) -> str:
        if self.breaks:
            return "; ".join(self.breaks)
        if self.version:
            return f"version {self.version}" + (f", the latest is {self.latest}" if self.latest > self.version else "")
        if self.declared.schema is None:
            return f"uses version {self.declared.version}"
        if self.latest:
            return f"not registered; {'reads' if self.declared.is_input else 'fits'} version {self.latest}"
        return "not registered, a new subject"


def declared_schemas(app: Any) -> list[Declared]:
    """Return the schemas of an app's topics and stores, by subject."""
    read = {name for definition in app.actors.values() for name in definition.topic_names}
    by_schema: dict[tuple[str, Schema | None], Declared] = {}
    for where, codec in _codecs(app):
        for declared in _declared(where, codec, read):
            key = declared.subject, declared.schema
            others = by_schema.get(key)
            # A subject that is written somewhere is registered by its writer.
            places = dict.fromkeys((*(others.places if others else ()), *declared.places))
            is_input = declared.is_input and (others is None or others.is_input)
            by_schema[key] = Declared(*key, declared.version, declared.format, tuple(places), is_input)
    return sorted(by_schema.values(), key=lambda declared: declared.subject)


def _codecs(app: Any) -> Iterator[tuple[str, Codec]]:
    for topic in app.declared_topics:
        if len(topic.topics) == 1:
            name = str(topic.get_topic_name())
            for part, codec in zip(("keys", "values"), topic_codecs(topic), strict=True):
                yield f"{part} of topic {name}", codec
    for name, codec in app.value_codecs.items():
        yield f"store {name}", codec


def _declared(where: str, codec: Codec, read: set[str]) -> Iterator[Declared]:
    match codec.origin:
        case [type_, Place() as place, RegistryFormat() as format_]:
            for arm in format_.arms(type_):
                shape = format_.shape(arm, place)
                schema = None if format_.version is not None else shape.schema
                version = "latest" if schema is None and format_.version is None else format_.version
                is_input = place.topic in read and not place.is_state
                subject = format_.subject_of(place, shape.record)
                yield Declared(subject, schema, version, repr(format_), (where,), is_input)


async def compare(app: Any) -> list[Verdict]:
    """Compare an app's schemas with its registry, by the compatibility of each subject.

    Raises:
        ConfigurationError: schemas are declared, and no registry is.
        RegistryError, OSError, ValueError: the registry gives no answer.
    """
    schemas = declared_schemas(app)
    return [await _verdict(client_of(app), declared) for declared in schemas]


async def register(app: Any, subjects: Sequence[str]) -> list[tuple[Declared, int]]:
    """Register what an app's subjects lack, or what the given ones do; return the versions.

    Errors as of `compare`; what is before a schema that the registry refuses, is registered.
    """
    versions = []
    for verdict in await compare(app):
        declared = verdict.declared
        wanted = declared.subject in subjects if subjects else not verdict.is_registered
        if wanted and declared.schema is not None and not verdict.version:
            try:
                version = await client_of(app).register(declared.subject, declared.schema)
            except RegistryError as error:
                named = "; ".join(verdict.breaks)
                raise RegistryError(
                    f"subject {declared.subject}: {error}{f': {named}' if named else ''}", status=error.status
                ) from error
            versions.append((declared, version))
    return versions


async def exported(app: Any) -> dict[str, Any]:
    """Return the schemas of an app's Avro stores for `spark_replay`, by changelog; errors as of `compare`."""
    schemas: dict[str, Any] = {}
    for name, codec in app.value_codecs.items():
        match codec.origin:
            case [type_, Place() as place, RegistryFormat(kind="AVRO") as format_]:
                client, shape = client_of(app), format_.shape(type_, place)
                arms = [format_.shape(arm, place).record for arm in format_.arms(type_)]
                versions = [
                    await client.at_version(subject, number)
                    for subject in (format_.subject_of(place, record) for record in arms)
                    for number in await client.versions(subject)
                ]
                reader = shape.schema.text if shape.schema is not None else versions[-1][1].text if versions else ""
                writers = {ids[0]: schema.text for ids, schema in versions}
                store = app.stores[name]
                parts = {"has_rows": store.below is not None, "has_windows": store.layout == "windows"}
                schemas[place.topic] = {"reader": reader, "writers": writers, **parts}
    return schemas


async def _verdict(client: RegistryClient, declared: Declared) -> Verdict:
    subject, schema = declared.subject, declared.schema
    versions, mode = await client.versions(subject), await client.mode(subject)
    newest, breaks = max(versions, default=0), list[str]()
    if schema is None:
        if declared.version not in ("latest", *versions) or not versions:
            breaks.append(f"the subject has no version {declared.version}")
        return Verdict(declared=declared, mode=mode, latest=newest, breaks=breaks)
    version = await client.version_of(subject, schema) if versions else 0
    for number in (versions if mode.endswith("_TRANSITIVE") else [newest]) if version != newest else ():
        _, other = await client.at_version(subject, number)
        breaks += _breaks(declared, schema, other, number, mode=mode, writes=not (version or declared.is_input))
    if versions and not (breaks or version or declared.is_input):
        # The registry has the last word: it may know further rules.
        reason = await client.refusal(subject, schema)
        breaks = [] if reason is None else [f"the registry refuses it by the mode {mode}: {reason}"]
    return Verdict(declared=declared, mode=mode, latest=newest, version=version, breaks=breaks)


def _breaks(
    declared: Declared, schema: Schema, other: Schema, number: int, *, mode: str, writes: bool
) -> Iterator[str]:
    """Name the fields by which this program can't read a version, and programs with that one what this one writes."""
    kind = mode.removesuffix("_TRANSITIVE")
    if kind in ("BACKWARD", "FULL") or (declared.is_input and kind != "NONE"):
        for path, text in problems(schema, other):
            yield f"this program can't read version {number}: {f'field {path}: ' if path else ''}{text}"
    if kind in ("FORWARD", "FULL") and writes:
        for path, text in problems(other, schema):
            yield f"programs with version {number} can't read this one's: {f'field {path}: ' if path else ''}{text}"

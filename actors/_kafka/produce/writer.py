"""The commits of a worker, exactly once: one transaction at a time, each with the batches of some tasks.

    TxnOffsetCommit    the offsets of all tasks, with the member and its generation. A coordinator that has another
                       generation refuses them, and then nothing else was sent
    Produce            to each leader, side by side
    EndTxn             the outcome

Transactions of version 2 (KIP-890) raise the producer epoch with each transaction, so that brokers refuse what arrives
late. In those of version 1 a late request can reach the next transaction. So if a coordinator doesn't answer, its
request isn't sent again: `fence` comes first, which raises the epoch. A `Produce` without an answer is sent again, with
the same sequence numbers, by which the leader recognises a repeat.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import IllegalGenerationError, KafkaError, NodeNotReadyError, TopicAuthorizationFailedError
from aiokafka.protocol.transaction import AddOffsetsToTxnRequest, AddPartitionsToTxnRequest

from actors._core.backoff import Backoff
from actors._kafka.client import Client
from actors._kafka.codes import (
    COORDINATOR_WAITS,
    FENCED,
    NOT_HERE,
    OF_A_PARTITION,
    OK,
    OPERATION_NOT_ATTEMPTED,
    PRODUCER_IS_OVER,
    error_of,
)
from actors._kafka.connection import Connection, broker_errors
from actors._kafka.permissions import READ, WRITE, lacking
from actors._kafka.produce.batches import (
    Batch,
    Packable,
    UnknownOutputError,
    UnpackableError,
    by_partition,
    changelog_records,
    codec_of,
    output_records,
    pack,
)
from actors._kafka.produce.failures import (
    PartsFailedError,
    ProducerOverError,
    TransportFaultError,
    described,
    is_refusal,
)
from actors._kafka.produce.sending import Sequences, append
from actors._kafka.protocol import by_topic
from actors._kafka.transaction_requests import (
    ApiVersionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    finalized_features,
)
from actors.errors import (
    BatchesRefusedError,
    CommitRefusedError,
    FencedError,
    OutcomeUnknownError,
    StaleGenerationError,
    TaskError,
)
from actors.ports import CommitBatch, CommitReceipt, Identity, TopicPartition
from actors.runtime.clock import machine_ms

BACKOFF = Backoff(0.002, longest_s=0.1, factor=1.5)
ANSWER_S = 5.0
"""How long one broker of several is waited for."""
MOST_NAMED = 3
"""How many partitions an error names."""
INIT_S = 60.0
"""How long a producer id is asked for until an error is raised; the caller asks again."""
STOP_IT = "stop the other process"
NOTHING_LOST = "Nothing is lost: the task takes over again"
_LEADERS = "leaders of partitions"
_NO_ANSWER = "no answer"
_NO_COORDINATOR = "no coordinator is known"
_FEATURE, _VERSION_2 = "transaction.version", 2
_FAILED = (KafkaError, TransportFaultError, ProducerOverError, OSError, TimeoutError)
Place = tuple[Any, str]
"""The coordinator of a group or of a transactional id."""


@dataclass(kw_only=True, eq=False)
class TransactionWriter:
    """`actors.ports.Writer` over a broker.

    `batch_bytes` returns how large a batch a topic takes; `wall_ms` the time of records whose handler gave none, in
    Unix milliseconds. `if_shared` says how another process can have come to the same transactional id, and what to do
    then.
    """

    connection: Connection
    group: str
    transactional_id: str
    transaction_timeout_ms: int
    batch_bytes: Callable[[str], int]
    compression: str | None
    commit_deadline_s: float
    wall_ms: Callable[[], int] = machine_ms
    if_shared: str = STOP_IT
    _client: Client | None = field(default=None, init=False)
    _sequences: Sequences | None = field(default=None, init=False)
    _coordinators: dict[Place, int] = field(default_factory=dict, init=False)
    _last_answers: dict[str, Callable[[], str]] = field(default_factory=dict, init=False)
    """By group, transactional id, or `_LEADERS`: describes the last answer to a request that isn't done."""
    _is_version_2: bool = field(default=False, init=False)

    async def fence(self) -> None:
        self._sequences = None
        async with self._deadline(f"InitProducerId of {self.transactional_id}", self.transactional_id):
            if self._client is None:
                self._client = await Client.connected(self.connection, "commits")
            self._is_version_2 = (await self._features()).get(_FEATURE, 0) >= _VERSION_2
            self._sequences = Sequences(*await self._init(self.transactional_id))

    async def end_transaction_of(self, transactional_id: str) -> None:
        async with self._deadline(f"ending the transaction of {transactional_id}", transactional_id):
            await self._init(transactional_id)

    async def write(self, identity: Identity, batches: Sequence[CommitBatch]) -> Sequence[CommitReceipt]:
        sequences, self._sequences = self._sequences, None
        if sequences is None:
            raise OutcomeUnknownError(f"{self.transactional_id} has a transaction of unknown outcome")
        for about in self._parties:
            self._last_answers.pop(about, None)
        try:
            async with asyncio.timeout(self.commit_deadline_s):
                return await self._write(sequences, identity, batches)
        except UnpackableError:
            self._sequences = sequences
            raise await self._unpackable(batches) from None
        except UnknownOutputError as unknown:
            self._sequences = sequences
            raise self._without_output(batches, unknown) from unknown
        except PartsFailedError as failed:
            raise await self._refused(batches, failed) from failed
        except _FAILED as error:
            raise self._unknown(error) from error

    async def close(self) -> None:
        """Close the client. The next `fence` with the id ends an open transaction."""
        self._sequences = None
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @property
    def _parties(self) -> tuple[str, ...]:
        """The keys of `_last_answers` that commits use."""
        return (_LEADERS, self.transactional_id, self.group)

    @property
    def client(self) -> Client:
        """The connection, after the first `fence`."""
        if self._client is None:
            raise AssertionError("fence() connects")
        return self._client

    @contextlib.asynccontextmanager
    async def _deadline(self, what: str, transactional_id: str) -> AsyncIterator[None]:
        with broker_errors(what, self.connection, WRITE):
            try:
                async with asyncio.timeout(INIT_S):
                    yield
            except TimeoutError as error:
                word = self._last_answers.get(transactional_id, lambda: _NO_ANSWER)()
                look = f"kafka-transactions.sh --bootstrap-server BROKER describe --transactional-id {transactional_id}"
                raise KafkaError(
                    f"it isn't done after {INIT_S:g} s, the last word of the brokers is {word}. It is asked for "
                    f"again. See whether the brokers are well, and {look}"
                ) from error

    async def _init(self, transactional_id: str) -> tuple[int, int]:
        """Return the id and epoch of a transactional id's producer, and end what it left open."""
        request = InitProducerIdRequest(transactional_id, self.transaction_timeout_ms)
        place = CoordinationType.TRANSACTION, transactional_id
        try:
            answer = await self._request(place, request, _code, may_repeat=True)
        except ProducerOverError as error:
            # Another request with the id was under way: the next one finds its end.
            raise KafkaError(str(error)) from error
        return answer.producer_id, answer.producer_epoch

    async def _features(self) -> Mapping[str, int]:
        """Return the levels of the cluster's features as the first broker that answers has them."""
        tries = 0
        while True:
            node = self.client.get_random_node()
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                if node is not None:
                    async with asyncio.timeout(ANSWER_S):
                        answer = await self.client.send(node, ApiVersionsRequest("faust-actors", "1", {}))
                    break
            tries += 1
            await asyncio.sleep(BACKOFF.delay_s(tries))
        if answer.error_code != OK:
            raise error_of(answer.error_code)
        return finalized_features(answer)

    async def _packed(self, batches: Iterable[CommitBatch]) -> dict[TopicPartition, list[Batch]]:
        """Return record batches by partition; tasks that write to one partition share them."""
        now_ms, codec = self.wall_ms(), codec_of(self.compression)
        records: dict[TopicPartition, list[Iterable[Packable]]] = defaultdict(list)
        for batch in batches:
            for topic, writes in batch.changelogs.items():
                records[TopicPartition(topic, batch.partition)].append(changelog_records(writes, now_ms))
        outputs = await by_partition(self.client, chain.from_iterable(batch.outputs for batch in batches))
        for partition, sent in outputs.items():
            records[partition].append(output_records(sent, now_ms))
        return {
            partition: pack(chain.from_iterable(parts), self.batch_bytes(partition.topic), codec)
            for partition, parts in records.items()
        }

    async def _request(
        self, place: Place, request: Any, code_of: Callable[[Any], int], *, may_repeat: bool = False
    ) -> Any:
        """Send a request to a coordinator until it is done; the caller sets the deadline.

        Raises:
            TransportFaultError: there was no answer, and the request must not be sent again.
            ProducerOverError: nothing can be sent any more.
            KafkaError: what else the coordinator answered.
        """
        tries = 0
        self._note_answer(place, request, _NO_ANSWER)
        while True:
            try:
                answer = await self._send_once(place, request)
            except (KafkaError, OSError, TimeoutError) as error:
                self._note_answer(place, request, described(error))
                self._coordinators.pop(place, None)
                # Without a connection nothing was sent.
                if not (may_repeat or isinstance(error, NodeNotReadyError)):
                    raise TransportFaultError(f"{type(request).__name__}: {type(error).__name__}: {error}") from error
            else:
                code = OK if answer is None else code_of(answer)
                if answer is not None and code == OK:
                    self._last_answers.pop(place[1], None)
                    return answer
                word = _NO_COORDINATOR if answer is None else described(error_of(code))
                text = self._note_answer(place, request, word)
                if code in PRODUCER_IS_OVER:
                    raise ProducerOverError(text(), code)
                if code != OK and code not in COORDINATOR_WAITS:
                    raise error_of(code)
                if code in NOT_HERE:
                    self._coordinators.pop(place, None)
            tries += 1
            await asyncio.sleep(BACKOFF.delay_s(tries))

    def _note_answer(self, place: Place, request: Any, word: str) -> Callable[[], str]:
        """Note a coordinator's last answer to a request; return what describes it with the request and the broker."""
        text = partial(_of_coordinator, type(request).__name__, word, place[1], self._coordinators.get(place))
        self._last_answers[place[1]] = text
        return text

    def _note_leaders(self, codes: Mapping[TopicPartition, int]) -> None:
        """Note the errors of leaders that haven't appended all."""
        part, code = next(iter(codes.items()))
        leader = self.client.cluster.leader_for_partition(part)
        self._last_answers[_LEADERS] = partial(_of_leader, part, code, leader, others=len(codes) - 1)

    async def _append(
        self, sequences: Sequences, packed: Mapping[TopicPartition, Sequence[Batch]]
    ) -> dict[TopicPartition, int]:
        """Append as `sending.append` does, and note the leaders' last answer."""
        self._last_answers[_LEADERS] = partial(_unanswered, tuple(packed))
        ends = await append(
            self.client,
            sequences,
            packed,
            transactional_id=self.transactional_id,
            is_version_2=self._is_version_2,
            tell=self._note_leaders,
        )
        self._last_answers.pop(_LEADERS, None)
        return ends

    async def _send_once(self, place: Place, request: Any) -> Any:
        """Return the coordinator's answer, None if none is known at the moment."""
        node = self._coordinators.get(place)
        if node is None:
            try:
                node = self._coordinators[place] = await self.client.coordinator_lookup(*place)
            except KafkaError as error:
                if not error.retriable:
                    raise
                return None
        return await self.client.send(node, request, group=ConnectionGroup.COORDINATION)

    @property
    def _place(self) -> Place:
        return CoordinationType.TRANSACTION, self.transactional_id

    async def _write(
        self, sequences: Sequences, identity: Identity, batches: Sequence[CommitBatch]
    ) -> list[CommitReceipt]:
        packed = await self._packed(batches)
        try:
            await self._add_offsets(sequences, identity, batches)
            await self._add_partitions(sequences, packed)
            ends = await self._append(sequences, packed)
        except PartsFailedError as failed:
            if failed.may_be_late:
                await self.fence()
            else:
                self._sequences = await self._end(sequences, is_committed=False)
            raise
        after = await self._end(sequences, is_committed=True)
        receipts = [_receipt(batch, ends) for batch in batches]
        self._sequences = after
        return receipts

    async def _add_offsets(self, sequences: Sequences, identity: Identity, batches: Iterable[CommitBatch]) -> None:
        topics = by_topic(
            (topic, (partition, committed.offset, -1, committed.metadata, {}))
            for batch in batches
            for (topic, partition), committed in batch.offsets.items()
        )
        if not topics:
            return
        producer = (self.transactional_id, sequences.producer_id, sequences.epoch)
        if not self._is_version_2:
            await self._request(self._place, AddOffsetsToTxnRequest(*producer, self.group), _code)
        offsets: Any = [(topic, each, {}) for topic, each in topics]
        member = (identity.generation, identity.member_id, None)
        request = TxnOffsetCommitRequest(
            self.transactional_id, self.group, *producer[1:], *member, offsets, {}, is_version_2=self._is_version_2
        )
        try:
            await self._request((CoordinationType.GROUP, self.group), request, _code_of_offsets)
        except IllegalGenerationError as error:
            raise self._stale_generation() from error

    async def _add_partitions(self, sequences: Sequences, partitions: Iterable[TopicPartition]) -> None:
        topics = by_topic(partitions)
        if topics and not self._is_version_2:
            request = AddPartitionsToTxnRequest(self.transactional_id, sequences.producer_id, sequences.epoch, topics)
            await self._request(self._place, request, _code_of_partitions)

    async def _end(self, sequences: Sequences, *, is_committed: bool) -> Sequences:
        """End the transaction; return the producer for the next one."""
        producer = (self.transactional_id, sequences.producer_id, sequences.epoch, is_committed)
        answer = await self._request(self._place, EndTxnRequest(*producer, is_version_2=self._is_version_2), _code)
        return Sequences(answer.producer_id, answer.producer_epoch) if self._is_version_2 else sequences

    async def _unpackable(self, batches: Sequence[CommitBatch]) -> BatchesRefusedError:
        errors: dict[int, TaskError] = {}
        for place, batch in enumerate(batches):
            try:
                await self._packed([batch])
            except UnpackableError as error:
                errors[place] = CommitRefusedError(f"{batch}: {error}")
            except UnknownOutputError as unknown:
                errors[place] = self._unknown_output(batch, unknown)
        return BatchesRefusedError(errors)

    async def _refused(self, batches: Sequence[CommitBatch], failed: PartsFailedError) -> BatchesRefusedError:
        found: dict[int, TaskError] = {}
        for place, batch in enumerate(batches):
            try:
                outputs = await by_partition(self.client, batch.outputs, wait_s=0)
            except UnknownOutputError as unknown:
                found[place] = self._unknown_output(batch, unknown)
                continue
            changelogs = [TopicPartition(topic, batch.partition) for topic in batch.changelogs]
            for part in batch.offsets if failed.of_offsets else (*changelogs, *outputs):
                if part in failed.errors:
                    has_own_time = any(output.timestamp_ms is not None for output in outputs.get(part, ()))
                    found[place] = self._refusal(batch, part, failed, has_own_time=has_own_time)
                    break
        return BatchesRefusedError(found)

    def _without_output(self, batches: Sequence[CommitBatch], unknown: UnknownOutputError) -> BatchesRefusedError:
        return BatchesRefusedError(
            {
                place: self._unknown_output(batch, unknown)
                for place, batch in enumerate(batches)
                if any(output.topic == unknown.topic for output in batch.outputs)
            }
        )

    def _unknown_output(self, batch: CommitBatch, unknown: UnknownOutputError) -> OutcomeUnknownError:
        missing = lacking(unknown.error, self.connection.principal, WRITE, name=unknown.topic)
        why = missing or f"{unknown.topic}: {described(unknown.error)}"
        return OutcomeUnknownError(f"{batch}: {why}", missing=missing)

    def _refusal(
        self, batch: CommitBatch, part: TopicPartition, failed: PartsFailedError, *, has_own_time: bool
    ) -> CommitRefusedError | OutcomeUnknownError:
        error = failed.errors[part]
        what = f"{batch}: {part}: {described(error)}"
        if is_refusal(error, has_own_time=has_own_time):
            return CommitRefusedError(what)
        # An offset needs Read on its topic.
        is_read = failed.of_offsets and isinstance(error, TopicAuthorizationFailedError)
        missing = lacking(error, self.connection.principal, READ if is_read else WRITE, name=part.topic)
        return OutcomeUnknownError(f"{batch}: {missing}" if missing else what, missing=missing)

    def _stale_generation(self) -> StaleGenerationError:
        return StaleGenerationError(
            f"commit of {self.transactional_id}: {self._last_answers[self.group]()}: the group has another generation "
            f"than this worker. {NOTHING_LOST}, if the partition is still this worker's. If it happens again and "
            "again, the worker doesn't answer the group in time: look for handlers that block, or raise "
            "broker_session_timeout"
        )

    def _unknown(self, error: Exception) -> OutcomeUnknownError:
        what = f"commit of {self.transactional_id}"
        if isinstance(error, ProducerOverError) and error.code in FENCED:
            return FencedError(
                f"{what}: {error}: another process uses transactional id {self.transactional_id}, or the brokers ended "
                f"its transaction after {self.transaction_timeout_ms / 1000:g} s. {NOTHING_LOST}. If it happens again "
                f"and again, {self.if_shared}"
            )
        missing = lacking(error, self.connection.principal, WRITE, name=self.transactional_id)
        if missing:
            return OutcomeUnknownError(f"{what}: {missing}", missing=missing)
        if isinstance(error, TimeoutError):
            wait_s = 0.0 if self._client is None else self._client.throttled_s(self.commit_deadline_s)
            quota = f"; a broker let this client wait {wait_s:.1f} s, because of a quota of its user or client id"
            answers = [self._last_answers[about]() for about in self._parties if about in self._last_answers]
            return OutcomeUnknownError(
                f"{what}: the brokers didn't finish it within {self.commit_deadline_s:g} s; the last word is "
                f"{'; '.join(answers) or _NO_ANSWER}{quota if wait_s else ''}. {NOTHING_LOST}. If it happens again and "
                "again, see whether that broker is well, and its log"
            )
        if isinstance(error, ProducerOverError):
            return OutcomeUnknownError(
                f"{what}: {error}: the producer or its transaction is unknown to the broker. {NOTHING_LOST}, "
                "with a new producer epoch. If it happens again and again, look for the transactional id in that "
                "broker's log"
            )
        return OutcomeUnknownError(f"{what}: {described(error) if isinstance(error, KafkaError) else error}")


def _of_coordinator(request: str, word: str, about: str, node: int | None) -> str:
    return f"{request}: {word} (coordinator of {about}" + (")" if node is None else f", broker {node})")


def _of_leader(part: TopicPartition, code: int, leader: int | None, *, others: int) -> str:
    more = f", and {others} more partitions" if others else ""
    return f"ProduceRequest: {described(error_of(code))} (leader of {part}, broker {leader}{more})"


def _unanswered(parts: Sequence[TopicPartition]) -> str:
    names = ", ".join(map(str, parts[:MOST_NAMED]))
    more = f" and {len(parts) - MOST_NAMED} more partitions" if len(parts) > MOST_NAMED else ""
    return f"ProduceRequest: {_NO_ANSWER} (leaders of {names}{more})"


def _code(answer: Any) -> int:
    return int(answer.error_code)


def _code_of_offsets(answer: Any) -> int:
    codes = ((name, partition, code) for name, partitions, _ in answer.topics for partition, code, _ in partitions)
    return _common_code(codes, of_offsets=True)


def _code_of_partitions(answer: Any) -> int:
    codes = ((name, partition, code) for name, partitions in answer.errors for partition, code in partitions)
    return _common_code(codes, of_offsets=False)


def _common_code(codes: Iterable[tuple[str, int, int]], *, of_offsets: bool) -> int:
    """Return a coordinator's error about the whole transaction.

    Raises:
        PartsFailedError: it says something of some partitions.
    """
    failed = {}
    for topic, partition, code in codes:
        if code in OF_A_PARTITION:
            failed[TopicPartition(topic, partition)] = error_of(code, topic)
        elif code not in (OK, OPERATION_NOT_ATTEMPTED):
            return code
    if failed:
        raise PartsFailedError(failed, of_offsets=of_offsets)
    return OK


def _receipt(batch: CommitBatch, ends: Mapping[TopicPartition, int]) -> CommitReceipt:
    """Return the end offsets of a batch's changelog records.

    Raises:
        KafkaError: a leader took records without saying where: they may be a repeat.
    """
    offsets = {topic: ends[TopicPartition(topic, batch.partition)] for topic in batch.changelogs}
    unknown = [topic for topic, end in offsets.items() if end < 0]
    if unknown:
        raise KafkaError(f"{unknown[0]} took a batch without saying where: it may be a repeat")
    return CommitReceipt(offsets)

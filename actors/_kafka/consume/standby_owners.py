"""Who keeps which copies, as the group's coordinator has it: what the leader told each member, and who that is.

No topic of its own: the answer is as old as the last assignment, and there is none while the group rebalances.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.protocol.admin import DescribeGroupsRequest

from actors._core.group.assign import Member, TaskId, decode_member_data, words_of
from actors._core.group.placement import Copies, decode_copies
from actors._core.group.programs import admit, words_of_refusal
from actors._kafka.admin.control import ControlPlane
from actors._kafka.connection import broker_errors
from actors._kafka.consume.assignor import readable


@dataclass(frozen=True, slots=True)
class Members:
    """The group's workers: the addresses of those that have one, and, for a person, which members get no partitions.

    Empty in a rebalance.
    """

    addresses: list[str]
    troubles: list[str]


class KafkaCopies:
    """Asks the coordinator of a group."""

    def __init__(self, control: ControlPlane, group: str) -> None:
        self._control = control
        self._group = group

    async def addresses(self) -> dict[TaskId, list[str]]:
        """Give the addresses of the workers that keep a copy of each task, standbys first; empty in a rebalance.

        Raises:
            BrokerUnavailableError: the coordinator doesn't answer.
        """
        standbys: dict[TaskId, list[str]] = {}
        warm_ups: dict[TaskId, list[str]] = {}
        for member, _, copies in await self._members():
            if not member.address:
                continue
            for tasks, found in ((copies.standbys, standbys), (copies.warm_ups, warm_ups)):
                for task in sorted(tasks):
                    found.setdefault(task, []).append(member.address)
        return {task: standbys.get(task, []) + warm_ups.get(task, []) for task in standbys.keys() | warm_ups.keys()}

    async def members(self) -> Members:
        """Give who is in the group.

        Raises:
            BrokerUnavailableError: the coordinator doesn't answer.
        """
        found = await self._members()
        hosts = {member.member_id: host for member, host, _ in found}
        refused = admit([member for member, _, _ in found]).refused
        return Members(
            [member.address for member, _, _ in found if member.address],
            [words_of(member, hosts[member.member_id]) for member, _, _ in found if member.trouble]
            + [words_of_refusal(member_id, why, hosts[member_id]) for member_id, why in sorted(refused.items())],
        )

    async def _members(self) -> list[tuple[Member, str, Copies]]:
        """Give what each member says of itself, its host, and its copies."""
        found = []
        with broker_errors(f"members of group {self._group}", self._control.connection):
            response = await self._control.ask_coordinator(DescribeGroupsRequest([self._group]))
            for group in response.groups:
                self._control.check(group[0])
                for member_id, _, host, metadata, assignment, *_ in group[5]:
                    if metadata and assignment:
                        said = ConsumerProtocolMemberMetadata.decode(readable(metadata)).user_data
                        found.append((decode_member_data(member_id, said), host, _copies_of(assignment)))
        return found


def _copies_of(assignment: bytes) -> Copies:
    """Give a member's copies; none where the group's leader, another program, sent something else."""
    try:
        return decode_copies(ConsumerProtocolMemberAssignment.decode(assignment).user_data)
    except (ValueError, TypeError):
        return Copies()

"""Who keeps which copies, as the group's coordinator has it: what the leader told each member, and who that is.

No topic of its own: the answer is as old as the last assignment, and there is none while the group rebalances.
"""

from __future__ import annotations

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from aiokafka.protocol.admin import DescribeGroupsRequest

from actors._core.assign import Task, decode_member_data
from actors._core.placement import Copies, decode_copies
from actors._kafka.connection import broker_errors
from actors._kafka.control import ControlPlane


class KafkaCopies:
    """Asks the coordinator of a group."""

    def __init__(self, control: ControlPlane, group: str) -> None:
        self._control = control
        self._group = group

    async def addresses(self) -> dict[Task, list[str]]:
        """Give the addresses of the workers that keep a copy of each task, standbys first; empty in a rebalance.

        Raises:
            BrokerUnavailableError: the coordinator doesn't answer.
        """
        standbys: dict[Task, list[str]] = {}
        warm_ups: dict[Task, list[str]] = {}
        for address, copies in await self._members():
            for tasks, found in ((copies.standbys, standbys), (copies.warm_ups, warm_ups)):
                for task in sorted(tasks):
                    found.setdefault(task, []).append(address)
        return {task: standbys.get(task, []) + warm_ups.get(task, []) for task in standbys.keys() | warm_ups.keys()}

    async def members(self) -> list[str]:
        """Give the addresses of all workers of the group that have one; empty in a rebalance.

        Raises:
            BrokerUnavailableError: the coordinator doesn't answer.
        """
        return [address for address, _ in await self._members()]

    async def _members(self) -> list[tuple[str, Copies]]:
        """Give address and copies of each member that has an address."""
        found = []
        with broker_errors(f"members of group {self._group}"):
            response = await self._control.ask_coordinator(DescribeGroupsRequest([self._group]))
            for group in response.groups:
                self._control.check(group[0])
                for member_id, _, _, metadata, assignment, *_ in group[5]:
                    if not metadata or not assignment:
                        continue
                    said = ConsumerProtocolMemberMetadata.decode(metadata).user_data
                    copies = decode_copies(ConsumerProtocolMemberAssignment.decode(assignment).user_data)
                    address = decode_member_data(member_id, said).address
                    if address:
                        found.append((address, copies))
        return found

"""The cheapest flow through a network.

Source: successive shortest paths with potentials (Ahuja, Magnanti, Orlin, Network Flows, chapter 9).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

_UNREACHED = 1 << 200


class Flow:
    """A maximal flow of least cost, where every edge out of the source has capacity 1.

    Edge `e` and its reverse `e ^ 1` are neighbours in the lists.
    """

    def __init__(self) -> None:
        self._edges_of: list[list[int]] = []
        self._target: list[int] = []
        self._capacity: list[int] = []
        self._cost: list[int] = []

    def add_node(self) -> int:
        self._edges_of.append([])
        return len(self._edges_of) - 1

    def add_edge(self, start: int, end: int, *, capacity: int, cost: int) -> int:
        edge = len(self._target)
        self._target += (end, start)
        self._capacity += (capacity, 0)
        self._cost += (cost, -cost)
        self._edges_of[start].append(edge)
        self._edges_of[end].append(edge + 1)
        return edge

    def flow_of(self, edge: int) -> int:
        return self._capacity[edge ^ 1]

    def solve(self, source: int, sink: int) -> None:
        potential = [0] * len(self._edges_of)
        reachable = True
        while reachable:
            self._push_along_cheapest(source, sink, potential)
            reachable = self._raise_potentials(source, sink, potential)

    def _raise_potentials(self, source: int, sink: int, potential: list[int]) -> bool:
        """Make the cheapest paths to the sink cost nothing on top of the potentials; False without a path."""
        distance = self._distances(source, sink, potential)
        limit = distance[sink]
        if limit == _UNREACHED:
            return False
        for node, reached in enumerate(distance):
            potential[node] += min(reached, limit)
        return True

    def _distances(self, source: int, sink: int, potential: Sequence[int]) -> list[int]:
        """Return the distances from the source, exact up to the sink's (Dijkstra)."""
        targets, capacities, costs = self._target, self._capacity, self._cost
        distance = [_UNREACHED] * len(self._edges_of)
        distance[source] = 0
        heap = [(0, source)]
        while heap:
            reached, node = heapq.heappop(heap)
            if node == sink:
                break
            if reached > distance[node]:
                continue
            base = reached + potential[node]
            for edge in self._edges_of[node]:
                if capacities[edge]:
                    end = targets[edge]
                    there = base + costs[edge] - potential[end]
                    if there < distance[end]:
                        distance[end] = there
                        heapq.heappush(heap, (there, end))
        return distance

    def _push_along_cheapest(self, source: int, sink: int, potential: Sequence[int]) -> None:
        """Push units along edges that cost nothing on top of the potentials, while a search finds a way."""
        left = [iter(edges) for edges in self._edges_of]
        seen = bytearray(len(self._edges_of))
        while path := self._find_path(source, sink, potential, left, seen):
            for edge in path:
                self._capacity[edge] -= 1
                self._capacity[edge ^ 1] += 1
                seen[self._target[edge]] = 0

    def _find_path(
        self, source: int, sink: int, potential: Sequence[int], left: list[Any], seen: bytearray
    ) -> list[int]:
        """Return a path as its edges, empty if there is none.

        `left` are the edges not tried yet, by node; `seen` marks nodes on the path and dead ends. Edges are
        tried in the order in which they were added: that decides between paths of equal cost.
        """
        targets = self._target
        path: list[int] = []
        node = source
        while node != sink:
            seen[node] = 1
            edge = self._next_edge(node, potential, left[node], seen)
            if edge is not None:
                path.append(edge)
                node = targets[edge]
            elif path:
                node = targets[path.pop() ^ 1]
            else:
                return []
        # An edge with room for more than this unit was taken off its iterator: begin with it again.
        for edge in path[1:]:
            start = targets[edge ^ 1]
            left[start] = iter(self._edges_of[start])
        return path

    def _next_edge(self, node: int, potential: Sequence[int], left: Any, seen: bytearray) -> int | None:
        targets, capacities, costs = self._target, self._capacity, self._cost
        here = potential[node]
        for edge in left:
            end = targets[edge]
            if capacities[edge] and not seen[end] and costs[edge] + here == potential[end]:
                return int(edge)
        return None

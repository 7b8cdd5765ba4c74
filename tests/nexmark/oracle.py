"""What Nexmark's queries say of all events at once, in SQL.

`END` is the end of everything that closes: the last events of all partitions are there, and what they begin stays open.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import msgspec

from tests.nexmark.events import DAY_MS, END_MS, Events

_SOLD = f"""
    select a.id as id, a.seller, a.category, a.expires_ms, b.id as bid, b.price, b.at_ms
    from auctions a join bids b on b.auction = a.id and b.at_ms between a.at_ms and a.expires_ms
    where a.expires_ms < {END_MS}
    qualify row_number() over (partition by a.id order by b.price desc, b.at_ms) = 1
"""
_STATISTICS = """
    select {key}, at_ms // {day} * {day} as day, count(*), count(*) filter (price < 10000),
        count(*) filter (price < 1000000), count(distinct bidder), count(distinct auction)
    from bids group by all having day + {day} < {end}
"""

SQL = {
    "q0": "select auction, bidder, price, at_ms from bids",
    "q1": "select auction, bidder, price * 908, at_ms from bids",
    "q2": "select auction, price from bids where auction % 123 = 0",
    "q3": """
        select p.name, p.city, p.state, a.id from auctions a join persons p on p.id = a.seller
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')
    """,
    "q4": f"select category, avg(price) from ({_SOLD}) group by category",
    "q5": f"""
        with counts as (
            select start, auction, count(*) as number
            from bids, lateral unnest(generate_series(at_ms // 2000 * 2000 - 8000, at_ms, 2000)) as w(start)
            where start + 12000 < {END_MS}
            group by start, auction
        )
        select start + 10000, auction, number from counts
        qualify row_number() over (partition by start order by number desc, auction) = 1
    """,
    "q6": f"""
        select seller, avg(price) from (
            select *, row_number() over (partition by seller order by expires_ms desc, id desc) as place from ({_SOLD})
        ) where place <= 10 group by seller
    """,
    "q7": f"""
        select at_ms // 10000 * 10000 as start, auction, bidder, price from bids where start + 12000 < {END_MS}
        qualify row_number() over (partition by start order by price desc, id) = 1
    """,
    "q8": f"""
        select distinct p.id, p.name, p.at_ms // 10000 * 10000 as start
        from persons p join auctions a on a.seller = p.id and p.at_ms // 10000 = a.at_ms // 10000
        where start + 12000 < {END_MS}
    """,
    "q9": f"select id, bid, price, at_ms from ({_SOLD})",
    "q11": f"""
        with steps as (
            select *, at_ms - lag(at_ms) over (partition by bidder order by at_ms) > 10000 as is_first from bids
        ), sessions as (
            select *, count(*) filter (is_first) over (partition by bidder order by at_ms) as session from steps
        )
        select bidder, count(*), min(at_ms), max(at_ms) as last from sessions
        group by bidder, session having last + 12000 < {END_MS}
    """,
    "q12": "select bidder, count(*) from bids group by bidder",
    "q13": "select auction, bidder, price, 'name ' || auction % 1000 from bids where auction % 1000 < 500",
    "q14": """
        select auction, price, case when hour between 8 and 18 then 'day' when hour <= 6 or hour >= 20 then 'night'
            else 'other' end, length(extra) - length(replace(extra, 'c', ''))
        from (select *, at_ms // 3600000 % 24 as hour from bids) where price * 0.908 between 1000000 and 50000000
    """,
    "q15": _STATISTICS.format(key="'all'", day=DAY_MS, end=END_MS),
    "q16": _STATISTICS.format(key="channel", day=DAY_MS, end=END_MS),
    "q17": f"""
        select auction, at_ms // {DAY_MS} * {DAY_MS} as day, count(*), count(*) filter (price < 10000), min(price),
            max(price), sum(price)::bigint
        from bids group by all having day + {DAY_MS} < {END_MS}
    """,
    "q18": """
        select bidder || '/' || auction, id, 1 from bids
        qualify row_number() over (partition by bidder, auction order by at_ms desc, id desc) = 1
    """,
    "q19": """
        select auction, id, row_number() over (partition by auction order by price desc, id) as place from bids
        qualify place <= 10
    """,
    "q20": """
        select a.id, a.item, b.bidder, b.price from bids b join auctions a on a.id = b.auction where a.category = 10
    """,
    "q22": "select id, split_part(url, '/', 4), split_part(url, '/', 5), split_part(url, '/', 6) from bids",
}


class Oracle:
    """The events in DuckDB."""

    def __init__(self, events: Events, folder: Path) -> None:
        self._database = duckdb.connect()
        for name in ("persons", "auctions", "bids"):
            path = folder / f"{name}.jsonl"
            path.write_bytes(b"\n".join(msgspec.json.encode(event) for event in getattr(events, name)))
            self._database.execute(f"create table {name} as select * from read_json('{path}')")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, sorted."""
        return sorted(self._database.execute(SQL[query]).fetchall())

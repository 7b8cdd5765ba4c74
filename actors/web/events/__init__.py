"""Committed changes of stores as server-sent events: `GET /stores/{store}/events` and `/stores/{store}/{key}/events`.

    changelog ──▶ one broadcast for a store, in each worker that has followers of it ──▶ followers, by key
                    └── what a follower missed is read from its position on, for all that wait at a time

A broadcast reads committed records only. A follower's position goes with each event as its id, so that a client resumes
at any worker with `Last-Event-ID`, and misses nothing that the changelog still has.
"""

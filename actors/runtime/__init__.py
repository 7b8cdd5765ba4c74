"""Executes what `actors._core` decides, over the ports of `actors.ports`. Knows neither Kafka's client nor Faust.

A room imports only rooms further down in this list. No imports run in circles, type-only and late ones included.

    worker       one per process: dispatches records to tasks, starts and stops tasks as partitions come and go
    observe      status, traces, and what a start waits for
    queries      reads committed state of owned partitions, and of standbys
    replicas     copies that follow a topic: standbys of other owners' tasks, and views
    task         one per owned partition: takes over, then handles, commits and stores
    quarantine   messages that their handler can't handle, and those that wait behind them
    outbox       effects that wait for their call, and the calls
    timers       messages that an actor's key sends to itself later
    spec         what a task is made with: its actor, the worker's settings, the services
    state        a task's stores: opens them, brings them to the end of their changelogs, writes commits to them
    requests     `ctx.ask`: requests between actors and their replies
    handlers     what an app declares: class actors, queries, effects; and what is wrapped around a handler
    message      one message: its context, the stores and outputs that it reaches, its errors

Below them are single modules: `commands` (admin commands), `clock`, `meters`, `threads`, `blocking`,
`cancellation`.
"""

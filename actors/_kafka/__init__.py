"""The only user of aiokafka: `actors.ports` over a broker.

connection.py   what every client is made with
protocol.py     requests that aiokafka lacks
control.py      questions to coordinators and leaders, with every error code looked at
logs.py         reads committed records
producer.py     a task's transactions (exactly once), or its ordered writes (at least once)
consumer.py     the worker's one consumer, its rebalances and the assignor's carriage
owners.py       the leader registry
topics.py       makes and checks topics
"""

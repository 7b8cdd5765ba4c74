"""The only user of aiokafka: `actors.ports` over brokers.

connection.py     what every client is made with, and what its errors become
client.py         aiokafka's clients as this process owns them: all its private names, and hooks around requests
outage.py         brokers that are away: one back-off and one log line for all clients
reaching.py       why a first connection failed
permissions.py    access lists; tokens.py: SASL OAUTHBEARER
protocol.py       requests that aiokafka lacks
requests.py       questions and their answers, over a producer and a consumer
admin/            questions to coordinators and leaders, topics, permissions, the registry of owners
consume/          the worker's one consumer and its group; reading of logs; records as the parser makes them
produce/          a worker's transactions
"""

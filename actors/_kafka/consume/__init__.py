"""Reading from Kafka: inputs, changelogs, views, and the group's protocol."""

"""Kafka's own tools, each run in a JVM of its own."""

import subprocess

from actors.local_kafka.errors import LocalKafkaError
from actors.local_kafka.jars import tool_command

TOPIC_COMMAND = "org.apache.kafka.tools.TopicCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GET_OFFSET_SHELL = "org.apache.kafka.tools.GetOffsetShell"
CONSUMER_GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
LOG_DIRS_COMMAND = "org.apache.kafka.tools.LogDirsCommand"


def run_tool(
    main_class: str, *args: str, stdin: str | None = None, timeout_s: float = 60.0, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs one of Kafka's Java tools to its end.

    Args:
        main_class: The class to run, one of this module's constants.
        *args: Its arguments.
        stdin: Its standard input; empty if None.
        timeout_s: After so many seconds it is killed.
        check: Whether an exit code other than 0 raises.

    Raises:
        LocalKafkaError: It failed and `check` is set, or took too long.
    """
    name = main_class.rpartition(".")[2]
    try:
        result = subprocess.run(
            tool_command(main_class, *args),
            input=stdin or "",
            text=True,
            capture_output=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise LocalKafkaError(f"{name} was not done after {timeout_s:g} s: {' '.join(args)}") from error
    if check and result.returncode != 0:
        raise LocalKafkaError(f"{name} failed ({result.returncode}): {_last_line(result.stdout + result.stderr)}")
    return result


def _last_line(output: str) -> str:
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "it says nothing more")

package peers;

import java.util.List;

/** The typed value of the main job. */
public record RunCommand(String command, List<String> args) {}

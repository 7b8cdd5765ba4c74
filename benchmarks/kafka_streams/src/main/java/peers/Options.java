package peers;

import java.util.HashMap;
import java.util.Map;

/** The command line: {@code --name value} pairs, each of which has a default or must be given. */
final class Options {
    private final Map<String, String> given = new HashMap<>();

    Options(String[] args) {
        if (args.length % 2 != 0) {
            throw new IllegalArgumentException("options are pairs of --name and value");
        }
        for (int i = 0; i < args.length; i += 2) {
            if (!args[i].startsWith("--")) {
                throw new IllegalArgumentException("not an option: " + args[i]);
            }
            given.put(args[i].substring(2), args[i + 1]);
        }
    }

    String get(String name) {
        String value = given.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    String get(String name, String otherwise) {
        return given.getOrDefault(name, otherwise);
    }

    boolean isOn(String name) {
        return "on".equals(get(name, "off"));
    }
}

import java.util.Arrays;
import java.util.List;
import java.util.function.BiConsumer;

/** Command-line settings: {@code key=value}, or {@code key=[a,b]} for a list. */
final class Arguments {
    private Arguments() {}

    static void each(String[] arguments, BiConsumer<String, String> value, BiConsumer<String, List<String>> list) {
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            if (at < 1) {
                throw new IllegalArgumentException("expected key=value, not " + argument);
            }
            String key = argument.substring(0, at);
            String text = argument.substring(at + 1);
            if (text.startsWith("[") && text.endsWith("]")) {
                list.accept(key, Arrays.asList(text.substring(1, text.length() - 1).split(",")));
            } else {
                value.accept(key, text);
            }
        }
    }
}

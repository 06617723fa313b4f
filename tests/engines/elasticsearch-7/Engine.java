import java.util.List;
import java.util.Map;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.node.InternalSettingsPreparer;
import org.elasticsearch.node.Node;
import org.elasticsearch.transport.Netty4Plugin;

/** A node of Elasticsearch 7 inside this process. Arguments are settings: {@code key=value} or {@code key=[a,b]}. */
public final class Engine extends Node {
    private Engine(Settings settings) {
        super(
            InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "test"),
            List.of(Netty4Plugin.class, Analysis.class),
            true);
    }

    public static void main(String[] arguments) throws Exception {
        Owner.exitWithOwner();
        Settings.Builder settings = Settings.builder();
        Arguments.each(arguments, settings::put, settings::putList);
        new Engine(settings.build()).start();
        Thread.currentThread().join();
    }
}

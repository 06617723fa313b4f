import java.util.List;
import java.util.Map;
import org.opensearch.analysis.common.CommonAnalysisPlugin;
import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** A node of OpenSearch 2 inside this process. Arguments are settings: {@code key=value} or {@code key=[a,b]}. */
public final class Engine extends Node {
    private Engine(Settings settings) {
        super(
            InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "test"),
            List.of(Netty4Plugin.class, CommonAnalysisPlugin.class),
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

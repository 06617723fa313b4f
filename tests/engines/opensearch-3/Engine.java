import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.opensearch.Version;
import org.opensearch.analysis.common.CommonAnalysisModulePlugin;
import org.opensearch.common.settings.Settings;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.plugins.PluginInfo;
import org.opensearch.transport.Netty4ModulePlugin;

/** A node of OpenSearch 3 inside this process. Arguments are settings: {@code key=value} or {@code key=[a,b]}. */
public final class Engine extends Node {
    private Engine(Settings settings) {
        super(
            InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "test"),
            Stream.of(Netty4ModulePlugin.class, CommonAnalysisModulePlugin.class).map(Engine::describe).toList(),
            true);
    }

    private static PluginInfo describe(Class<?> plugin) {
        String name = plugin.getName();
        return new PluginInfo(name, name, "NA", Version.CURRENT, "21", name, null, List.of(), false);
    }

    public static void main(String[] arguments) throws Exception {
        Owner.exitWithOwner();
        Settings.Builder settings = Settings.builder();
        Arguments.each(arguments, settings::put, settings::putList);
        new Engine(settings.build()).start();
        Thread.currentThread().join();
    }
}

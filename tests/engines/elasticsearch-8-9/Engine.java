import java.util.List;
import java.util.Map;
import org.elasticsearch.cluster.service.ClusterService;
import org.elasticsearch.common.logging.LogConfigurator;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.env.Environment;
import org.elasticsearch.node.ClassPathNode;
import org.elasticsearch.node.InternalSettingsPreparer;
import org.elasticsearch.node.Node;
import org.elasticsearch.rest.RestController;
import org.elasticsearch.transport.netty4.Netty4Plugin;

/** A node of Elasticsearch 8 or 9 inside this process. Arguments are settings: {@code key=value} or {@code key=[a,b]}. */
public final class Engine {
    private Engine() {}

    public static void main(String[] arguments) throws Exception {
        Owner.exitWithOwner();
        LogConfigurator.configureESLogging();
        Settings.Builder settings = Settings.builder();
        Arguments.each(arguments, settings::put, settings::putList);
        Environment environment = InternalSettingsPreparer.prepareEnvironment(settings.build(), Map.of(), null, () -> "test");
        Node node = new ClassPathNode(environment, List.of(Netty4Plugin.class, Analysis.class));
        // Not by an ActionPlugin: its method differs between versions of Elasticsearch.
        RestController controller = node.injector().getInstance(RestController.class);
        ClusterService cluster = node.injector().getInstance(ClusterService.class);
        controller.registerHandler(new RootAction(Node.NODE_NAME_SETTING.get(node.settings()), cluster));
        node.start();
        Thread.currentThread().join();
    }
}

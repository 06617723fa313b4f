import java.nio.file.Path;
import org.neo4j.configuration.GraphDatabaseSettings;
import org.neo4j.configuration.connectors.BoltConnector;
import org.neo4j.configuration.helpers.SocketAddress;
import org.neo4j.dbms.api.DatabaseManagementServiceBuilder;

/** Neo4j 5 inside this process: Bolt on the loopback address, without users. Arguments: directory, port. */
public final class GraphDatabase {
    private GraphDatabase() {}

    public static void main(String[] arguments) throws Exception {
        Owner.exitWithOwner();
        Path directory = Path.of(arguments[0]);
        int port = Integer.parseInt(arguments[1]);
        var service =
            new DatabaseManagementServiceBuilder(directory)
                .setConfig(BoltConnector.enabled, true)
                .setConfig(BoltConnector.listen_address, new SocketAddress("127.0.0.1", port))
                .setConfig(GraphDatabaseSettings.pagecache_memory, 64L << 20)
                .build();
        Runtime.getRuntime().addShutdownHook(new Thread(service::shutdown));
        System.out.println("ready");
        Thread.currentThread().join();
    }
}

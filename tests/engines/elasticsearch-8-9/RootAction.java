import java.io.IOException;
import java.util.List;
import org.elasticsearch.Build;
import org.elasticsearch.client.internal.node.NodeClient;
import org.elasticsearch.cluster.ClusterState;
import org.elasticsearch.cluster.service.ClusterService;
import org.elasticsearch.index.IndexVersion;
import org.elasticsearch.rest.BaseRestHandler;
import org.elasticsearch.rest.RestRequest;
import org.elasticsearch.rest.RestResponse;
import org.elasticsearch.rest.RestStatus;
import org.elasticsearch.xcontent.XContentBuilder;

/** {@code GET /} and {@code HEAD /}, which Elasticsearch ships in a module that is in no Maven repository. */
final class RootAction extends BaseRestHandler {
    private final String node;
    private final ClusterService cluster;

    RootAction(String node, ClusterService cluster) {
        this.node = node;
        this.cluster = cluster;
    }

    @Override
    public String getName() {
        return "root";
    }

    @Override
    public List<Route> routes() {
        return List.of(new Route(RestRequest.Method.GET, "/"), new Route(RestRequest.Method.HEAD, "/"));
    }

    @Override
    protected RestChannelConsumer prepareRequest(RestRequest request, NodeClient client) {
        return channel -> channel.sendResponse(new RestResponse(RestStatus.OK, describe(channel.newBuilder())));
    }

    private XContentBuilder describe(XContentBuilder body) throws IOException {
        ClusterState state = cluster.state();
        Build build = Build.current();
        body.startObject();
        body.field("name", node);
        body.field("cluster_name", state.getClusterName().value());
        body.field("cluster_uuid", state.metadata().clusterUUID());
        body.startObject("version");
        body.field("number", build.qualifiedVersion());
        body.field("build_flavor", build.flavor());
        body.field("build_type", build.type().displayName());
        body.field("build_hash", build.hash());
        body.field("build_date", build.date());
        body.field("build_snapshot", build.isSnapshot());
        body.field("lucene_version", IndexVersion.current().luceneVersion().toString());
        body.field("minimum_wire_compatibility_version", build.minWireCompatVersion());
        body.field("minimum_index_compatibility_version", build.minIndexCompatVersion());
        body.endObject();
        body.field("tagline", "You Know, for Search");
        return body.endObject();
    }
}

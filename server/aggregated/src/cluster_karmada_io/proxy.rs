//! `clusters/NAME/proxy`: the API of a member, accessed with the caller's identity; `*` means all members.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;

use crate::forwarding::{to_proxy_request, to_response};

use crate::resource::{CONNECT, Call, Connect, Definition, HandledResource, Members, Paths};

pub(super) static CLUSTER_PROXY: HandledResource = HandledResource::new(
    Definition {
        subresource: "proxy",
        route: "clusters/proxy",
        members: Members::Named,
        connect: Some(Connect::Options("ClusterProxyOptions")),
        ..Definition::new("clusters", "Cluster", CONNECT, Paths::ObjectAndSubpaths)
    },
    |call| Box::pin(forward(call)),
);

async fn forward(Call { server, context, request }: Call<'_>) -> Result<Response, ApiError> {
    let (proxy, path) = (&server.running()?.proxy, context.attributes.subpath());
    Ok(to_response(proxy.cluster(context.name(), &context.user, path, to_proxy_request(request)).await))
}

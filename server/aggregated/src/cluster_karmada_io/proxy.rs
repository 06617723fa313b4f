//! `clusters/NAME/proxy`: the API of a member, with the caller's identity there; `*` is the name of all members.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use futures::future::BoxFuture;

use crate::forwarding::{to_proxy_request, to_response};

use crate::resource::{CONNECT, Call, Connect, Definition, Members, Paths, Resource};

pub(super) struct ClusterProxy;

impl Resource for ClusterProxy {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = Definition {
            subresource: "proxy",
            route: "clusters/proxy",
            ..Definition::new("clusters", "Cluster", CONNECT, Paths::ObjectAndSubpaths)
        };
        &DEFINITION
    }

    fn members(&self) -> Members {
        Members::Named
    }

    fn connect(&self) -> Option<Connect> {
        Some(Connect::Options("ClusterProxyOptions"))
    }

    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move {
            let Call { server, context, request } = call;
            let (proxy, path) = (&server.running()?.proxy, context.attributes.below());
            Ok(to_response(proxy.cluster(context.name(), &context.user, path, to_proxy_request(request)).await))
        })
    }
}

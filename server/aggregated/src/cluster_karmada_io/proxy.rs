//! `clusters/NAME/proxy`: the API of a member, with the caller's identity there; `*` is the name of all members.

use async_trait::async_trait;
use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;

use crate::forwarding::{incoming, outgoing};

use crate::resource::{CONNECT, Call, Definition, Members, Paths, Resource};

pub(super) struct ClusterProxy;

#[async_trait]
impl Resource for ClusterProxy {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = Definition {
            subresource: "proxy",
            route: "clusters/proxy",
            ..Definition::new("clusters", "Cluster", CONNECT, Paths::Below)
        };
        &DEFINITION
    }

    fn members(&self) -> Members {
        Members::Named
    }

    async fn serve(&self, call: Call<'_>) -> Result<Response, ApiError> {
        let Call { server, context, request } = call;
        let (proxy, path) = (&server.running()?.proxy, context.attributes.below());
        Ok(incoming(proxy.cluster(context.name(), &context.user, path, outgoing(request)).await))
    }
}

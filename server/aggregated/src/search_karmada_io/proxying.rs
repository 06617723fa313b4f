//! `proxying/NAME/proxy`: one API over all members, with the caller's identity in each.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use futures::future::BoxFuture;

use super::running_with_registries;
use crate::forwarding::{to_proxy_request, to_response};

use crate::resource::{CONNECT, Call, Connect, Definition, Members, Paths, Resource};

/// The resource itself, which Karmada lists in discovery and does not serve.
pub(super) struct Proxying;
pub(super) struct FleetProxy;

impl Resource for Proxying {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = Definition {
            singular: "proxying",
            ..Definition::new("proxying", "Proxying", CONNECT, Paths::DiscoveryOnly)
        };
        &DEFINITION
    }

    fn serve<'a>(&'a self, _call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move { Err(ApiError::unknown_resource()) })
    }
}

impl Resource for FleetProxy {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = Definition {
            subresource: "proxy",
            route: "proxying/proxy",
            ..Definition::new("proxying", "Proxying", CONNECT, Paths::ObjectAndSubpaths)
        };
        &DEFINITION
    }

    fn members(&self) -> Members {
        Members::All
    }

    fn connect(&self) -> Option<Connect> {
        Some(Connect::Nothing)
    }

    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move {
            let Call { server, context, request } = call;
            let path = context.attributes.below();
            let running = match crowsnest_proxy::is_resource_or_subresource_path(path) {
                true => running_with_registries(server)?,
                false => server.running()?,
            };
            Ok(to_response(running.proxy.fleet_wide(&context.user, path, to_proxy_request(request)).await))
        })
    }
}

//! `proxying/NAME/proxy`: one API over all members, with the caller's identity in each.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;

use super::running_with_registries;
use crate::forwarding::{to_proxy_request, to_response};

use crate::resource::{CONNECT, Call, Connect, Definition, HandledResource, Members, Paths};

/// The resource itself, which Karmada lists in discovery and does not serve.
pub(super) static PROXYING: HandledResource = HandledResource::new(
    Definition { singular: "proxying", ..Definition::new("proxying", "Proxying", CONNECT, Paths::DiscoveryOnly) },
    |_| Box::pin(std::future::ready(Err(ApiError::unknown_resource()))),
);
pub(super) static FLEET_PROXY: HandledResource = HandledResource::new(
    Definition {
        subresource: "proxy",
        route: "proxying/proxy",
        members: Members::All,
        connect: Some(Connect::NoOptions),
        ..Definition::new("proxying", "Proxying", CONNECT, Paths::ObjectAndSubpaths)
    },
    |call| Box::pin(forward(call)),
);

async fn forward(Call { server, context, request }: Call<'_>) -> Result<Response, ApiError> {
    let path = context.attributes.subpath();
    let running = match crowsnest_proxy::is_resource_or_subresource_path(path) {
        true => running_with_registries(server)?,
        false => server.running()?,
    };
    Ok(to_response(running.proxy.fleet_wide(&context.user, path, to_proxy_request(request)).await))
}

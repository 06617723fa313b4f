//! `search/cache` and `search/opensearch`: the objects in the cache and in Karmada's OpenSearch backend.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use http::Method;

use super::running_with_registries;
use crate::forwarding::{to_proxy_request, to_response};
use crate::resource::{Call, Connect, Definition, GET, HandledResource, Members, Paths};
use crowsnest_process::reply::Body;

pub(super) static CACHE: HandledResource =
    HandledResource::new(Definition { members: Members::All, ..definition("cache", "search/cache") }, |call| {
        Box::pin(search_cache(call))
    });
pub(super) static OPENSEARCH: HandledResource =
    HandledResource::new(definition("opensearch", "search/opensearch"), |call| Box::pin(search_opensearch(call)));

const fn definition(object: &'static str, route: &'static str) -> Definition {
    Definition {
        singular: "search",
        route,
        connect: Some(Connect::NoOptions),
        ..Definition::new("search", "Search", GET, Paths::SubpathsOf(object))
    }
}

async fn search_cache(Call { server, context, request }: Call<'_>) -> Result<Response, ApiError> {
    let (proxy, path) = (&running_with_registries(server)?.proxy, context.attributes.subpath());
    Ok(to_response(proxy.search_cache(&context.user, path, to_proxy_request(request)).await))
}

/// An empty response, as in Karmada: clients query OpenSearch itself.
async fn search_opensearch(call: Call<'_>) -> Result<Response, ApiError> {
    if call.request.method() != Method::GET {
        return Err(ApiError::method_not_allowed());
    }
    match crowsnest_proxy::is_resource_path(call.context.attributes.subpath()) {
        true => Ok(Response::new(Body::empty())),
        false => Err(ApiError::unknown_resource()),
    }
}

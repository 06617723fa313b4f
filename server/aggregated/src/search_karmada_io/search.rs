//! `search/cache` and `search/opensearch`: the objects in the cache and in Karmada's OpenSearch backend.

use axum::response::Response;
use crowsnest_apimachinery::status::ApiError;
use futures::future::BoxFuture;
use http::Method;

use super::running_with_registries;
use crate::forwarding::{to_proxy_request, to_response};
use crate::resource::{Call, Connect, Definition, GET, Members, Paths, Resource};
use crowsnest_process::reply::Body;

pub(super) struct Cache;
pub(super) struct OpenSearch;

const fn definition(object: &'static str, route: &'static str) -> Definition {
    let paths = Paths::SubpathsOf(object);
    Definition { singular: "search", route, ..Definition::new("search", "Search", GET, paths) }
}

impl Resource for Cache {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = definition("cache", "search/cache");
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
            let (proxy, path) = (&running_with_registries(server)?.proxy, context.attributes.below());
            Ok(to_response(proxy.search_cache(&context.user, path, to_proxy_request(request)).await))
        })
    }
}

impl Resource for OpenSearch {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = definition("opensearch", "search/opensearch");
        &DEFINITION
    }

    fn connect(&self) -> Option<Connect> {
        Some(Connect::Nothing)
    }

    /// Empty like Karmada's response: objects in an OpenSearch are queried there.
    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move {
            if call.request.method() != Method::GET {
                return Err(ApiError::method_not_allowed());
            }
            match crowsnest_proxy::is_resource_path(call.context.attributes.below()) {
                true => Ok(Response::new(Body::empty())),
                false => Err(ApiError::unknown_resource()),
            }
        })
    }
}

//! All requests except reads of registered resources: finds the owning cluster in the cache and sends the request
//! there as the caller.

use http::{HeaderMap, HeaderValue, Request, Response, header};

use super::{View, read_after_write};
use crate::cluster::read_request_body;
use crate::native::{NativePath, Verb};
use crate::preconditions;
use crate::update::{self, Encoding, Update};
use crate::{Body, Caller, Error, Proxy, full};
use crowsnest_index::Object;

impl Proxy {
    pub(super) async fn send_to_owner(
        &self,
        caller: &Caller,
        native: &NativePath,
        view: View,
        verb: Verb,
        path: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, Error> {
        let unsupported = |verb| Err(Error::NotSupported { resource: native.resource.clone(), verb });
        match verb {
            // The cluster of a new object is determined by policies.
            Verb::Create if native.subresource.is_empty() => return unsupported("create"),
            Verb::DeleteCollection => return unsupported("deletecollection"),
            _ => {}
        }
        let Object { record: object, body: cached } = self.find_only_object(&view, native).await?;
        let owner = object.key.cluster().as_str();
        let request = match verb {
            // The body of a proxied request is not an object.
            _ if native.subresource == "proxy" => request,
            Verb::Update => {
                let (request, is_from_cache) = to_member_form(request, owner, &cached).await?;
                if is_from_cache && object.redacted {
                    let (resource, name) = (native.resource.clone(), native.name.clone());
                    return Err(Error::Withheld { resource, name });
                }
                request
            }
            verb => replace_composite_versions(verb, request, owner).await?,
        };
        let returns_object_state =
            read_after_write::returns_object_state(verb, &native.subresource, request.uri().query());
        let response = self.forward_to_cluster(owner, caller, path, request).await?;
        if returns_object_state {
            read_after_write::wait_until_cached(&self.inner.cache, &object.key, response).await
        } else {
            Ok(response)
        }
    }
}

/// Replaces the body of a request with the result of `rewrite`; `None` leaves it unchanged.
async fn rewrite_body(
    request: Request<Body>,
    rewrite: impl FnOnce(&HeaderMap, &[u8]) -> Option<Vec<u8>>,
) -> Result<Request<Body>, Error> {
    let (mut parts, body) = request.into_parts();
    let sent = read_request_body(body).await?;
    let Some(body) = rewrite(&parts.headers, &sent) else { return Ok(Request::from_parts(parts, full(sent))) };
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    Ok(Request::from_parts(parts, full(body)))
}

/// Converts an update for the owning cluster. The second result is true if the caller read the object from the cache;
/// `cached` is its cached body. An invalid body is forwarded unchanged, so that the member reports the error.
async fn to_member_form(request: Request<Body>, cluster: &str, cached: &[u8]) -> Result<(Request<Body>, bool), Error> {
    let (mut parts, body) = request.into_parts();
    let sent = read_request_body(body).await?;
    let encoding = Encoding::from_headers(&parts.headers);
    let Some(Update { body, is_from_cache }) =
        encoding.and_then(|encoding| update::to_member_form(&sent, encoding, cluster))
    else {
        return Ok((Request::from_parts(parts, full(sent)), false));
    };
    if encoding == Some(Encoding::Yaml) {
        parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    // Objects read from the cache are also recognized by their data if the version is missing.
    let is_from_cache = is_from_cache || update::has_same_data_as(&body, cached);
    Ok((Request::from_parts(parts, full(body)), is_from_cache))
}

/// Replaces the composite versions in the body of a write with the resourceVersions of the owning cluster.
pub(crate) async fn replace_composite_versions(
    verb: Verb,
    request: Request<Body>,
    owner: &str,
) -> Result<Request<Body>, Error> {
    match verb {
        Verb::Update => Ok(to_member_form(request, owner, &[]).await?.0),
        Verb::Patch => rewrite_body(request, |headers, sent| preconditions::rewrite_patch(headers, sent, owner)).await,
        Verb::Delete => rewrite_body(request, |_, sent| preconditions::rewrite_deletion(sent, owner)).await,
        _ => Ok(request),
    }
}

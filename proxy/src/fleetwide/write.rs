//! All requests except reads of registered resources: finds the owning cluster in the cache and sends the request
//! there as the caller.

use http::{HeaderMap, HeaderValue, Request, Response, header};

use super::{View, written};
use crate::cluster::read;
use crate::conditions;
use crate::native::{Native, Verb};
use crate::update::{self, Encoding, Update};
use crate::{Body, Caller, Error, Proxy, full};
use crowsnest_index::Object;

impl Proxy {
    pub(super) async fn to_owner(
        &self,
        caller: &Caller,
        native: &Native,
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
        let Object { record: object, body: known } = self.locate(&view, native).await?;
        let owner = object.key.cluster().as_str();
        let request = match verb {
            // The body of a proxied request is not an object.
            _ if native.subresource == "proxy" => request,
            Verb::Update => {
                let (request, withheld) = to_member_form(request, owner, &known).await?;
                if withheld && object.redacted {
                    let (resource, name) = (native.resource.clone(), native.name.clone());
                    return Err(Error::Withheld { resource, name });
                }
                request
            }
            verb => to_owner_form(verb, request, owner).await?,
        };
        let returns_object_state = written::returns_object_state(verb, &native.subresource, request.uri().query());
        let answer = self.one_cluster(owner, caller, path, request).await?;
        if returns_object_state {
            written::wait_until_cached(&self.inner.index, &object.key, answer).await
        } else {
            Ok(answer)
        }
    }
}

/// A request whose body may contain a composite version, converted for the owning cluster.
async fn conditional(
    request: Request<Body>,
    own: impl FnOnce(&HeaderMap, &[u8]) -> Option<Vec<u8>>,
) -> Result<Request<Body>, Error> {
    let (mut parts, body) = request.into_parts();
    let sent = read(body).await?;
    let Some(body) = own(&parts.headers, &sent) else { return Ok(Request::from_parts(parts, full(sent))) };
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    Ok(Request::from_parts(parts, full(body)))
}

/// Converts an update for the owning cluster. Also returns true if the object was read from the cache, where
/// `known` is its cached state. An invalid body is forwarded unchanged, so that the member reports the error.
async fn to_member_form(request: Request<Body>, cluster: &str, known: &[u8]) -> Result<(Request<Body>, bool), Error> {
    let (mut parts, body) = request.into_parts();
    let sent = read(body).await?;
    let encoding = Encoding::of(&parts.headers);
    let Some(Update { body, from_cache }) =
        encoding.and_then(|encoding| update::to_member_form(&sent, encoding, cluster))
    else {
        return Ok((Request::from_parts(parts, full(sent)), false));
    };
    if encoding == Some(Encoding::Yaml) {
        parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    // Objects read from the cache are also recognized by their data if the version is missing.
    let from_cache = from_cache || update::has_same_data_as(&body, known);
    Ok((Request::from_parts(parts, full(body)), from_cache))
}

/// A request to the cluster that owns the object, with the cluster's own versions.
pub(crate) async fn to_owner_form(verb: Verb, request: Request<Body>, owner: &str) -> Result<Request<Body>, Error> {
    match verb {
        Verb::Update => Ok(to_member_form(request, owner, &[]).await?.0),
        Verb::Patch => conditional(request, |headers, sent| conditions::rewrite_patch(headers, sent, owner)).await,
        Verb::Delete => conditional(request, |_, sent| conditions::of_deletion(sent, owner)).await,
        _ => Ok(request),
    }
}

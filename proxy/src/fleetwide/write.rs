//! Everything but reads of registered resources: located in the cache, sent to the owning cluster as the caller.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};

use super::View;
use crate::cluster::read;
use crate::native::{Native, Verb};
use crate::object::unmark;
use crate::{Body, Caller, Error, Proxy, full};

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
            // Which cluster a new object belongs into is for policies to say.
            Verb::Create if native.subresource.is_empty() => return unsupported("create"),
            Verb::DeleteCollection => return unsupported("deletecollection"),
            _ => {}
        }
        let owner = self.locate(&view, native).await?.record.key.cluster().clone();
        let request = if verb == Verb::Update { own_form(request, owner.as_str()).await? } else { request };
        self.one_cluster(owner.as_str(), caller, path, request).await
    }
}

/// An update with the owning cluster's resourceVersion and without our annotation. Bodies that are not JSON pass as they are.
async fn own_form(request: Request<Body>, cluster: &str) -> Result<Request<Body>, Error> {
    let (mut parts, body) = request.into_parts();
    let sent = read(body).await?;
    let json =
        parts.headers.get(header::CONTENT_TYPE).is_none_or(|kind| kind.as_bytes().starts_with(b"application/json"));
    let own: Bytes = match json.then(|| unmark(&sent, cluster)) {
        Some(Ok(own)) => own.into(),
        // The member says what is wrong with it.
        Some(Err(_)) | None => sent,
    };
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(own.len()));
    Ok(Request::from_parts(parts, full(own)))
}

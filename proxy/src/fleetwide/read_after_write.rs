//! Read-your-writes for the fleet-wide proxy: the response to a write is delayed until the cache shows the
//! written object. Without this, a `get` right after a `patch` could return the previous state.

use std::time::Duration;

use crowsnest_apimachinery::request::{MAX_REQUEST_BODY_BYTES, Query};
use crowsnest_index::{CollectionState, GlobalCache, RecordKey, Topic, is_older};
use futures::StreamExt;
use http::{Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use serde::Deserialize;

use crate::native::Verb;
use crate::{Body, BoxError, Error, full};

/// Maximum delay of a response. If the cache is outdated for longer, lists and watches report it.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// The state of an object that a write returned.
#[derive(Debug, PartialEq, Eq)]
enum WrittenState {
    /// The object has this resourceVersion, or a later one.
    Version(String),
    Deleted,
}

/// True if the response to such a request contains the state of the object.
pub(super) fn returns_object_state(verb: Verb, subresource: &str, query: Option<&str>) -> bool {
    let written = match verb {
        // Scale and status responses have the object's resourceVersion.
        Verb::Update | Verb::Patch => subresource != "proxy",
        Verb::Delete => subresource.is_empty(),
        _ => false,
    };
    written && Query::parse(query).all("dryRun").all(str::is_empty)
}

/// Returns the response once the cache shows the written state, or after [`MAX_DELAY`].
pub(super) async fn wait_until_cached(
    cache: &GlobalCache,
    key: &RecordKey,
    response: Response<Body>,
) -> Result<Response<Body>, Error> {
    if !response.status().is_success()
        || response.status() == StatusCode::SWITCHING_PROTOCOLS
        || !is_readable(&response)
    {
        return Ok(response);
    }
    let (parts, mut body) = response.into_parts();
    let mut response_body = Vec::new();
    while let Some(frame) = body.frame().await {
        let unreachable =
            |error: BoxError| Error::Unreachable { cluster: key.cluster().clone(), reason: error.to_string() };
        let Ok(data) = frame.map_err(unreachable)?.into_data() else { continue };
        response_body.extend_from_slice(&data);
        if response_body.len() > MAX_REQUEST_BODY_BYTES {
            // The response is larger than any object.
            let received = futures::stream::iter([Ok(Frame::data(response_body.into()))]);
            let body = StreamBody::new(received.chain(BodyStream::new(body)));
            return Ok(Response::from_parts(parts, body.boxed_unsync()));
        }
    }
    let is_current = cache.state(&key.collection).as_ref().is_some_and(CollectionState::is_fresh);
    if let Some(written) = WrittenState::from_response(&response_body).filter(|_| is_current)
        && tokio::time::timeout(MAX_DELAY, wait_until_reached(cache, key, &written)).await.is_err()
    {
        tracing::debug!(?key, ?written, "the cache does not show the written object yet");
    }
    Ok(Response::from_parts(parts, full(response_body)))
}

/// Waits until the cache includes a write.
async fn wait_until_reached(cache: &GlobalCache, key: &RecordKey, written: &WrittenState) {
    let namespace = Some(key.namespace.clone()).filter(|namespace| !namespace.is_empty());
    let topic = Topic { resource: key.resource().clone(), namespace, name: Some(key.name.clone()) };
    let mut changes = cache.follow_topic(cache.seq(), topic);
    loop {
        match cache.get(key).await {
            Ok(found) if written.is_reached_by(found.as_ref().map(|object| &*object.record.resource_version)) => return,
            Ok(_) => {}
            // The list or watch reports that the cache is not current.
            Err(_) => return,
        }
        let Some(Ok(_)) = changes.next().await else { return };
    }
}

/// True if the response body is JSON without a content encoding.
fn is_readable(response: &Response<Body>) -> bool {
    let media_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_uncompressed = !response.headers().contains_key(header::CONTENT_ENCODING);
    is_uncompressed && media_type.is_some_and(|media_type| media_type.starts_with("application/json"))
}

impl WrittenState {
    /// State in a response; `None` if it has no resourceVersion. The response to a deletion is a Status.
    fn from_response(response_body: &[u8]) -> Option<Self> {
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            #[serde(default)]
            resource_version: String,
        }
        #[derive(Deserialize)]
        struct Object {
            kind: String,
            #[serde(default)]
            metadata: Metadata,
        }
        let Object { kind, metadata } = serde_json::from_slice(response_body).ok()?;
        match metadata.resource_version {
            _ if kind == "Status" => Some(Self::Deleted),
            version if version.is_empty() => None,
            version => Some(Self::Version(version)),
        }
    }

    /// True if the cache includes the write; `cached` is its resourceVersion of the object, `None` if it has no such
    /// object. Versions that cannot be compared count as newer.
    fn is_reached_by(&self, cached: Option<&str>) -> bool {
        match (self, cached) {
            (Self::Version(written), Some(cached)) => !is_older(cached, written),
            // The object existed when it was written, so it has been deleted since.
            (Self::Version(_) | Self::Deleted, None) => true,
            (Self::Deleted, Some(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::cache_is_older(r#"{"kind":"ConfigMap","metadata":{"resourceVersion":"12"}}"#, Some("11"), Some(false))]
    #[case::cache_is_current(r#"{"kind":"ConfigMap","metadata":{"resourceVersion":"12"}}"#, Some("12"), Some(true))]
    #[case::newer(r#"{"kind":"ConfigMap","metadata":{"resourceVersion":"12"}}"#, Some("100"), Some(true))]
    #[case::deleted_since(r#"{"kind":"ConfigMap","metadata":{"resourceVersion":"12"}}"#, None, Some(true))]
    #[case::deleted(r#"{"kind":"Status","status":"Success","metadata":{}}"#, Some("12"), Some(false))]
    #[case::deleted_shown(r#"{"kind":"Status","status":"Success","metadata":{}}"#, None, Some(true))]
    #[case::no_version(r#"{"kind":"Binding","metadata":{}}"#, Some("1"), None)]
    #[case::not_json("ok", Some("1"), None)]
    fn a_write_is_reached_by_its_version_or_a_later_one(
        #[case] response_body: &str,
        #[case] cached: Option<&str>,
        #[case] expected: Option<bool>,
    ) {
        assert_eq!(
            WrittenState::from_response(response_body.as_bytes()).map(|written| written.is_reached_by(cached)),
            expected
        );
    }

    #[rstest]
    #[case(Verb::Update, "", None, true)]
    #[case(Verb::Patch, "status", Some("fieldManager=me"), true)]
    #[case(Verb::Patch, "scale", None, true)]
    #[case(Verb::Patch, "proxy", None, false)]
    #[case(Verb::Delete, "", None, true)]
    #[case(Verb::Delete, "proxy", None, false)]
    #[case(Verb::Create, "eviction", None, false)]
    #[case(Verb::Patch, "", Some("dryRun=All"), false)]
    fn only_updates_patches_and_deletions_return_the_state_of_the_object(
        #[case] verb: Verb,
        #[case] subresource: &str,
        #[case] query: Option<&str>,
        #[case] expected: bool,
    ) {
        assert_eq!(returns_object_state(verb, subresource, query), expected);
    }
}

//! List requests: consistent pages filtered by selectors at a revision.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::selector::FieldSelector;
use crowsnest_apimachinery::status::{ApiError, ApiResult, Cause, Details, Reason};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::error::Error;
use crate::object::Object;
use crate::resource::ResourceRef;
use crate::storage::{ListRange, ObjectKey, Record, Revision};
use crate::{Registry, error_without_reason, storage_error, table};
use crowsnest_apimachinery::request::options::ListOptions;

/// Time limit for reaching a requested revision that is newer than the current one.
const REVISION_TIMEOUT: Duration = Duration::from_secs(3);
/// Records filtered per step.
const CHUNK_SIZE: usize = 1000;
/// Minimum time between two log lines on failed conversions of a resource. Informers list again every second.
const CONVERSION_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Times at which failed conversions were logged, by resource.
#[derive(Debug, Default)]
pub(crate) struct ConversionLog(Mutex<HashMap<Gvr, Instant>>);

impl ConversionLog {
    /// Returns true, and records the time, if a failure at `now` should be logged.
    fn should_log(&self, resource: &Gvr, now: Instant) -> bool {
        let mut logged = self.0.lock();
        let is_due =
            logged.get(resource).is_none_or(|last| now.saturating_duration_since(*last) >= CONVERSION_LOG_INTERVAL);
        if is_due {
            logged.insert(resource.clone(), now);
        }
        is_due
    }
}

/// A page of a list, of decoded objects or of records.
#[derive(Debug, Clone)]
pub struct List<T = Value> {
    pub objects: Vec<T>,
    pub revision: Revision,
    pub continue_token: String,
    pub remaining: Option<usize>,
}

/// A page of records, which can be served without decoding.
pub type Page = List<Record>;

/// Revision and key at which a list starts.
struct Start {
    at: Option<Revision>,
    after: Option<ObjectKey>,
}

impl Registry {
    pub async fn list(&self, resource: &ResourceRef, namespace: &str, options: &ListOptions) -> ApiResult<List> {
        let page = self.list_records(resource, namespace, options).await?;
        self.decode_page(resource, options, page).await
    }

    /// Decodes the objects of a page of a list with these options.
    pub async fn decode_page(&self, resource: &ResourceRef, options: &ListOptions, page: Page) -> ApiResult<List> {
        let Page { objects, revision, continue_token, remaining } = page;
        let objects = self.decode_listed(resource, options, objects).await?;
        Ok(List { objects, revision, continue_token, remaining })
    }

    /// Decodes objects of a list.
    async fn decode_listed(
        &self,
        resource: &ResourceRef,
        options: &ListOptions,
        records: Vec<Record>,
    ) -> ApiResult<Vec<Value>> {
        let is_cached = resource.is_custom() && !is_read_from_storage(options);
        let decoded = self.decode_all(resource, records).await;
        decoded.map_err(|error| if is_cached { self.not_ready_error(resource, &error) } else { error })
    }

    /// Refuses a list or watch of custom resources if stored objects cannot be converted to the requested version. In
    /// kube-apiserver, the cache of that version would never become ready, so all lists would fail. One object of each
    /// other stored version is converted as a check. A version that was converted once is not checked again, because a
    /// ready cache stays ready during an outage of the conversion webhook.
    pub async fn check_cache_readiness(&self, resource: &ResourceRef) -> ApiResult<()> {
        if !resource.is_custom() {
            return Ok(());
        }
        let to = resource.gvr.api_version();
        let mut records = self.store.first_of_other_versions(&table(resource), &to);
        records.retain(|record| !resource.strategy.has_converted(record.body.api_version(), &to));
        if records.is_empty() {
            return Ok(());
        }
        self.decode_all(resource, records).await.map(drop).map_err(|error| self.not_ready_error(resource, &error))
    }

    /// Error of kube-apiserver for a list or watch of custom resources while its cache is not ready.
    fn not_ready_error(&self, resource: &ResourceRef, error: &ApiError) -> ApiError {
        if self.conversion_log.should_log(&resource.gvr, Instant::now()) {
            tracing::warn!(%error, resource = %resource.gvr, "cannot convert custom resources");
        }
        let details = Details { retry_after_seconds: Some(1), ..Details::default() };
        ApiError::new(Reason::TooManyRequests, "storage is (re)initializing").with_details(details)
    }

    /// The records that a list selects.
    pub async fn list_records(
        &self,
        resource: &ResourceRef,
        namespace: &str,
        options: &ListOptions,
    ) -> ApiResult<Page> {
        check_fields(resource, &options.fields)?;
        if !is_read_from_storage(options) {
            self.check_cache_readiness(resource).await?;
        }
        let start = self.resolve_start(namespace, options).await?;
        if let (None, None, Some(name)) = (start.at, &start.after, options.fields.required_value("metadata.name"))
            && (!namespace.is_empty() || !resource.namespaced)
        {
            return self.get_by_key(resource, namespace, name, options).await;
        }
        let selects_everything = options.selects_everything();
        let limit = if options.limit == 0 { usize::MAX } else { options.limit };
        let (mut at, mut after) = (start.at, start.after);
        let mut objects = Vec::new();
        loop {
            let chunk = if selects_everything { limit } else { CHUNK_SIZE };
            let read = self.read(resource, namespace, options, at, after.as_ref(), chunk)?;
            let (revision, remaining) = (read.revision, read.remaining);
            let last = read.records.last().map(|record| record.key.clone());
            let count = read.records.len();
            for (index, record) in self.filter_records(resource, options, read.records).await? {
                let remaining_count = count - index - 1 + remaining;
                objects.push(record);
                if objects.len() == limit && remaining_count > 0 {
                    let key = objects.last().map_or("", |record| record.key.as_str());
                    let continue_token = encode_token(to_signed(revision), key, namespace);
                    return Ok(Page {
                        objects,
                        revision,
                        continue_token,
                        remaining: selects_everything.then_some(remaining_count),
                    });
                }
            }
            if remaining == 0 {
                return Ok(Page { objects, revision, continue_token: String::new(), remaining: None });
            }
            at = Some(revision);
            after = last;
            // Other tasks run between two chunks.
            tokio::task::yield_now().await;
        }
    }

    /// Serves a list that selects at most one object, by its key.
    async fn get_by_key(
        &self,
        resource: &ResourceRef,
        namespace: &str,
        name: &str,
        options: &ListOptions,
    ) -> ApiResult<Page> {
        let revision = self.store.revision();
        let record = self.store.get(&table(resource), &ObjectKey::new(namespace, name));
        let matching = self.filter_records(resource, options, record.into_iter().collect()).await?;
        let objects = matching.into_iter().map(|(_, record)| record).collect();
        Ok(Page { objects, revision, continue_token: String::new(), remaining: None })
    }

    /// The records that match the selectors, with their positions. Objects are decoded only for field selectors
    /// beyond the key.
    pub(crate) async fn filter_records(
        &self,
        resource: &ResourceRef,
        options: &ListOptions,
        records: Vec<Record>,
    ) -> ApiResult<Vec<(usize, Record)>> {
        if options.selects_everything() {
            return Ok(records.into_iter().enumerate().collect());
        }
        let mut candidates = filter_by_key_and_labels(options, records)?;
        if !is_decided_by_key(&options.fields) {
            let records = candidates.iter().map(|(_, record)| record.clone()).collect();
            let mut decoded = self.decode_listed(resource, options, records).await?.into_iter();
            candidates.retain(|_| decoded.next().is_some_and(|object| matches(resource, options, &object)));
        }
        Ok(candidates)
    }

    fn read(
        &self,
        resource: &ResourceRef,
        namespace: &str,
        options: &ListOptions,
        at: Option<Revision>,
        after: Option<&ObjectKey>,
        limit: usize,
    ) -> ApiResult<crate::storage::Listing> {
        self.store.list(&table(resource), namespace, ListRange { at, after, limit }).map_err(|error| {
            match (error, after) {
                (Error::Expired { .. }, Some(after)) if options.continue_token.is_some() => {
                    ApiError::expired_continue(encode_token(LATEST_REVISION, after.as_str(), namespace))
                }
                (Error::Expired { .. }, _) => ApiError::new(Reason::Expired, EXPIRED_MESSAGE),
                (other, _) => storage_error(other),
            }
        })
    }

    /// All objects of a resource in all namespaces at the current revision.
    pub async fn list_all(&self, resource: &ResourceRef) -> ApiResult<Vec<Value>> {
        Ok(self.list(resource, "", &ListOptions::default()).await?.objects)
    }

    async fn resolve_start(&self, namespace: &str, options: &ListOptions) -> ApiResult<Start> {
        if let Some(token) = &options.continue_token {
            if !options.resource_version.is_empty() && options.resource_version != "0" {
                let text = "specifying resource version is not allowed when using continue";
                return Err(ApiError::bad_request(text));
            }
            let (revision, key) = decode_token(token, namespace)?;
            return Ok(Start { at: Revision::try_from(revision).ok(), after: Some(key) });
        }
        let revision = parse_resource_version(&options.resource_version)
            .map_err(|e| ApiError::bad_request(format!("invalid resource version: {}", e.message)))?;
        if revision == 0 {
            return Ok(Start { at: None, after: None });
        }
        self.wait_for_revision(revision).await?;
        let is_exact = options.version_match == "Exact" || (options.version_match.is_empty() && options.limit > 0);
        Ok(Start { at: is_exact.then_some(revision), after: None })
    }

    /// Waits until the server has reached `revision`; 504 on timeout.
    pub async fn wait_for_revision(&self, revision: Revision) -> ApiResult<()> {
        let current = self.store.revision();
        if revision <= current {
            return Ok(());
        }
        if tokio::time::timeout(REVISION_TIMEOUT, self.store.wait_for_revision(revision)).await.is_ok() {
            return Ok(());
        }
        let cause = Cause {
            reason: "ResourceVersionTooLarge".into(),
            message: "Too large resource version".into(),
            ..Cause::default()
        };
        let details = Details { causes: vec![cause], retry_after_seconds: Some(1), ..Details::default() };
        let text = format!("Timeout: Too large resource version: {revision}, current: {}", self.store.revision());
        Err(ApiError::new(Reason::Timeout, text).with_details(details))
    }
}

/// True for a list that kube-apiserver reads from etcd while its cache is not ready. The cache refuses other lists.
fn is_read_from_storage(options: &ListOptions) -> bool {
    let has_version = !matches!(options.resource_version.as_str(), "" | "0");
    let is_exact = match options.version_match.as_str() {
        "" => options.limit > 0 && has_version,
        version_match => version_match == "Exact",
    };
    is_exact || options.continue_token.is_some() || (options.limit > 0 && options.selects_everything())
}

/// Filters records by labels and key without decoding them; returns them with their positions.
fn filter_by_key_and_labels(options: &ListOptions, records: Vec<Record>) -> ApiResult<Vec<(usize, Record)>> {
    let mut matching = Vec::new();
    for (index, record) in records.into_iter().enumerate() {
        let labels_match = || match options.labels.is_empty() {
            true => Ok(true),
            false => record.body.labels().map(|labels| options.labels.matches_json(labels.as_ref())),
        };
        if may_match(&options.fields, &record.key) && labels_match().map_err(storage_error)? {
            matching.push((index, record));
        }
    }
    Ok(matching)
}

fn to_signed(revision: Revision) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

/// `ParseResourceVersion`: empty and 0 mean any revision.
pub fn parse_resource_version(text: &str) -> ApiResult<Revision> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| {
        error_without_reason(format!(
            "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        ))
    })
}

/// Rejects field selectors that the kind does not support.
pub(crate) fn check_fields(resource: &ResourceRef, fields: &FieldSelector) -> ApiResult<()> {
    if fields.is_empty() {
        return Ok(());
    }
    let selectable = resource.strategy.selectable_fields(&Value::Null);
    for path in fields.requirements().iter().map(|requirement| requirement.field.as_str()) {
        if path == "metadata.name" || path == "metadata.namespace" || selectable.iter().any(|(k, _)| k == path) {
            continue;
        }
        let is_custom = resource.is_custom();
        let is_job = &*resource.gvr.group == "batch" && resource.kind == "Job";
        return Err(ApiError::bad_request(if is_job {
            format!("field label {path:?} not supported for Job")
        } else if selectable.is_empty() && !is_custom {
            format!("{path:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
        } else {
            format!("field label not supported: {path}")
        }));
    }
    Ok(())
}

fn matches(resource: &ResourceRef, options: &ListOptions, object: &Value) -> bool {
    if !options.labels.matches_json(object.labels()) {
        return false;
    }
    if options.fields.is_empty() {
        return true;
    }
    let fields = resource.strategy.selectable_fields(object);
    options.fields.matches_with(|path| match path {
        "metadata.name" => Some(object.name().into()),
        "metadata.namespace" => Some(object.namespace().into()),
        other => fields.iter().find(|(k, _)| k == other).map(|(_, v)| v.as_str().into()),
    })
}

/// The key field that a path names, if any.
pub(super) fn key_field<'k>(key: &'k ObjectKey, path: &str) -> Option<&'k str> {
    match path {
        "metadata.name" => Some(key.name()),
        "metadata.namespace" => Some(key.namespace()),
        _ => None,
    }
}

/// True if the field selector can be evaluated on the key alone.
pub(super) fn is_decided_by_key(fields: &FieldSelector) -> bool {
    fields.requirements().iter().all(|r| matches!(r.field.as_str(), "metadata.name" | "metadata.namespace"))
}

/// False if the key does not match the field selector.
pub(super) fn may_match(fields: &FieldSelector, key: &ObjectKey) -> bool {
    fields.requirements().iter().all(|r| key_field(key, &r.field).is_none_or(|value| (value == r.value) == r.is_equal))
}

/// Placeholder for the revision in a continue token: the list continues at the current revision.
const LATEST_REVISION: i64 = -1;
const EXPIRED_MESSAGE: &str = "The resourceVersion for the provided list is too old.";

fn encode_token(revision: i64, key: &str, namespace: &str) -> String {
    let start = if namespace.is_empty() { key } else { key.split_once('/').map_or(key, |(_, name)| name) };
    URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": revision, "start": format!("{start}\u{0}")}).to_string())
}

/// Decodes a continue token. The revision is negative for [`LATEST_REVISION`].
fn decode_token(token: &str, namespace: &str) -> ApiResult<(i64, ObjectKey)> {
    let invalid = |reason: String| ApiError::bad_request(format!("invalid continue token: {reason}"));
    let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|error| {
        let at = match error {
            base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
            base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => token.len() / 4 * 4,
        };
        invalid(format!("continue key is not valid: illegal base64 data at input byte {at}"))
    })?;
    let token: Value = crowsnest_schema::decode::parse_json(&bytes)
        .map_err(|reason| invalid(format!("continue key is not valid: {reason}")))?;
    let version = token["v"].as_str().unwrap_or_default();
    if version != "meta.k8s.io/v1" {
        let reason = "continue key is not valid: server does not recognize this encoded version";
        return Err(invalid(format!("{reason} {version}")));
    }
    let revision = token["rv"].as_i64().filter(|revision| *revision != 0).ok_or_else(|| {
        let reason = "continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)";
        invalid(reason.into())
    })?;
    let encoded_start = token["start"].as_str().unwrap_or_default();
    if encoded_start.is_empty() {
        return Err(invalid("continue key is not valid: encoded start key empty (version meta.k8s.io/v1)".into()));
    }
    let start = encoded_start.trim_end_matches('\u{0}');
    // Rejects keys outside the prefix of the list.
    if start.trim_start_matches('/').split('/').any(|part| ["", ".", ".."].contains(&part)) {
        return Err(invalid(format!("continue key is not valid: {encoded_start}")));
    }
    let key = if namespace.is_empty() { ObjectKey::from_stored(start) } else { ObjectKey::new(namespace, start) };
    Ok((revision, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_conversions_of_a_resource_are_logged_once_a_minute() {
        let (log, start) = (ConversionLog::default(), Instant::now());
        let (cars, bikes) = (Gvr::new("g", "v1", "cars"), Gvr::new("g", "v1", "bikes"));
        let failures = [(&cars, 0), (&cars, 1), (&bikes, 1), (&cars, 59), (&cars, 60), (&cars, 61)];
        let logged = failures.map(|(resource, seconds)| log.should_log(resource, start + Duration::from_secs(seconds)));
        assert_eq!(logged, [true, false, true, false, true, false]);
    }
}

//! Requests for stored kinds with the admission of the control plane's policies and webhooks.
//!
//! Admission sees the object that a write results in. The control plane knows it, so a write that concerns a policy or a
//! webhook is first sent as a dry run, whose result is admitted. The write itself names the resourceVersion of the object
//! that was admitted: it conflicts with any concurrent change, and is then admitted again. Other requests are forwarded
//! without a dry run.

use axum::response::Response;
use crowsnest_apimachinery::request::options::{DeleteOptions, WriteOptions};
use crowsnest_apimachinery::request::{Query, path_segment, query_string};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_process::reply::{Body, collect, json};
use crowsnest_registry::admission::Operation;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;

use super::forward::ATTEMPTS;
use super::sent::{Sent, differs_in_status_only};
use super::writer::Writer;
use super::{StoredGroup, Target, name_of, parent_path};
use crate::admission::{AdmissionRequest, Concern, Write, with_warnings};
use crate::request::context::RequestContext;
use crate::resource::registry::ResourceRoute;
use crate::server::Aggregated;

/// A request for a stored kind.
#[derive(Clone, Copy)]
pub(super) struct Admitted<'r> {
    pub(super) group: StoredGroup,
    pub(super) server: &'r Aggregated,
    pub(super) context: &'r RequestContext,
    pub(super) found: &'r ResourceRoute,
    pub(super) writer: Option<Writer<'r>>,
}

/// The result of a dry run or of a read: an object, or the response that refuses it.
type Outcome = Result<Value, Response>;

/// A write under admission.
struct Admission<'r> {
    request: AdmissionRequest<'r>,
    concern: Concern,
    /// Path of the object, or of its subresource.
    tail: &'r str,
    /// The stored object; `None` for a new one.
    old: Option<Value>,
}

impl<'r> Admitted<'r> {
    pub(super) async fn serve(self, request: Request<Body>) -> Result<Response, ApiError> {
        let tail = self.context.attributes.tail();
        let named = !name_of(tail).is_empty();
        if !matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH | Method::DELETE) {
            let target = Target { tail, query: self.context.query() };
            return self.group.serve(&self.server.control_plane, target, request, self.writer).await;
        }
        let (parts, body) = request.into_parts();
        let sent = Sent { method: parts.method, headers: parts.headers, body: collect(body).await? };
        let mut warnings = Vec::new();
        let method = sent.method.clone();
        let answer = match (&method, named) {
            (&Method::POST, false) => self.create(tail, &sent, &mut warnings).await,
            (&Method::PUT | &Method::PATCH, true) => self.update(tail, sent, &mut warnings).await,
            (&Method::DELETE, true) => self.delete(tail, &sent, &mut warnings).await,
            (&Method::DELETE, false) => self.delete_collection(tail, &sent, &mut warnings).await,
            // The control plane refuses other combinations in its own words.
            _ => self.store(tail, self.context.query(), &sent).await,
        };
        with_warnings(answer, &warnings)
    }

    /// Sends a request to the control plane, with the caller's `Accept` header.
    async fn store(self, tail: &str, query: &Query, sent: &Sent) -> Result<Response, ApiError> {
        let target = Target { tail, query };
        self.group.serve(&self.server.control_plane, target, sent.request(), self.writer).await
    }

    /// Sends a request of which this server reads the response.
    async fn read_answer(self, tail: &str, query: &Query, sent: &Sent) -> Result<Outcome, ApiError> {
        let response = self.store(tail, query, &sent.read_by_us()).await?;
        if !response.status().is_success() {
            return Ok(Err(response));
        }
        let bytes = response.into_body().collect().await.map_err(ApiError::internal)?.to_bytes();
        Ok(Ok(serde_json::from_slice(&bytes).map_err(ApiError::internal)?))
    }

    /// Reads an object, or a list with the selectors of `query`.
    async fn read(self, tail: &str, query: &Query) -> Result<Outcome, ApiError> {
        self.read_answer(tail, query, &Sent::get()).await
    }

    /// The object that a write results in.
    async fn rehearse(self, tail: &str, sent: &Sent) -> Result<Outcome, ApiError> {
        let query = self.context.query();
        let dry_run = match query.has("dryRun") {
            true => query.clone(),
            false => Query::parse(super::writer::dry_run(&super::encoded(query)).strip_prefix('?')),
        };
        self.read_answer(tail, &dry_run, sent).await
    }

    fn request(self, tail: &str, operation: Operation, name: &str, options: (Value, bool)) -> AdmissionRequest<'r> {
        let subresource = if parent_path(tail).is_some() { "status" } else { "" };
        let (options, dry_run) = options;
        let write = Write { operation, name, subresource, options, dry_run };
        self.server.admission.request(self.context, self.found, write)
    }

    async fn create(self, tail: &'r str, sent: &Sent, warnings: &mut Vec<String>) -> Result<Response, ApiError> {
        // The control plane refuses a body that is not an object in its own words.
        let object = sent.object().unwrap_or_default();
        let options = WriteOptions::parse("CreateOptions", self.context.query(), "", false)?;
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let request = self.request(tail, Operation::Create, name, (options.raw, options.dry_run));
        let concern = request.concern().await?;
        self.admit(&Admission { request, concern, tail, old: None }, sent.clone(), warnings).await
    }

    async fn update(self, tail: &'r str, mut sent: Sent, warnings: &mut Vec<String>) -> Result<Response, ApiError> {
        let query = self.context.query();
        let kind = if sent.method == Method::PUT { "UpdateOptions" } else { "PatchOptions" };
        let options = WriteOptions::parse(kind, query, "", sent.is_apply())?;
        let flags = || (options.raw.clone(), options.dry_run);
        if let Some(main) = parent_path(tail).filter(|_| !options.dry_run)
            && let Some(refused) = self.update_main(main, &mut sent, flags(), warnings).await?
        {
            return Ok(refused);
        }
        let name = self.context.name();
        let (main, is_main) = (parent_path(tail).unwrap_or(tail), parent_path(tail).is_none());
        let request = self.request(tail, Operation::Update, name, flags());
        let concern = request.concern().await?;
        let creation = self.request(tail, Operation::Create, name, flags());
        let may_create = sent.is_apply() && is_main;
        let creates = if may_create { creation.concern().await? } else { Concern::default() };
        if !concern.any() && !creates.any() {
            return self.store(tail, query, &sent).await;
        }
        let mut admission = Admission { request, concern, tail, old: None };
        let mut attempt = 1;
        loop {
            let live = match self.read(main, &Query::default()).await? {
                Ok(live) => live,
                Err(missing) if may_create && missing.status() == StatusCode::NOT_FOUND => {
                    let admission = Admission { request: creation, concern: creates, tail, old: None };
                    return self.admit(&admission, sent, warnings).await;
                }
                Err(refused) => return Ok(refused),
            };
            let pinned = sent.pinned(&live);
            admission.old = Some(live);
            let answer = self.admit(&admission, pinned, warnings).await?;
            if answer.status() != StatusCode::CONFLICT || sent.names_version() || attempt == ATTEMPTS {
                return Ok(answer);
            }
            warnings.clear();
            attempt += 1;
        }
    }

    /// As in Karmada, a write to the status of a Cluster may also write its other fields. Admits and makes this write if it
    /// concerns a policy or webhook, and removes the other fields from `sent`. Returns the response if it is refused.
    async fn update_main(
        self,
        main: &'r str,
        sent: &mut Sent,
        options: (Value, bool),
        warnings: &mut Vec<String>,
    ) -> Result<Option<Response>, ApiError> {
        if !super::writes_spec_with_status(self.group) || !sent.has_more_than_status() {
            return Ok(None);
        }
        if let Some(writer) = self.writer
            && !writer.may_write(&sent.method, name_of(main)).await?
        {
            return Ok(None);
        }
        let request = self.request(main, Operation::Update, self.context.name(), options);
        let concern = request.concern().await?;
        if !concern.any() {
            return Ok(None);
        }
        let live = match self.read(main, &Query::default()).await? {
            Ok(live) => live,
            Err(refused) => return Ok(Some(refused)),
        };
        let pinned = sent.pinned(&live);
        let result = match self.rehearse(main, &pinned).await? {
            Ok(result) => result,
            Err(refused) => return Ok(Some(refused)),
        };
        if !differs_in_status_only(&live, &result) {
            let admission = Admission { request, concern, tail: main, old: Some(live) };
            let written = self.admit(&admission, pinned, warnings).await?;
            if !written.status().is_success() {
                return Ok(Some(written));
            }
            let bytes = written.into_body().collect().await.map_err(ApiError::internal)?.to_bytes();
            sent.follow(&bytes);
        }
        sent.keep_status();
        Ok(None)
    }

    /// Admits the object that `sent` results in, with the changes of mutating admission, and sends the write.
    async fn admit(
        self,
        admission: &Admission<'_>,
        mut sent: Sent,
        warnings: &mut Vec<String>,
    ) -> Result<Response, ApiError> {
        let Admission { request, concern, tail, old } = admission;
        let query = self.context.query();
        if !concern.any() {
            return self.store(tail, query, &sent).await;
        }
        let mut result = self.rehearse(tail, &sent).await?;
        if concern.mutating {
            let base = match &result {
                Ok(object) if old.is_none() => sent.without_identity(object),
                Ok(object) => object.clone(),
                // Mutating admission can make an invalid object valid.
                Err(invalid)
                    if invalid.status() == StatusCode::UNPROCESSABLE_ENTITY && sent.method != Method::PATCH =>
                {
                    sent.object().unwrap_or_default()
                }
                Err(_) => Value::Null,
            };
            if !base.is_null() {
                let mut changed = base.clone();
                request.mutate(Some(&mut changed), old.as_ref(), warnings).await?;
                if changed != base {
                    sent = sent.replaced(&base, changed)?;
                    result = self.rehearse(tail, &sent).await?;
                }
            }
        }
        let object = match result {
            Ok(object) => object,
            Err(refused) => return Ok(refused),
        };
        request.validate(Some(&object), old.as_ref(), warnings).await?;
        if old.is_none() {
            sent = sent.named(&object);
        }
        self.store(tail, query, &sent).await
    }

    async fn delete(self, tail: &'r str, sent: &Sent, warnings: &mut Vec<String>) -> Result<Response, ApiError> {
        let query = self.context.query();
        let options = sent.delete_options(query)?;
        let flags = (options.raw.clone(), options.dry_run);
        let request = self.request(tail, Operation::Delete, self.context.name(), flags);
        if !request.concern().await?.any() {
            return self.store(tail, query, sent).await;
        }
        self.delete_admitted(tail, &request, (sent, &options), warnings).await
    }

    /// Admits and deletes one object, again if it has changed meanwhile.
    async fn delete_admitted(
        self,
        tail: &str,
        request: &AdmissionRequest<'_>,
        (sent, options): (&Sent, &DeleteOptions),
        warnings: &mut Vec<String>,
    ) -> Result<Response, ApiError> {
        let has_preconditions = options.uid.is_some() || options.resource_version.is_some();
        let mut attempt = 1;
        loop {
            let live = match self.read(tail, &Query::default()).await? {
                Ok(live) => live,
                Err(missing) => return Ok(missing),
            };
            request.mutate(None, Some(&live), warnings).await?;
            request.validate(None, Some(&live), warnings).await?;
            let answer = self.store(tail, self.context.query(), &sent.deletion_of(options, &live)).await?;
            if answer.status() != StatusCode::CONFLICT || has_preconditions || attempt == ATTEMPTS {
                return Ok(answer);
            }
            warnings.clear();
            attempt += 1;
        }
    }

    /// Admits the deletion of all selected objects before the first one is deleted. Their name is not part of the
    /// request.
    async fn delete_collection(
        self,
        tail: &'r str,
        sent: &Sent,
        warnings: &mut Vec<String>,
    ) -> Result<Response, ApiError> {
        let query = self.context.query();
        let options = sent.delete_options(query)?;
        let request = self.request(tail, Operation::Delete, "", (options.raw.clone(), options.dry_run));
        if !request.concern().await?.any() {
            return self.store(tail, query, sent).await;
        }
        let list = match self.read(tail, &selection(query)).await? {
            Ok(list) => list,
            Err(refused) => return Ok(refused),
        };
        let items: Vec<&Value> = list["items"].as_array().into_iter().flatten().collect();
        for item in &items {
            request.mutate(None, Some(item), warnings).await?;
            request.validate(None, Some(item), warnings).await?;
        }
        for item in items {
            let name = item.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            let one = format!("{}/{}", tail.trim_end_matches('/'), path_segment(name));
            let deletion = sent.deletion_of(&options, item);
            let mut answer = self.store(&one, &Query::default(), &deletion).await?;
            if answer.status() == StatusCode::CONFLICT {
                answer = self.delete_admitted(&one, &request, (sent, &options), warnings).await?;
            }
            if !answer.status().is_success() && answer.status() != StatusCode::NOT_FOUND {
                return Ok(answer);
            }
        }
        Ok(json(StatusCode::OK, &list))
    }
}

/// Parameters of a deletion that select objects, as those of a list.
fn selection(query: &Query) -> Query {
    const NAMES: [&str; 6] =
        ["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch"];
    let values = NAMES.into_iter().filter_map(|name| Some((name, query.first(name)?)));
    Query::parse(Some(&query_string(values)))
}

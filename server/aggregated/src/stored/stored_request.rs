//! Requests for stored kinds with the admission of the control plane's policies and webhooks.
//!
//! Admission sees the object that results from a write. The control plane computes it, so a write that concerns a
//! policy or a webhook is first sent as a dry run, whose result is admitted. The write itself names the resourceVersion
//! of the object that was admitted: it conflicts with any concurrent change, and is then admitted again. Other requests
//! are forwarded without a dry run.

use axum::response::Response;
use crowsnest_apimachinery::request::options::{DeleteOptions, WriteOptions};
use crowsnest_apimachinery::request::{Query, path_segment, query_string};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_process::reply::{Body, collect};
use crowsnest_registry::admission::Operation;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::Value;

use super::buffered_request::{BufferedRequest, differs_in_status_only};
use super::forward::MAX_ATTEMPTS;
use super::representation::Representation;
use super::writer::Writer;
use super::{StoredGroup, Target, name_of, parent_path};
use crate::admission::{AdmissionRequest, ApplicablePhases, OperationDetails, with_warnings};
use crate::request::context::RequestContext;
use crate::resource::registry::ResourceRoute;
use crate::server::AggregatedServer;

/// A request for a stored kind.
#[derive(Clone, Copy)]
pub(super) struct StoredRequest<'r> {
    pub(super) group: StoredGroup,
    pub(super) server: &'r AggregatedServer,
    pub(super) context: &'r RequestContext,
    pub(super) route: &'r ResourceRoute,
    pub(super) writer: Option<Writer<'r>>,
}

/// The result of a step that the control plane may refuse: an object or a write, or the response that refuses it.
type Outcome<T = Value> = Result<T, Response>;

/// A write under admission.
struct Admission<'r> {
    request: AdmissionRequest<'r>,
    phases: ApplicablePhases,
    /// Path of the object, or of its subresource.
    resource_path: &'r str,
    /// The stored object; `None` for a new one.
    old: Option<Value>,
}

impl<'r> StoredRequest<'r> {
    pub(super) async fn serve(self, request: Request<Body>) -> Result<Response, ApiError> {
        // A write whose response the client does not accept is refused before admission.
        let representation = Representation::choose(request.headers(), false)?;
        let mut warnings = Vec::new();
        let response = self.handle(request, representation, &mut warnings).await;
        with_warnings(response.or_else(|error| representation.refuse(error)), &warnings)
    }

    async fn handle(
        self,
        request: Request<Body>,
        representation: Representation,
        warnings: &mut Vec<String>,
    ) -> Result<Response, ApiError> {
        let resource_path = self.context.attributes.resource_path();
        let has_name = !name_of(resource_path).is_empty();
        if !matches!(*request.method(), Method::POST | Method::PUT | Method::PATCH | Method::DELETE) {
            let target = Target { resource_path, query: self.context.query(), status_only: false };
            return self.group.serve(&self.server.control_plane, target, request, self.writer).await;
        }
        let (parts, body) = request.into_parts();
        let buffered = BufferedRequest { method: parts.method, headers: parts.headers, body: collect(body).await? };
        let method = buffered.method.clone();
        match (&method, has_name) {
            (&Method::POST, false) => self.create(resource_path, &buffered, warnings).await,
            (&Method::PUT | &Method::PATCH, true) => self.update(resource_path, buffered, warnings).await,
            (&Method::DELETE, true) => self.delete(resource_path, &buffered, warnings).await,
            (&Method::DELETE, false) => {
                self.delete_collection(resource_path, &buffered, representation, warnings).await
            }
            // The control plane refuses other combinations with its own message.
            _ => self.store(resource_path, self.context.query(), &buffered).await,
        }
    }

    /// Sends a request to the control plane, with the caller's `Accept` header.
    async fn store(self, resource_path: &str, query: &Query, buffered: &BufferedRequest) -> Result<Response, ApiError> {
        let target = Target { resource_path, query, status_only: false };
        self.group.serve(&self.server.control_plane, target, buffered.request(), self.writer).await
    }

    /// Sends a write to the status, and never a write of the object itself.
    async fn store_status(self, resource_path: &str, buffered: &BufferedRequest) -> Result<Response, ApiError> {
        let target = Target { resource_path, query: self.context.query(), status_only: true };
        self.group.serve(&self.server.control_plane, target, buffered.request(), self.writer).await
    }

    /// Sends a request and parses the object in the response.
    async fn request_object(
        self,
        resource_path: &str,
        query: &Query,
        buffered: &BufferedRequest,
    ) -> Result<Outcome, ApiError> {
        let response = self.store(resource_path, query, &buffered.accepting_json()).await?;
        if !response.status().is_success() {
            return Ok(Err(response));
        }
        let bytes = response.into_body().collect().await.map_err(ApiError::internal)?.to_bytes();
        Ok(Ok(serde_json::from_slice(&bytes).map_err(ApiError::internal)?))
    }

    /// Reads an object, or a list with the selectors of `query`.
    async fn read(self, resource_path: &str, query: &Query) -> Result<Outcome, ApiError> {
        self.request_object(resource_path, query, &BufferedRequest::get()).await
    }

    /// Determines the result of a write by a dry run.
    async fn dry_run(self, resource_path: &str, buffered: &BufferedRequest) -> Result<Outcome, ApiError> {
        let query = self.context.query();
        let dry_run = match query.has("dryRun") {
            true => query.clone(),
            false => Query::parse(super::writer::dry_run_query(&super::encode_query(query)).strip_prefix('?')),
        };
        self.request_object(resource_path, &dry_run, buffered).await
    }

    fn request(
        self,
        resource_path: &str,
        operation: Operation,
        name: &str,
        options: (Value, bool),
    ) -> AdmissionRequest<'r> {
        let subresource = if parent_path(resource_path).is_some() { "status" } else { "" };
        let (options, dry_run) = options;
        let details = OperationDetails { operation, name, subresource, options, dry_run };
        self.server.admission.request(self.context, self.route, details)
    }

    /// A write under admission, without the stored object.
    async fn admission(
        self,
        resource_path: &'r str,
        operation: Operation,
        name: &str,
        options: (Value, bool),
    ) -> Result<Admission<'r>, ApiError> {
        let request = self.request(resource_path, operation, name, options);
        let phases = request.applicable_phases().await?;
        Ok(Admission { request, phases, resource_path, old: None })
    }

    async fn create(
        self,
        resource_path: &'r str,
        buffered: &BufferedRequest,
        warnings: &mut Vec<String>,
    ) -> Result<Response, ApiError> {
        // The control plane refuses a body that is not an object with its own message.
        let object = buffered.object().unwrap_or_default();
        let options = WriteOptions::parse("CreateOptions", self.context.query(), "", false)?;
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let admission = self.admission(resource_path, Operation::Create, name, (options.raw, options.dry_run)).await?;
        self.admit(&admission, buffered.clone(), warnings).await
    }

    async fn update(
        self,
        resource_path: &'r str,
        buffered: BufferedRequest,
        warnings: &mut Vec<String>,
    ) -> Result<Response, ApiError> {
        let (query, name) = (self.context.query(), self.context.name());
        let kind = if buffered.method == Method::PUT { "UpdateOptions" } else { "PatchOptions" };
        let options = WriteOptions::parse(kind, query, "", buffered.is_apply())?;
        let admission_options = || (options.raw.clone(), options.dry_run);
        let parent = parent_path(resource_path);
        let object_path = parent.unwrap_or(resource_path);
        let mut request_admission = self.admission(resource_path, Operation::Update, name, admission_options()).await?;
        let writes_object = parent.is_some() && !options.dry_run && self.writes_object(object_path, &buffered).await?;
        let mut object_admission = match writes_object {
            true => Some(self.admission(object_path, Operation::Update, name, admission_options()).await?),
            false => None,
        };
        let creation = match buffered.is_apply() && parent.is_none() {
            true => Some(self.admission(resource_path, Operation::Create, name, admission_options()).await?),
            false => None,
        };
        if ![Some(&request_admission), object_admission.as_ref(), creation.as_ref()]
            .into_iter()
            .flatten()
            .any(|admission| admission.phases.any())
        {
            return self.store(resource_path, query, &buffered).await;
        }
        let mut attempt = 1;
        loop {
            let live = match (self.read(object_path, &Query::default()).await?, &creation) {
                (Ok(live), _) => live,
                (Err(missing), Some(creation)) if missing.status() == StatusCode::NOT_FOUND => {
                    return self.admit(creation, buffered, warnings).await;
                }
                (Err(refused), _) => return Ok(refused),
            };
            let pinned = buffered.with_expected_version(&live)?;
            if let Some(object_admission) = &mut object_admission {
                object_admission.old = Some(live.clone());
            }
            request_admission.old = Some(live);
            let response = match parent {
                Some(_) => self.admit_status(&request_admission, object_admission.as_ref(), pinned, warnings).await?,
                None => self.admit(&request_admission, pinned, warnings).await?,
            };
            if response.status() != StatusCode::CONFLICT || buffered.expects_version() || attempt == MAX_ATTEMPTS {
                return Ok(response);
            }
            warnings.clear();
            attempt += 1;
        }
    }

    /// True if a write to the status also writes the other fields of the object, as in Karmada for a Cluster.
    async fn writes_object(self, object_path: &str, buffered: &BufferedRequest) -> Result<bool, ApiError> {
        if !super::writes_spec_with_status(self.group) || !buffered.has_more_than_status() {
            return Ok(false);
        }
        match self.writer {
            Some(writer) => writer.may_write(&buffered.method, name_of(object_path)).await,
            None => Ok(true),
        }
    }

    /// Admits a write to the status, `request_admission`, and the write of the other fields that it includes,
    /// `object_admission`. Both are admitted, and accepted in dry runs, before one of them is made. Policies and webhooks
    /// for the object itself see only a write that changes it.
    async fn admit_status(
        self,
        request_admission: &Admission<'_>,
        object_admission: Option<&Admission<'_>>,
        buffered: BufferedRequest,
        warnings: &mut Vec<String>,
    ) -> Result<Response, ApiError> {
        let live = request_admission.old.clone().unwrap_or_default();
        let mut object_write = None;
        if let Some(object_admission) = object_admission {
            let result = self.dry_run(object_admission.resource_path, &buffered).await?;
            if !result.as_ref().is_ok_and(|object| differs_in_status_only(&live, object)) {
                match self.prepare(object_admission, buffered.clone(), result, warnings).await? {
                    Ok(prepared) => object_write = Some((object_admission.resource_path, prepared)),
                    Err(refused) => return Ok(refused),
                }
            }
        }
        let status = buffered.status_only(&live);
        let result = self.dry_run(request_admission.resource_path, &status).await?;
        let mut status = match self.prepare(request_admission, status, result, warnings).await? {
            // Mutating admission of the status cannot change the other fields.
            Ok(prepared) => prepared.status_only(&live),
            Err(refused) => return Ok(refused),
        };
        if let Some((resource_path, write)) = object_write {
            match self.request_object(resource_path, self.context.query(), &write).await? {
                Ok(written) => status.update_version(&written),
                Err(refused) => return Ok(refused),
            }
        }
        self.store_status(request_admission.resource_path, &status).await
    }

    /// Admits the object that `buffered` results in, with the changes of mutating admission, and sends the write.
    async fn admit(
        self,
        admission: &Admission<'_>,
        buffered: BufferedRequest,
        warnings: &mut Vec<String>,
    ) -> Result<Response, ApiError> {
        let query = self.context.query();
        if !admission.phases.any() {
            return self.store(admission.resource_path, query, &buffered).await;
        }
        let result = self.dry_run(admission.resource_path, &buffered).await?;
        match self.prepare(admission, buffered, result, warnings).await? {
            Ok(buffered) => self.store(admission.resource_path, query, &buffered).await,
            Err(refused) => Ok(refused),
        }
    }

    /// Admits `result`, the result of a dry run of `buffered`. Returns the write with the changes of mutating admission.
    async fn prepare(
        self,
        admission: &Admission<'_>,
        mut buffered: BufferedRequest,
        mut result: Outcome,
        warnings: &mut Vec<String>,
    ) -> Result<Outcome<BufferedRequest>, ApiError> {
        let Admission { request, phases, resource_path, old } = admission;
        if phases.mutating {
            let base = match &result {
                Ok(object) if old.is_none() => buffered.without_identity(object),
                Ok(object) => object.clone(),
                // Mutating admission can make an invalid object valid.
                Err(invalid)
                    if invalid.status() == StatusCode::UNPROCESSABLE_ENTITY && buffered.method != Method::PATCH =>
                {
                    buffered.object().unwrap_or_default()
                }
                Err(_) => Value::Null,
            };
            if !base.is_null() {
                let mut changed = base.clone();
                request.mutate(Some(&mut changed), old.as_ref(), warnings).await?;
                if changed != base {
                    buffered = buffered.with_result(&base, changed)?;
                    result = self.dry_run(resource_path, &buffered).await?;
                }
            }
        }
        let object = match result {
            Ok(object) => object,
            Err(refused) => return Ok(Err(refused)),
        };
        if phases.any() {
            request.validate(Some(&object), old.as_ref(), warnings).await?;
        }
        if old.is_none() {
            buffered = buffered.with_generated_name(&object);
        }
        Ok(Ok(buffered))
    }

    async fn delete(
        self,
        resource_path: &'r str,
        buffered: &BufferedRequest,
        warnings: &mut Vec<String>,
    ) -> Result<Response, ApiError> {
        let query = self.context.query();
        let options = buffered.delete_options(query)?;
        let admission_options = (options.raw.clone(), options.dry_run);
        let request = self.request(resource_path, Operation::Delete, self.context.name(), admission_options);
        if !request.applicable_phases().await?.any() {
            return self.store(resource_path, query, buffered).await;
        }
        self.delete_admitted(resource_path, &request, (buffered, &options), warnings).await
    }

    /// Admits and deletes one object. Repeats both if the object has changed meanwhile.
    async fn delete_admitted(
        self,
        resource_path: &str,
        request: &AdmissionRequest<'_>,
        (buffered, options): (&BufferedRequest, &DeleteOptions),
        warnings: &mut Vec<String>,
    ) -> Result<Response, ApiError> {
        let has_preconditions = !options.preconditions.is_empty();
        let mut attempt = 1;
        loop {
            let live = match self.read(resource_path, &Query::default()).await? {
                Ok(live) => live,
                Err(missing) => return Ok(missing),
            };
            request.mutate(None, Some(&live), warnings).await?;
            request.validate(None, Some(&live), warnings).await?;
            let response = self.store(resource_path, self.context.query(), &buffered.deletion(options, &live)).await?;
            if response.status() != StatusCode::CONFLICT || has_preconditions || attempt == MAX_ATTEMPTS {
                return Ok(response);
            }
            warnings.clear();
            attempt += 1;
        }
    }

    /// Admits the deletion of all selected objects before the first one is deleted. The admission requests contain no
    /// name.
    async fn delete_collection(
        self,
        resource_path: &'r str,
        buffered: &BufferedRequest,
        representation: Representation,
        warnings: &mut Vec<String>,
    ) -> Result<Response, ApiError> {
        let query = self.context.query();
        let options = buffered.delete_options(query)?;
        let request = self.request(resource_path, Operation::Delete, "", (options.raw.clone(), options.dry_run));
        if !request.applicable_phases().await?.any() {
            return self.store(resource_path, query, buffered).await;
        }
        let list = match self.read(resource_path, &list_query(query)).await? {
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
            let item_path = format!("{}/{}", resource_path.trim_end_matches('/'), path_segment(name));
            let deletion = buffered.deletion(&options, item);
            let mut response = self.store(&item_path, &Query::default(), &deletion).await?;
            if response.status() == StatusCode::CONFLICT {
                response = self.delete_admitted(&item_path, &request, (buffered, &options), warnings).await?;
            }
            if !response.status().is_success() && response.status() != StatusCode::NOT_FOUND {
                return Ok(response);
            }
        }
        representation.encode(StatusCode::OK, &list)
    }
}

/// The list query that selects the objects of a deletion.
fn list_query(query: &Query) -> Query {
    const NAMES: [&str; 6] =
        ["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch"];
    let values = NAMES.into_iter().filter_map(|name| Some((name, query.first(name)?)));
    Query::parse(Some(&query_string(values)))
}

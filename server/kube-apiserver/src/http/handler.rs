//! Request handlers for resources: parse, call the registry, respond.

use std::sync::Arc;

use axum::extract::{Request, State};
use crowsnest_apimachinery::content_negotiation;
use crowsnest_apimachinery::content_negotiation::unsupported_media_type;
use crowsnest_apimachinery::content_negotiation::{Encoding, Offer, Representation, Shape};
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::names::format::validate_path_segment;
use crowsnest_apimachinery::request::options::{DeleteOptions, DependentsPolicy, ListOptions, WriteOptions};
use crowsnest_apimachinery::request::{Query, RequestInfo, RequestPath, UnservedReason};
use crowsnest_apimachinery::status::{ApiError, ApiResult, Reason};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_apiserver::audit::Record;
use crowsnest_apiserver::warnings;
use crowsnest_registry::admission::{Attributes, Operation};
use crowsnest_registry::object::Object;
use crowsnest_registry::patch::Patch;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::strategy::RequestContext;
use crowsnest_registry::{Change, DeleteOutcome};
use crowsnest_schema::table::ListMeta;
use http::Method;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use serde_json::{Value, json};

use crate::http::body::EncodedBody;
use crate::http::{ApiState, Response, body, layers, pages, request_audit, respond, subresource, watch};

/// A parsed request for a resource.
pub(super) struct Call {
    pub(super) api: Arc<ApiState>,
    pub(super) info: Arc<RequestInfo>,
    pub(super) query: Arc<Query>,
    pub(super) user: UserInfo,
    pub(super) method: Method,
    /// Representation of the response, as negotiated by the `Accept` header.
    pub(super) representation: Representation,
    pub(super) content_type: Option<String>,
    pub(super) user_agent: String,
    /// Texts for `Warning` headers of the response.
    pub(super) warnings: Vec<String>,
    /// Audit record of the request; `None` if it is not logged.
    pub(super) record: Option<Arc<Record>>,
}

impl Call {
    pub fn request_context(&self, dry_run: bool) -> RequestContext {
        RequestContext {
            user: self.user.clone(),
            now: jiff::Timestamp::now(),
            dry_run,
            subresource: self.info.subresource.clone(),
            namespace: self.info.namespace.clone(),
            record: self.record.clone(),
        }
    }

    /// Parses the options of a write; `kind` is `CreateOptions`, `UpdateOptions` or `PatchOptions`.
    pub fn write_options(&self, kind: &str) -> ApiResult<WriteOptions> {
        let is_apply =
            content_negotiation::media_type(self.content_type.as_deref()).starts_with("application/apply-patch");
        WriteOptions::parse(kind, &self.query, &self.user_agent, is_apply)
    }

    /// Adds the request object to the audit record.
    pub fn record_request_object(&self, object: &Value) {
        if let Some(record) = &self.record {
            record.record_request(object);
        }
    }

    /// The query parameter `includeObject`, which selects the contents of table rows.
    pub fn include_object(&self) -> &str {
        self.query.get("includeObject").unwrap_or_default()
    }

    /// Responds with an object in the negotiated representation.
    pub fn respond_with_object(&self, code: u16, resource: &ResourceRef, object: &Value) -> ApiResult<Response> {
        respond::object(code, self.representation, resource, object, self.include_object())
    }
}

/// The innermost service of the stack: passes requests to a delegate, to discovery or to the handler of their verb.
pub(super) async fn dispatch(State(api): State<Arc<ApiState>>, request: Request) -> Response {
    let info = layers::info(&request);
    if let Some(unserved) = info.unserved {
        let error = match unserved {
            UnservedReason::Path => ApiError::unknown_resource(),
            UnservedReason::Method => ApiError::method_not_allowed(),
        };
        return respond::error(&error);
    }
    // Discovery documents of a delegated version are served by the delegate as well.
    let path = RequestPath::parse(request.uri().path()).ok();
    if let Some(delegate) = path.and_then(|path| path.group_version().and_then(|(g, v)| api.delegate_for(g, v))) {
        let user = layers::user(&request);
        return delegate.serve(&user, request).await;
    }
    if !info.is_resource {
        return api.discovery.serve(&api, &request);
    }
    let accept = request.headers().get(ACCEPT).and_then(|v| v.to_str().ok());
    let resource = api.registry.catalog.get(&Gvr::from(info.as_ref()));
    let offer = match info.verb.as_str() {
        _ if resource.as_ref().is_some_and(|resource| resource.is_custom()) => Offer::Custom,
        "list" | "watch" => Offer::Collection,
        _ if resource.is_some_and(|resource| !supports_table(&resource, &info.subresource)) => {
            Offer::ObjectWithoutTable
        }
        _ => Offer::Object,
    };
    let mut call = Call {
        user: layers::user(&request),
        query: request.extensions().get::<Arc<Query>>().cloned().unwrap_or_default(),
        method: request.method().clone(),
        representation: match content_negotiation::choose_representation(accept, offer) {
            Ok(representation) => representation,
            Err(error) if info.is_long_running() && info.verb != "watch" => {
                tracing::debug!(%error, "connect request with an unsupported Accept header");
                Representation::default()
            }
            Err(error) => return respond::error(&error),
        },
        content_type: header(&request, CONTENT_TYPE),
        user_agent: header(&request, USER_AGENT).unwrap_or_default(),
        warnings: Vec::new(),
        record: request_audit::record(request.extensions()).cloned(),
        api,
        info,
    };
    let mut response = match serve(&mut call, request).await {
        Ok(response) => response,
        Err(error) => respond::error_in(call.representation.encoding, &error),
    };
    warnings::append(response.headers_mut(), &call.warnings);
    response
}

/// True if kube-apiserver's storage supports tables: for listable resources, their status and scale.
fn supports_table(resource: &ResourceRef, subresource: &str) -> bool {
    match subresource {
        "" => resource.verbs.contains(&"list"),
        "status" => !["apiextensions.k8s.io", "apiregistration.k8s.io"].contains(&&*resource.gvr.group),
        subresource => subresource == "scale",
    }
}

fn header(request: &Request, name: http::HeaderName) -> Option<String> {
    request.headers().get(name).map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
}

async fn serve(call: &mut Call, request: Request) -> ApiResult<Response> {
    let info = call.info.clone();
    let Some(resource) = call.api.registry.catalog.get(&Gvr::from(info.as_ref())) else {
        // An unknown path is an unknown resource in built-in groups, and not found in groups of CRDs, which can be
        // removed.
        let served = call.api.registry.catalog.snapshot();
        let mut in_group = served.iter().filter(|resource| *resource.gvr.group == *info.group);
        return match in_group.any(|resource| !resource.is_custom()) {
            true => Err(ApiError::unknown_resource()),
            false => Ok(respond::text(404, "404 page not found\n")),
        };
    };
    call.warnings.extend(resource.strategy.deprecation_warning().map(str::to_owned));
    let has_namespace = !info.namespace.is_empty() && info.resource != "namespaces";
    // Lists and watches of namespaced resources can span all namespaces.
    let is_list_or_watch = ["list", "watch"].contains(&info.verb.as_str());
    // Custom resource paths with the wrong scope are not handled, which results in a plain 404.
    if resource.is_custom() && resource.namespaced != has_namespace && !(resource.namespaced && is_list_or_watch) {
        return Ok(respond::text(404, "404 page not found\n"));
    }
    // Namespaces do not contain Namespaces.
    let is_nested_namespaces = !info.namespace.is_empty() && info.resource == "namespaces" && !info.is_named;
    if has_namespace && !resource.namespaced || is_nested_namespaces {
        return Err(ApiError::unknown_resource());
    }
    if resource.namespaced && !has_namespace {
        if info.is_named {
            return Err(ApiError::unknown_resource());
        }
        if !is_list_or_watch {
            return Err(ApiError::method_not_allowed());
        }
    }
    // Resources do not support HEAD.
    if call.method == Method::HEAD && info.subresource != "proxy" {
        return Err(ApiError::method_not_allowed());
    }
    let name_errors = if info.is_named { validate_path_segment(&info.name, false) } else { Vec::new() };
    if !name_errors.is_empty() {
        let reason = name_errors.join(";");
        return Err(ApiError::bad_request(format!("Name parameter invalid: {:?}: {reason}", info.name)));
    }
    if !info.subresource.is_empty() {
        return subresource::serve(call, &resource, request).await;
    }
    // Custom resources are served with all verbs, even if discovery lists fewer.
    let serves = |verb: &str| resource.is_custom() || resource.verbs.contains(&verb);
    // Resources that only support `create` have no object paths.
    if info.is_named && !["get", "update", "patch", "delete"].into_iter().any(serves) {
        return Err(ApiError::unknown_resource());
    }
    if info.verb.is_empty() || !serves(&info.verb) {
        return Err(ApiError::method_not_allowed());
    }
    let path_fits_verb = match info.verb.as_str() {
        "create" => !info.is_named,
        "get" | "update" | "patch" | "delete" => info.is_named,
        _ => true,
    };
    if !path_fits_verb {
        return Err(ApiError::method_not_allowed());
    }
    match info.verb.as_str() {
        "get" => get(call, &resource).await,
        "list" => list(call, &resource).await,
        "watch" => watch::serve(call, &resource).await,
        "create" => create(call, &resource, request).await,
        "update" => update(call, &resource, request).await,
        "patch" => patch(call, &resource, request).await,
        "delete" => delete(call, &resource, request).await,
        "deletecollection" => delete_collection(call, &resource, request).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}

/// The namespace of the requested objects; empty for Namespaces themselves.
pub(super) fn namespace<'a>(info: &'a RequestInfo, resource: &ResourceRef) -> &'a str {
    if resource.namespaced { &info.namespace } else { "" }
}

pub(super) async fn get(call: &Call, resource: &ResourceRef) -> ApiResult<Response> {
    if let Some(version) = call.query.get("resourceVersion") {
        let version = crowsnest_registry::parse_resource_version(version)?;
        call.api.registry.wait_for_revision(version).await?;
    }
    let object = call.api.registry.get(resource, namespace(&call.info, resource), &call.info.name).await?;
    call.respond_with_object(200, resource, &object)
}

async fn list(call: &Call, resource: &ResourceRef) -> ApiResult<Response> {
    let options = ListOptions::from_request(&call.info, &call.query)?;
    let namespace = namespace(&call.info, resource);
    let page = call.api.registry.list_records(resource, namespace, &options).await?;
    if call.representation == Representation::default() && resource.strategy.serves_stored_unchanged() {
        let api_version = resource.gvr.api_version();
        if page.objects.iter().all(|record| record.body.api_version() == api_version) {
            return pages::respond_page(resource, page);
        }
    }
    let list = call.api.registry.decode_page(resource, &options, page).await?;
    respond::list(call.representation, resource, list, call.include_object())
}

async fn create(call: &mut Call, resource: &ResourceRef, request: Request) -> ApiResult<Response> {
    let options = call.write_options("CreateOptions")?;
    let encoded = EncodedBody::read(call.content_type.as_deref(), request.into_body()).await?;
    let ctx = call.request_context(options.dry_run);
    let mut object = body::decode_object(resource, &encoded, &options, &mut call.warnings)?;
    call.record_request_object(&object);
    let is_binding = resource.gvr.group.is_empty() && &*resource.gvr.resource == "bindings";
    if crowsnest_registry::authz::review::is_review(resource) {
        crowsnest_registry::create::prepare_metadata(resource, &ctx, &mut object, &options, &mut call.warnings, false)?;
        admit(call, resource, &ctx, &mut object, &options).await?;
    } else if is_binding {
        crowsnest_registry::create::set_namespace(&mut object, &ctx.namespace)?;
        admit(call, resource, &ctx, &mut object, &options).await?;
    }
    if let Some(review) = call.api.authorizer.review(&call.api.authenticator, &ctx, resource, &object).await {
        return Ok(respond::value(201, call.representation.encoding, &review?));
    }
    if is_binding {
        return subresource::bind(call, &ctx, &object).await;
    }
    resource.strategy.default(&mut object);
    let created = call.api.registry.create(resource, &ctx, object, &options, &mut call.warnings).await?;
    if let Some(record) = &call.record {
        record.record_created_object(&created);
    }
    call.respond_with_object(201, resource, &created)
}

/// Runs admission for objects that are evaluated but not stored.
async fn admit(
    call: &mut Call,
    resource: &ResourceRef,
    ctx: &RequestContext,
    object: &mut Value,
    options: &WriteOptions,
) -> ApiResult<()> {
    let name = object.name().to_owned();
    let attributes = Attributes::new(ctx, resource, Operation::Create, &name, &options.raw);
    call.api.registry.clone().admit(&attributes, object, &mut call.warnings).await
}

pub(super) async fn update(call: &mut Call, resource: &ResourceRef, request: Request) -> ApiResult<Response> {
    let options = call.write_options("UpdateOptions")?;
    let encoded = EncodedBody::read(call.content_type.as_deref(), request.into_body()).await?;
    let mut object = body::decode_object(resource, &encoded, &options, &mut call.warnings)?;
    call.record_request_object(&object);
    resource.strategy.default(&mut object);
    write(call, resource, Change::Replace(object), &options).await
}

pub(super) async fn patch(call: &mut Call, resource: &ResourceRef, request: Request) -> ApiResult<Response> {
    let options = call.write_options("PatchOptions")?;
    let patch = match read_patch(call, resource, request).await {
        // As in kube-apiserver, a missing object is reported before an invalid patch; only apply creates objects.
        Err(error) if error.is(Reason::BadRequest) && !is_apply(call) => {
            call.api.registry.get(resource, namespace(&call.info, resource), &call.info.name).await?;
            return Err(error);
        }
        result => result?,
    };
    write(call, resource, Change::Patch(patch), &options).await
}

fn is_apply(call: &Call) -> bool {
    content_negotiation::media_type(call.content_type.as_deref()) == "application/apply-patch+yaml"
}

/// Updates an object and responds with it. A `change` can create the object.
async fn write(call: &mut Call, resource: &ResourceRef, change: Change, options: &WriteOptions) -> ApiResult<Response> {
    let mut ctx = call.request_context(options.dry_run);
    ctx.namespace = namespace(&call.info, resource).to_owned();
    let registry = call.api.registry.clone();
    let name = call.info.name.clone();
    let (object, is_created) = registry.update(resource, &ctx, &name, &change, options, &mut call.warnings).await?;
    call.respond_with_object(if is_created { 201 } else { 200 }, resource, &object)
}

/// Reads the body and parses it as the patch of its media type.
pub(super) async fn read_patch(call: &Call, resource: &ResourceRef, request: Request) -> ApiResult<Patch> {
    let media_type = content_negotiation::media_type(call.content_type.as_deref());
    let is_built_in = resource.is_built_in();
    let unsupported =
        || ApiError::new(Reason::UnsupportedMediaType, "415: Unsupported Media Type").with_details(Default::default());
    let read_body = async || {
        let bytes = body::read(request.into_body()).await?;
        if let Some(record) = call.record.as_ref().filter(|record| record.logs_request_body()) {
            let patch = serde_json::from_slice(&bytes).ok().or_else(|| body::parse_yaml(&bytes).ok());
            patch.into_iter().for_each(|patch| record.record_patch(patch));
        }
        Ok::<_, ApiError>(bytes)
    };
    Ok(match media_type.as_str() {
        "application/json-patch+json" => Patch::Json(crowsnest_schema::patch::decode_json_patch(&read_body().await?)?),
        "application/merge-patch+json" => {
            Patch::Merge(crowsnest_schema::patch::decode_merge_patch(&read_body().await?)?)
        }
        "application/strategic-merge-patch+json" if is_built_in => {
            Patch::Strategic(crowsnest_schema::patch::decode_strategic_patch(&read_body().await?)?)
        }
        "application/strategic-merge-patch+json" => {
            return Err(unsupported_media_type(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/apply-patch+yaml",
            ]));
        }
        "application/apply-patch+yaml" => Patch::Apply(body::parse_apply_patch(&read_body().await?)?),
        _ => return Err(unsupported()),
    })
}

async fn read_delete_options(call: &Call, request: Request) -> ApiResult<DeleteOptions> {
    let bytes = body::read(request.into_body()).await?;
    let options = match bytes.is_empty() {
        true => None,
        false => {
            let encoding = content_negotiation::body_encoding(call.content_type.as_deref())?;
            let options = match encoding {
                Encoding::Json => crowsnest_schema::decode::decode_delete_options(&bytes)?,
                _ => body::parse(&bytes, encoding)?,
            };
            call.record_request_object(&options);
            Some(options)
        }
    };
    DeleteOptions::parse(options, &call.query)
}

/// True for kinds whose DELETE returns the object even if it is removed at once.
pub(crate) fn returns_object(resource: &ResourceRef) -> bool {
    matches!(
        (&*resource.gvr.group, &*resource.gvr.resource),
        (
            "",
            "pods"
                | "persistentvolumeclaims"
                | "persistentvolumes"
                | "podtemplates"
                | "resourcequotas"
                | "serviceaccounts"
                | "services"
        ) | ("storage.k8s.io", _)
    )
}

async fn delete(call: &mut Call, resource: &ResourceRef, request: Request) -> ApiResult<Response> {
    let options = read_delete_options(call, request).await?;
    let mut ctx = call.request_context(options.dry_run);
    ctx.namespace = namespace(&call.info, resource).to_owned();
    let name = call.info.name.clone();
    let registry = call.api.registry.clone();
    match registry.delete(resource, &ctx, &name, &options, &mut call.warnings).await? {
        DeleteOutcome::Pending(object) => {
            let code = if options.dependents == Some(DependentsPolicy::Orphan(false)) { 202 } else { 200 };
            call.respond_with_object(code, resource, &object)
        }
        DeleteOutcome::Removed(object) if returns_object(resource) => call.respond_with_object(200, resource, &object),
        DeleteOutcome::Removed(object) => {
            let mut details = json!({"name": name, "kind": resource.gvr.resource, "uid": object["metadata"]["uid"]});
            if !resource.gvr.group.is_empty() {
                details["group"] = (&*resource.gvr.group).into();
            }
            let status =
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
            Ok(respond::status(200, call.representation.encoding, status))
        }
    }
}

async fn delete_collection(call: &mut Call, resource: &ResourceRef, request: Request) -> ApiResult<Response> {
    let list = ListOptions::from_request(&call.info, &call.query)?;
    let options = read_delete_options(call, request).await?;
    let mut ctx = call.request_context(options.dry_run);
    ctx.namespace = namespace(&call.info, resource).to_owned();
    let registry = call.api.registry.clone();
    let deleted = registry.delete_collection(resource, &ctx, &list, &options, &mut call.warnings).await?;
    let meta = ListMeta { resource_version: registry.store.revision().to_string(), ..ListMeta::default() };
    if call.representation.shape == Shape::Object {
        return Ok(respond::value(200, call.representation.encoding, &respond::collection(resource, deleted, &meta)));
    }
    let list = crowsnest_registry::List {
        objects: deleted,
        revision: registry.store.revision(),
        continue_token: String::new(),
        remaining: None,
    };
    respond::list(call.representation, resource, list, call.include_object())
}

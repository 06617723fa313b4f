//! Subresources: status and other views of the object, scale, bindings, evictions, tokens, and connect requests.

use axum::extract::Request;
use crowsnest_apimachinery::content_negotiation::Shape;
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::rbac::Action;
use crowsnest_apimachinery::request::options::WriteOptions;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use crowsnest_registry::admission::{Attributes, Operation};
use crowsnest_registry::connect::ConnectRequest;
use crowsnest_registry::object::{Object, format_time};
use crowsnest_registry::resource::{ResourceInfo, ResourceRef, Subresource};
use crowsnest_registry::strategy::RequestContext;
use crowsnest_registry::{Change, Edit, get_scale};
use crowsnest_schema::decode::ExpectedKind;
use crowsnest_schema::schema_set::SchemaSet;
use crowsnest_schema::table::Printer;
use serde_json::{Value, json};

use crate::http::body::EncodedBody;
use crate::http::eviction::{evict, set_condition};
use crate::http::handler::{self, Call, namespace};
use crate::http::{Response, body, connect_options, respond};

/// Subresources whose kind is that of the object.
const OBJECT_SUBRESOURCES: [&str; 5] = ["status", "finalize", "approval", "ephemeralcontainers", "resize"];

pub(super) async fn serve(call: &mut Call, resource: &ResourceRef, request: Request) -> ApiResult<Response> {
    let info = call.info.clone();
    let (group, plural) = (&resource.gvr.group, &resource.gvr.resource);
    let subresource = resource.subresources.iter().find(|subresource| subresource.name == info.subresource);
    let subresource = match subresource.cloned() {
        Some(subresource) => subresource,
        None if resource.is_custom() => return Err(ApiError::not_found(group, plural, &info.name)),
        None => return Err(ApiError::unknown_resource()),
    };
    let verb = info.verb.as_str();
    if !info.is_named || !subresource.verbs.contains(&verb) {
        return Err(if resource.is_custom() {
            ApiError::method_not_supported(group, plural, &info.verb)
        } else {
            ApiError::method_not_allowed()
        });
    }
    if !info.rest.is_empty() && info.subresource != "proxy" {
        return Err(ApiError::unknown_resource());
    }
    if OBJECT_SUBRESOURCES.contains(&subresource.name) {
        return match verb {
            "get" => handler::get(call, resource).await,
            "update" => handler::update(call, resource, request).await,
            "patch" => handler::patch(call, resource, request).await,
            _ => Err(ApiError::method_not_allowed()),
        };
    }
    match subresource.name {
        "scale" => scale(call, resource, request).await,
        "binding" | "eviction" | "token" if verb == "create" => {
            let options = call.write_options("CreateOptions")?;
            let mut object = read_posted_object(call, &subresource, request, &options).await?;
            let ctx = call.request_context(options.dry_run);
            if subresource.name == "token" {
                return issue_token(call, resource, &ctx, object, &options).await;
            }
            let registry = call.api.registry.clone();
            let attributes = Attributes::new(&ctx, resource, Operation::Create, &info.name, &options.raw);
            registry.admit(&attributes, &mut object, &mut call.warnings).await?;
            match subresource.name {
                "binding" => bind(call, &ctx, &object).await,
                _ => evict(call, &ctx, &object).await,
            }
        }
        _ => connect(call, resource, &subresource, request).await,
    }
}

/// Reads a body of the subresource's own kind and records it for the audit log.
async fn read_posted_object(
    call: &mut Call,
    subresource: &Subresource,
    request: Request,
    options: &WriteOptions,
) -> ApiResult<Value> {
    let encoded = EncodedBody::read(call.content_type.as_deref(), request.into_body()).await?;
    let Subresource { group, version, kind, .. } = subresource;
    let schema = SchemaSet::builtin().kind(group, version, kind);
    let expected = ExpectedKind { group, version, kind, schema: schema.as_deref() };
    // Older clients send evictions of version `v1beta1`.
    let expected_v1beta1 = ExpectedKind { version: "v1beta1", ..expected };
    let mut object = match body::decode_kind(&expected, &encoded, options, &mut call.warnings) {
        Err(_) if kind == "Eviction" && is_v1beta1_eviction(&encoded.bytes) => {
            body::decode_kind(&expected_v1beta1, &encoded, options, &mut call.warnings)?
        }
        result => result?,
    };
    crowsnest_registry::create::set_namespace(&mut object, &call.info.namespace)?;
    call.record_request_object(&object);
    Ok(object)
}

/// True for a JSON body with an Eviction of `policy/v1beta1`.
fn is_v1beta1_eviction(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Value>(bytes).is_ok_and(|object| object["apiVersion"] == "policy/v1beta1")
}

async fn scale(call: &mut Call, resource: &ResourceRef, request: Request) -> ApiResult<Response> {
    let registry = call.api.registry.clone();
    let namespace = namespace(&call.info, resource).to_owned();
    let name = call.info.name.clone();
    let (change, options) = match call.info.verb.as_str() {
        "get" => {
            let object = registry.get(resource, &namespace, &name).await?;
            return respond_with_scale(call, resource, &object);
        }
        "update" => {
            let options = call.write_options("UpdateOptions")?;
            let encoded = EncodedBody::read(call.content_type.as_deref(), request.into_body()).await?;
            let schema = SchemaSet::builtin().kind("autoscaling", "v1", "Scale");
            let expected =
                ExpectedKind { group: "autoscaling", version: "v1", kind: "Scale", schema: schema.as_deref() };
            let scale = body::decode_kind(&expected, &encoded, &options, &mut call.warnings);
            let scale = scale.map_err(|error| if resource.is_custom() { unregistered_scale_error() } else { error })?;
            call.record_request_object(&scale);
            (Change::Replace(scale), options)
        }
        "patch" => {
            let options = call.write_options("PatchOptions")?;
            (Change::Patch(handler::read_patch(call, resource, request).await?), options)
        }
        _ => return Err(ApiError::method_not_allowed()),
    };
    let ctx = RequestContext { namespace, ..call.request_context(options.dry_run) };
    let change = Change::Scale(Box::new(change));
    let (object, _) = registry.update(resource, &ctx, &name, &change, &options, &mut call.warnings).await?;
    respond_with_scale(call, resource, &object)
}

/// The error for a Scale of a custom resource that cannot be decoded: kube-apiserver's handler does not know the kind, and
/// drops the cause.
fn unregistered_scale_error() -> ApiError {
    const SCHEME: &str = "k8s.io/apiextensions-apiserver/pkg/apiserver/customresource_handler.go:781";
    ApiError::bad_request(format!("no kind is registered for the type v1.Scale in scheme {SCHEME:?}"))
}

/// Responds with the scale of an object, in the negotiated representation.
fn respond_with_scale(call: &Call, resource: &ResourceRef, object: &Value) -> ApiResult<Response> {
    let scale = get_scale(resource, object)?;
    if call.representation.shape == Shape::Object {
        return Ok(respond::value(200, call.representation.encoding, &scale));
    }
    let (gvr, kind) = (Gvr::new("autoscaling", "v1", "scales"), "Scale".to_owned());
    let printer = Printer::built_in(&gvr.group, &kind);
    let resource = std::sync::Arc::new(ResourceInfo { gvr, kind, printer, ..ResourceInfo::clone(resource) });
    call.respond_with_object(200, &resource, &scale)
}

/// A Status with `Success`.
pub(super) fn respond_success(code: u16, call: &Call) -> Response {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code});
    respond::status(code, call.representation.encoding, status)
}

/// Binds a pod to the node that a Binding names, from a request for `pods/binding` or `bindings`.
pub(super) async fn bind(call: &mut Call, ctx: &RequestContext, binding: &Value) -> ApiResult<Response> {
    let pods = call.api.registry.resource(&Gvr::new("", "v1", "pods"))?;
    let name = if call.info.subresource == "binding" { call.info.name.clone() } else { binding.name().to_owned() };
    let target = binding["target"]["name"].as_str().unwrap_or_default().to_owned();
    if binding.name() != name {
        return Err(ApiError::bad_request("name in URL does not match name in Binding object"));
    }
    let errors = validate_target(binding);
    if !errors.is_empty() {
        return Err(crowsnest_registry::error_without_reason(crowsnest_apimachinery::field::aggregate(&errors)));
    }
    let annotations = binding["metadata"]["annotations"].clone();
    let (now, pod) = (format_time(ctx.now), name.clone());
    let (uid, version) = (binding.uid().to_owned(), binding.resource_version().to_owned());
    let edit = Edit(std::sync::Arc::new(move |object: &mut Value| {
        let conflict = |reason: String| Err(ApiError::conflict("", "pods/binding", &pod, reason));
        for (field, expected, live) in
            [("UID", &uid, object.uid()), ("ResourceVersion", &version, object.resource_version())]
        {
            if !expected.is_empty() && expected != live {
                return Err(ApiError::conflict("", "pods", &pod, precondition_message(object, field, expected, live)));
            }
        }
        if object.is_deleting() {
            return conflict(format!("pod {pod} is being deleted, cannot be assigned to a host"));
        }
        if let Some(node) = object["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
            return conflict(format!("pod {pod} is already assigned to node {node:?}"));
        }
        object["spec"]["nodeName"] = target.clone().into();
        for (key, value) in annotations.as_object().into_iter().flatten() {
            object["metadata"]["annotations"][key] = value.clone();
        }
        set_condition(
            object,
            json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now}),
        );
        Ok(())
    }));
    // Written by the server itself, because it changes both spec and status.
    let ctx = RequestContext { subresource: "binding".into(), ..ctx.clone() };
    let options = WriteOptions { raw: json!({}), ..call.write_options("CreateOptions")? };
    let registry = call.api.registry.clone();
    registry.update(&pods, &ctx, &name, &Change::Edit(edit), &options, &mut call.warnings).await?;
    Ok(respond_success(201, call))
}

/// Message of a failed precondition on a pod, with the wording of kube-apiserver's storage.
fn precondition_message(pod: &Value, field: &str, expected: &str, live: &str) -> String {
    let key = format!("/registry/pods/{}/{}", pod.namespace(), pod.name());
    format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {field} in precondition: {expected}, {field} in object meta: {live}"
    )
}

/// Validates the target of a binding, which must be a node.
fn validate_target(binding: &Value) -> Vec<FieldError> {
    let text = |key: &str| binding["target"][key].as_str().unwrap_or_default();
    let mut errors = Vec::new();
    if !["", "Node"].contains(&text("kind")) {
        errors.push(FieldError::not_supported("target.kind", text("kind"), &["Node", "<empty>"]));
    }
    if text("name").is_empty() {
        errors.push(FieldError::required("target.name", ""));
    }
    errors
}

/// `serviceaccounts/token`: issues a token for a service account.
async fn issue_token(
    call: &mut Call,
    accounts: &ResourceRef,
    ctx: &RequestContext,
    mut request: Value,
    options: &WriteOptions,
) -> ApiResult<Response> {
    if !request.name().is_empty() && request.name() != call.info.name {
        let reason = "must match the service account name if specified";
        let error = FieldError::invalid("metadata.name", request.name(), reason);
        return Err(ApiError::invalid("authentication.k8s.io", "TokenRequest", &call.info.name, vec![error]));
    }
    let registry = call.api.registry.clone();
    let account = registry.get(accounts, &ctx.namespace, &call.info.name).await?;
    complete_token_request(&mut request, &account, ctx);
    let attributes = Attributes::new(ctx, accounts, Operation::Create, account.name(), &options.raw);
    registry.admit(&attributes, &mut request, &mut call.warnings).await?;
    let token_request = call.api.authenticator.issue_token(ctx, &account, &request).await?;
    Ok(respond::value(201, call.representation.encoding, &token_request))
}

/// Completes a TokenRequest for admission: sets all fields and the account's name. A UID in the request is not
/// replaced, so that it can be compared with the account's when the token is issued.
fn complete_token_request(request: &mut Value, account: &Value, ctx: &RequestContext) {
    let metadata = request.metadata_mut();
    metadata.insert("name".into(), account.name().into());
    metadata.insert("creationTimestamp".into(), format_time(ctx.now).into());
    metadata.entry("uid").or_insert_with(|| account.uid().into());
    if request["spec"]["boundObjectRef"].is_null() {
        request["spec"]["boundObjectRef"] = Value::Null;
    }
    request["status"] = json!({"token": "", "expirationTimestamp": null});
}

/// Responds to a connect request for which no handler is registered: with the error that kube-apiserver returns before
/// it dials a node, or with the empty log of an unscheduled pod.
async fn respond_without_handler(call: &Call, resource: &ResourceRef) -> ApiResult<Response> {
    let (registry, info) = (&call.api.registry, &call.info);
    // `scheme:name:port` of a proxy request.
    let parts: Vec<&str> = info.name.split(':').collect();
    let name = if parts.len() == 3 { parts[1] } else { parts[0] };
    let object = registry.get(resource, namespace(info, resource), name).await?;
    let nodes = registry.resource(&Gvr::new("", "v1", "nodes"))?;
    let node = match object["spec"]["nodeName"].as_str().filter(|node| !node.is_empty()) {
        Some(node) => registry.get(&nodes, "", node).await.ok(),
        None => None,
    };
    let target = super::unreachable::ConnectTarget { object: &object, node: node.as_ref() };
    let container = call.query.get("container").unwrap_or_default();
    super::unreachable::check_reachable(&resource.gvr.resource, &info.subresource, container, &target)?;
    Ok(respond::bytes(204, respond::JSON, ""))
}

/// Requires the permission to create for sessions in a pod, also if a WebSocket requests them by GET
/// (`AuthorizePodWebsocketUpgradeCreatePermission` of Kubernetes 1.35, KEP-4006).
fn check_session_right(call: &Call, resource: &ResourceRef) -> ApiResult<()> {
    let info = &call.info;
    let is_session = ["exec", "attach", "portforward"].contains(&info.subresource.as_str());
    if !is_session || &*resource.gvr.resource != "pods" || info.verb == "create" {
        return Ok(());
    }
    let action = Action::Resource {
        verb: "create".into(),
        group: info.group.clone(),
        resource: info.resource.clone(),
        subresource: info.subresource.clone(),
        namespace: info.namespace.clone(),
        name: info.name.clone(),
    };
    call.api.authorizer.check(&call.user, &action)
}

/// Admits a connect request and passes it to the handler that is registered for the subresource.
async fn connect(
    call: &mut Call,
    resource: &ResourceRef,
    subresource: &Subresource,
    request: Request,
) -> ApiResult<Response> {
    let info = call.info.clone();
    let registry = call.api.registry.clone();
    let ctx = call.request_context(false);
    check_session_right(call, resource)?;
    // Logs are read-only and have no admission.
    if subresource.name != "log" {
        let mut options = connect_options::parse_connect_options(subresource, &call.query, &info.rest);
        let attributes = Attributes::new(&ctx, resource, Operation::Connect, &info.name, &Value::Null);
        registry.admit(&attributes, &mut options, &mut call.warnings).await?;
    }
    let Some(handler) = registry.connect_handler(&resource.gvr.group, &resource.gvr.resource, &info.subresource) else {
        return respond_without_handler(call, resource).await;
    };
    // The registry checks that the parent exists; proxy names can contain scheme and port and are left to the
    // handler.
    if info.subresource != "proxy" {
        registry.get(resource, namespace(&info, resource), &info.name).await?;
    }
    // The audit record belongs to the response, not to the tasks of the connection.
    let ctx = RequestContext { record: None, ..ctx };
    Ok(handler
        .connect(ConnectRequest {
            ctx,
            namespace: info.namespace.clone(),
            name: info.name.clone(),
            subresource: info.subresource.clone(),
            rest: info.rest.clone(),
            request,
        })
        .await)
}

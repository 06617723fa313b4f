//! Spans of requests: route, attributes, member and status. They contain no user name; the audit event with the same ID
//! does.

use crowsnest_apiserver::audit::Attributes;
use crowsnest_component_base::spans::{SPAN_TARGET, record_error};
use crowsnest_process::client_certificate::{Certificate, Peer};
use http::{HeaderMap, Method, StatusCode};
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TraceContextExt;
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::request::context::RequestAttributes;

/// Creates a span with the attributes of all requests and the given ones.
macro_rules! server_span {
    ($name:literal, ($method:expr, $route:expr), $($attributes:tt)*) => {
        tracing::info_span!(
            target: SPAN_TARGET,
            $name,
            otel.name = %format_args!("{} {}", $method, $route),
            otel.kind = "server",
            otel.status_code = Empty,
            http.request.method = $method.as_str(),
            http.route = $route,
            http.response.status_code = Empty,
            error.type = Empty,
            $($attributes)*
        )
    };
}

/// The span of a request for this server's API groups; `id` is the ID of its audit event.
pub fn request_span(
    (attributes, id): (&RequestAttributes, &str),
    method: &Method,
    headers: &HeaderMap,
    peer: &Peer,
) -> Span {
    let route = attributes.route.name();
    let effective = attributes.member.as_ref().unwrap_or(&attributes.authz);
    let span = server_span!(
        "request",
        (method, route),
        k8s.cluster.name = attributes.cluster.as_deref(),
        k8s.namespace.name = Some(effective.namespace.as_str()).filter(|namespace| !namespace.is_empty()),
        crowsnest.verb = effective.verb,
        crowsnest.resource = resource_name(effective),
        crowsnest.audit_id = id,
    );
    // Unauthenticated clients must not decide which requests are sampled.
    let is_trusted = peer.is_front_proxy || matches!(peer.certificate, Certificate::User(_));
    join_caller_trace(&span, headers, is_trusted);
    span
}

/// The span of a request for a webhook. Its client is not authenticated.
pub fn webhook_span(method: &Method, route: &str, headers: &HeaderMap) -> Span {
    let span = server_span!("webhook", (method, route), crowsnest.webhook = Empty);
    join_caller_trace(&span, headers, true);
    span
}

/// Records the status of the response. Client errors do not fail the span.
pub fn record_status(span: &Span, status: StatusCode) {
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        record_error(span, status.as_str());
    }
}

/// Makes a span part of the caller's trace if the caller is trusted. Otherwise the span starts a new trace with a link
/// to the caller's.
fn join_caller_trace(span: &Span, headers: &HeaderMap, is_trusted: bool) {
    if span.is_disabled() {
        return;
    }
    let caller_trace = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    let caller_context = caller_trace.span().span_context().clone();
    if !caller_context.is_valid() {
        return;
    }
    if !is_trusted {
        span.add_link(caller_context);
    } else if let Err(error) = span.set_parent(caller_trace) {
        tracing::debug!(%error, "a request is not part of its caller's trace");
    }
}

/// Resource in RBAC's notation: `pods/log`, `deployments.apps`. None for other paths, which may contain personal data.
fn resource_name(attributes: &Attributes) -> Option<String> {
    let Attributes { group, resource, subresource, path, .. } = attributes;
    let dot = if group.is_empty() { "" } else { "." };
    let slash = if subresource.is_empty() { "" } else { "/" };
    path.is_none().then(|| format!("{resource}{dot}{group}{slash}{subresource}"))
}

//! Traces: the target of all spans, and propagation of the span in request headers (W3C Trace Context).
//!
//! All crates create spans. The server exports them if an OTLP receiver is configured; otherwise a span costs one check of
//! a flag. Spans contain no secret data: no headers, bodies or queries, and only the part of a path that names a kind.

use http::{HeaderMap, Request};
use kube::client::{Body, ClientBuilder};
use opentelemetry::trace::TraceContextExt;
use opentelemetry::{Context, global};
use opentelemetry_http::HeaderInjector;
use tower::util::MapRequestLayer;
use tracing::Span;

use crate::requests::RequestCountLayer;
use crate::user_agent;

/// Target of all exported spans. No log line has this target.
pub const SPAN_TARGET: &str = "crowsnest::spans";

/// Writes the current span into the headers of a request. Without a span the headers stay unchanged.
pub fn inject_trace_context(headers: &mut HeaderMap) {
    let context = Context::current();
    if context.span().span_context().is_valid() {
        global::get_text_map_propagator(|propagator| propagator.inject_context(&context, &mut HeaderInjector(headers)));
    }
}

/// Creates a client whose requests carry the current span and this program's `User-Agent` in headers, and are counted.
/// Must be called inside a tokio runtime.
pub fn traced_client(config: kube::Config, request_counter: &RequestCountLayer) -> Result<kube::Client, kube::Error> {
    let propagate = MapRequestLayer::new(|mut request: Request<Body>| {
        inject_trace_context(request.headers_mut());
        user_agent::set(request.headers_mut());
        request
    });
    Ok(ClientBuilder::try_from(config)?.with_layer(&propagate).with_layer(request_counter).build())
}

/// Marks a span as failed, with the type of the error.
pub fn record_error(span: &Span, error_type: &str) {
    span.record("otel.status_code", "error");
    span.record("error.type", error_type);
}

/// A span that ends when this value is dropped, on any task. A span is exported with the time at which it was last
/// exited, so it is entered and exited once more when it is dropped.
#[derive(Debug)]
pub struct SpanGuard(pub Span);

impl Drop for SpanGuard {
    fn drop(&mut self) {
        self.0.in_scope(|| ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

    const CLIENT_TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn received_trace_headers_are_kept_without_trace_export() {
        let mut headers = HeaderMap::from_iter([(
            http::HeaderName::from_static("traceparent"),
            HeaderValue::from_static(CLIENT_TRACEPARENT),
        )]);
        inject_trace_context(&mut headers);
        assert_eq!(headers["traceparent"], CLIENT_TRACEPARENT);
        // Without trace export, an incoming trace context is not propagated.
        let span = SpanContext::new(TraceId::from(1), SpanId::from(2), TraceFlags::SAMPLED, true, TraceState::NONE);
        let _entered = Context::new().with_remote_span_context(span).attach();
        inject_trace_context(&mut headers);
        assert_eq!(headers["traceparent"], CLIENT_TRACEPARENT);
    }
}

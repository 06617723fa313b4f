//! Traces: the target of their spans, and how a request tells whomever it is sent to which span it is made in (W3C Trace
//! Context). Spans are made where work is done - here, in the cache, the proxy, the controllers and the servers - and sent by
//! `server`, where it was asked for; otherwise a span is a look at a flag.
//!
//! No span has anything in it that may be secret: no header, no body, no query, of paths only what names a kind.

use http::{HeaderMap, Request};
use kube::client::{Body, ClientBuilder};
use opentelemetry::trace::TraceContextExt;
use opentelemetry::{Context, global};
use opentelemetry_http::HeaderInjector;
use tower::util::MapRequestLayer;
use tracing::Span;

use crate::requests::CountRequests;

/// Target of all spans that are traced, and of nothing else: log lines have nothing of them.
pub const SPANS: &str = "crowsnest::spans";

/// Says in a request's head which span it is made in. Made in none, it says what it said before.
pub fn hand_on(headers: &mut HeaderMap) {
    let context = Context::current();
    if context.span().span_context().is_valid() {
        global::get_text_map_propagator(|propagator| propagator.inject_context(&context, &mut HeaderInjector(headers)));
    }
}

/// A client whose requests say which span they are made in, and are counted. Must run inside a tokio runtime.
pub fn client(config: kube::Config, counted: &CountRequests) -> Result<kube::Client, kube::Error> {
    let told = MapRequestLayer::new(|mut request: Request<Body>| {
        hand_on(request.headers_mut());
        request
    });
    Ok(ClientBuilder::try_from(config)?.with_layer(&told).with_layer(counted).build())
}

/// Marks a span as of something that failed, and why.
pub fn failed(span: &Span, why: &str) {
    span.record("otel.status_code", "error");
    span.record("error.type", why);
}

/// A span that lasts until this is dropped, wherever that is. Otherwise it has ended when it was last entered.
#[derive(Debug)]
pub struct Lasting(pub Span);

impl Drop for Lasting {
    fn drop(&mut self) {
        self.0.in_scope(|| ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

    const CLIENTS: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_a_client_said_stays_where_nothing_is_traced() {
        let mut headers =
            HeaderMap::from_iter([(http::HeaderName::from_static("traceparent"), HeaderValue::from_static(CLIENTS))]);
        hand_on(&mut headers);
        assert_eq!(headers["traceparent"], CLIENTS);
        // Nobody sends traces here: a context that is there is told to nobody either.
        let span = SpanContext::new(TraceId::from(1), SpanId::from(2), TraceFlags::SAMPLED, true, TraceState::NONE);
        let _entered = Context::new().with_remote_span_context(span).attach();
        hand_on(&mut headers);
        assert_eq!(headers["traceparent"], CLIENTS);
    }
}

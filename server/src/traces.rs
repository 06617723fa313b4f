//! Exports the spans of `crowsnest_component_base::spans` to an OTLP receiver.
//!
//! A thread of the OpenTelemetry SDK sends them in batches from a bounded queue. Span producers never wait; batches
//! that cannot be sent are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use bytes::Bytes;
use crowsnest_component_base::spans::SPAN_TARGET;
use http::{Request, Response};
use opentelemetry::trace::TracerProvider;
use opentelemetry::{KeyValue, global};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tokio::runtime::Handle;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::registry::LookupSpan;
use url::Url;

use crate::commands::tracing::TracingArgs;

/// Timeout of a request to the receiver.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time to flush spans at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of a response body in bytes; it reports partial failures only.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// The exporter. [`Traces::flush`] sends the remaining spans.
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    is_failing: Arc<AtomicBool>,
}

impl Traces {
    /// Starts the exporter; `None` if no endpoint is configured. Requests run on `runtime`; `command` names the
    /// process in the traces.
    pub(crate) fn start(args: &TracingArgs, command: &str, runtime: &Handle) -> anyhow::Result<Option<Self>> {
        let Some(endpoint) = &args.tracing_endpoint else { return Ok(None) };
        let is_failing = Arc::new(AtomicBool::new(false));
        let sender = Sender {
            client: build_client(args)?,
            runtime: runtime.clone(),
            endpoint: endpoint.clone(),
            is_failing: Arc::clone(&is_failing),
        };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(sender)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint.as_str())
            .with_timeout(REQUEST_TIMEOUT)
            .build()
            .context("--tracing-endpoint")?;
        let rate = f64::from(args.tracing_sampling_rate_per_million) / 1e6;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(rate))))
            .with_resource(resource(command))
            .build();
        global::set_text_map_propagator(TraceContextPropagator::new());
        Ok(Some(Self { provider, is_failing }))
    }

    /// The tracing layer that collects spans.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: tracing::Subscriber + for<'span> LookupSpan<'span>,
    {
        let spans = filter_fn(|metadata| metadata.is_span() && metadata.target() == SPAN_TARGET);
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(env!("CARGO_PKG_NAME")))
            .with_location(false)
            .with_threads(false)
            .with_level(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_filter(spans.with_max_level_hint(LevelFilter::INFO))
    }

    /// Flushes the remaining spans; requires the runtime.
    pub(crate) fn flush(self) {
        let result = self.provider.shutdown_with_timeout(FLUSH_TIMEOUT);
        if let Err(error) = result
            && !self.is_failing.load(Ordering::Relaxed)
        {
            tracing::warn!(%error, "cannot flush the remaining traces");
        }
    }
}

/// Resource attributes; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence.
fn resource(command: &str) -> Resource {
    let resource = Resource::builder_empty()
        .with_service_name(format!("crowsnest-{command}"))
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", uuid::Uuid::new_v4().to_string()),
        ])
        .with_detector(Box::new(EnvResourceDetector::new()));
    match std::env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => resource.with_service_name(name).build(),
        _ => resource.build(),
    }
}

fn build_client(args: &TracingArgs) -> anyhow::Result<reqwest::Client> {
    let builder = reqwest::Client::builder().timeout(REQUEST_TIMEOUT).redirect(reqwest::redirect::Policy::none());
    let builder = match &args.tracing_ca_file {
        Some(file) => {
            let context = || format!("--tracing-ca-file {}", file.display());
            let pem = std::fs::read(file).with_context(context)?;
            let authorities = reqwest::Certificate::from_pem_bundle(&pem).with_context(context)?;
            anyhow::ensure!(!authorities.is_empty(), "{}: the file has no certificate", context());
            builder.tls_certs_only(authorities)
        }
        None => builder,
    };
    builder.build().context("--tracing-endpoint")
}

/// HTTP client of the SDK, whose thread has no async runtime.
struct Sender {
    client: reqwest::Client,
    runtime: Handle,
    endpoint: Url,
    /// True if the last batch was rejected, which was logged.
    is_failing: Arc<AtomicBool>,
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("endpoint", &self.endpoint.as_str()).finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (client, request) = (self.client.clone(), reqwest::Request::try_from(request)?);
        let result = self.runtime.spawn(async move { read_response(client.execute(request).await?).await }).await;
        let result = result.map_err(HttpError::from).and_then(|response| response.map_err(HttpError::from));
        self.log_change(match &result {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("status {}", response.status())),
            Err(error) => Some(error_chain(error.as_ref())),
        });
        result
    }
}

impl Sender {
    /// Logs the first failure and the recovery.
    fn log_change(&self, failure: Option<String>) {
        let endpoint = self.endpoint.as_str();
        match (self.is_failing.swap(failure.is_some(), Ordering::Relaxed), failure) {
            (false, Some(error)) => {
                tracing::warn!(endpoint, error, "cannot export traces; they are dropped");
            }
            (true, None) => tracing::warn!(endpoint, "trace export recovered"),
            _ => {}
        }
    }
}

/// Reads a response up to `MAX_RESPONSE_BYTES` bytes.
async fn read_response(mut response: reqwest::Response) -> reqwest::Result<Response<Bytes>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        body.extend_from_slice(&chunk);
        if body.len() >= MAX_RESPONSE_BYTES {
            break;
        }
    }
    let mut result = Response::new(Bytes::from(body));
    *result.status_mut() = response.status();
    // The headers may contain Retry-After.
    result.headers_mut().clone_from(response.headers());
    Ok(result)
}

/// An error with its causes.
fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

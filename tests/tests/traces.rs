//! Traces of `crowsnest up` at a receiver: requests continue their callers' traces, members receive the trace context,
//! spans contain no confidential values, and an unavailable receiver has no effect.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use crowsnest_apiserver::authn::{Authority, ServingCertificates};
use crowsnest_apiserver::serve::serve;
use crowsnest_tests::Fleet;
use http::{HeaderMap, Request, Uri};
use kube::config::{KubeConfigOptions, Kubeconfig};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

const MEMBER: &str = include_str!("traces/member.yaml");
const CLUSTERS: &str = "/apis/cluster.karmada.io/v1alpha1/clusters";
/// Values that no span may contain, in addition to the fleet's tokens.
const SECRET: &str = "hunter2-and-more";
const SECRET_BASE64: &str = "aHVudGVyMi1hbmQtbW9yZQ==";
/// Token that the exporter sends to the receiver in a header.
const EXPORTER_TOKEN: &str = "open-sesame-7e1f";
/// Span kinds of OTLP.
const SERVER: i32 = 2;
const CLIENT: i32 = 3;

/// An OTLP receiver.
#[derive(Clone, Default)]
struct Receiver {
    request_headers: Arc<Mutex<Vec<HeaderMap>>>,
    bodies: Arc<Mutex<Vec<Bytes>>>,
}

impl Receiver {
    fn start(runtime: &Runtime) -> Result<(Self, String)> {
        let receiver = Self::default();
        let routes = Router::new().route("/v1/traces", post(receive)).with_state(receiver.clone());
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
        let url = format!("http://{}", listener.local_addr()?);
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Ok((receiver, url))
    }

    fn spans(&self) -> Result<Vec<Span>> {
        let mut spans = Vec::new();
        for body in self.bodies.lock().expect("the lock is not poisoned").iter() {
            let sent = ExportTraceServiceRequest::decode(body.clone())?;
            for resource in sent.resource_spans {
                let attributes = resource.resource.context("the spans have no resource")?.attributes;
                let name = attributes.iter().find(|entry| entry.key == "service.name").context("no service.name")?;
                ensure!(format!("{name:?}").contains("crowsnest-up"), "{name:?}");
                spans.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        }
        Ok(spans)
    }
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> Vec<u8> {
    receiver.request_headers.lock().expect("the lock is not poisoned").push(headers);
    receiver.bodies.lock().expect("the lock is not poisoned").push(body);
    ExportTraceServiceResponse::default().encode_to_vec()
}

/// Starts a member that returns the request's head; returns its URL.
fn start_member(runtime: &Runtime) -> Result<String> {
    let authority = Authority::generate("member")?;
    let serving = ServingCertificates::new(&authority.issue_serving_certificate(&["127.0.0.1".to_owned()])?)?;
    let tls = authority.tls(serving)?;
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))?;
    let url = format!("https://{}", listener.local_addr()?);
    runtime.spawn(serve(listener, Some(tls), Router::new().fallback(echo), CancellationToken::new()));
    Ok(url)
}

async fn echo(uri: Uri, headers: HeaderMap) -> axum::Json<BTreeMap<String, String>> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let mut head: BTreeMap<_, _> = headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    head.insert("path".to_owned(), uri.path().to_owned());
    axum::Json(head)
}

/// Attributes of a span that are strings or numbers.
fn attributes(span: &Span) -> BTreeMap<&str, String> {
    let value = |value: &any_value::Value| match value {
        any_value::Value::StringValue(text) => Some(text.clone()),
        any_value::Value::IntValue(number) => Some(number.to_string()),
        _ => None,
    };
    let entries = span.attributes.iter();
    entries.filter_map(|entry| Some((&*entry.key, value(entry.value.as_ref()?.value.as_ref()?)?))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Trace and span IDs that the caller of a request sends.
struct TraceContext {
    trace: String,
    span: String,
}

impl TraceContext {
    fn new(number: u8) -> Self {
        Self { trace: hex(&[number; 16]), span: hex(&[number; 8]) }
    }

    fn header(&self, flags: &str) -> String {
        format!("00-{}-{}-{flags}", self.trace, self.span)
    }
}

/// Client that sends a trace context.
struct TracedClient<'a> {
    runtime: &'a Runtime,
    client: kube::Client,
}

impl<'a> TracedClient<'a> {
    fn new(runtime: &'a Runtime, fleet: &Fleet) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(fleet.kubeconfig("cp"))?;
        let client = runtime.block_on(async {
            let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
            anyhow::Ok(kube::Client::try_from(config)?)
        })?;
        Ok(Self { runtime, client })
    }

    fn send(&self, method: &str, path: &str, traceparent: &str, body: String) -> Result<String> {
        let request = Request::builder().method(method).uri(path).header("traceparent", traceparent);
        let request = request.header("content-type", "application/json").body(body.into_bytes())?;
        self.runtime.block_on(self.client.request_text(request)).with_context(|| format!("{method} {path}"))
    }
}

#[test]
fn a_receiver_gets_traces() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let runtime = Runtime::new()?;
    let (receiver, url) = Receiver::start(&runtime)?;
    let header = format!("authorization=Bearer%20{EXPORTER_TOKEN}");
    let environment = [("OTEL_EXPORTER_OTLP_HEADERS", OsString::from(header))];
    let args = ["--members", "member1", "--tracing-endpoint", &url, "--tracing-sampling-rate-per-million", "1000000"];
    let fleet = Fleet::start_with_env(&data, &args, &environment)?;
    let client = TracedClient::new(&runtime, &fleet)?;

    let member = format!("{CLUSTERS}/member1/proxy/api/v1/namespaces/default");
    let (list_context, create_context, unsampled_context, echo_context) =
        (TraceContext::new(1), TraceContext::new(2), TraceContext::new(3), TraceContext::new(4));
    let mut last = String::new();
    crowsnest_tests::wait_for("the member's API to respond", || {
        let result = client.send("GET", &format!("{member}/pods"), &unsampled_context.header("00"), String::new());
        last = result.as_ref().err().map(|error| format!("{error:#}")).unwrap_or_default();
        Ok(result.is_ok())
    })
    .context(last)?;
    client.send(
        "GET",
        &format!("{member}/pods?fieldSelector=metadata.name%3D{SECRET}"),
        &list_context.header("01"),
        String::new(),
    )?;
    let secret = serde_json::json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "quiet"}, "data": {"a": SECRET_BASE64}});
    client.send("POST", &format!("{member}/secrets"), &create_context.header("01"), secret.to_string())?;
    let received_context = receive_context(&fleet, &client, &echo_context)?;

    let token = fleet.ui_url.split_once("#token=").context("no token in the UI's address")?.1.to_owned();
    // Remaining spans are sent at exit.
    ensure!(fleet.stop()?.success());
    let spans = receiver.spans()?;
    let find_span = |context: &TraceContext, kind: i32| {
        let found = spans.iter().find(|span| hex(&span.trace_id) == context.trace && span.kind == kind);
        found.with_context(|| format!("no such span in {spans:#?}"))
    };
    let (server_span, client_span) = (find_span(&list_context, SERVER)?, find_span(&list_context, CLIENT)?);
    ensure!(
        hex(&server_span.parent_span_id) == list_context.span && client_span.parent_span_id == server_span.span_id,
        "{server_span:#?} {client_span:#?}"
    );
    ensure!(
        server_span.name == "GET clusters/proxy" && client_span.name == "GET pods",
        "{server_span:#?} {client_span:#?}"
    );
    let span_attributes = attributes(server_span);
    let expected = [
        ("http.route", "clusters/proxy"),
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("k8s.cluster.name", "member1"),
        ("k8s.namespace.name", "default"),
        ("crowsnest.verb", "list"),
        ("crowsnest.resource", "pods"),
    ];
    for (key, value) in expected {
        ensure!(span_attributes.get(key).is_some_and(|found| found == value), "{key}: {span_attributes:#?}");
    }
    ensure!(
        audit_log(&data)?.contains(span_attributes.get("crowsnest.audit_id").context("no audit ID")?),
        "{span_attributes:#?}"
    );
    ensure!(
        attributes(find_span(&create_context, CLIENT)?)
            .get("http.response.status_code")
            .is_some_and(|code| code == "201")
    );
    ensure!(find_span(&unsampled_context, SERVER).is_err(), "a request that its caller does not sample was traced");

    // The member receives the span of its request.
    let contexts = spans.iter().filter(|span| span.kind == CLIENT);
    let contexts: Vec<String> =
        contexts.map(|span| format!("00-{}-{}-01", echo_context.trace, hex(&span.span_id))).collect();
    ensure!(contexts.contains(&received_context), "{received_context}: {contexts:#?}");
    for prefix in ["reconcile ", "list "] {
        ensure!(spans.iter().any(|span| span.name.starts_with(prefix)), "no span starts with {prefix}");
    }
    let reconciled =
        spans.iter().find(|span| span.name.starts_with("reconcile ")).context("no reconcile was traced")?;
    ensure!(
        reconciled.parent_span_id.is_empty() && attributes(reconciled).contains_key("crowsnest.key"),
        "{reconciled:#?}"
    );

    for body in receiver.bodies.lock().expect("the lock is not poisoned").iter() {
        for secret in [SECRET, SECRET_BASE64, EXPORTER_TOKEN, &token] {
            ensure!(!body.windows(secret.len()).any(|part| part == secret.as_bytes()), "{secret} is in a span");
        }
    }
    let request_headers = receiver.request_headers.lock().expect("the lock is not poisoned");
    ensure!(
        request_headers.iter().all(|head| head["authorization"] == format!("Bearer {EXPORTER_TOKEN}")),
        "{request_headers:?}"
    );
    ensure!(!log(&data)?.contains(EXPORTER_TOKEN), "the log contains the credentials for the receiver");
    Ok(())
}

/// Sends a request to a member that returns it; returns the trace context that the member received.
fn receive_context(fleet: &Fleet, client: &TracedClient<'_>, context: &TraceContext) -> Result<String> {
    let documents = MEMBER.replace("URL", &start_member(client.runtime)?);
    let kubectl = fleet.any_kubectl()?;
    let Some(kubectl) = kubectl else {
        anyhow::bail!("kubectl is missing: tests/fetch-kubectl");
    };
    kubectl.run_ok(&["apply", "-f", "-"], &documents)?;
    let mut response = String::new();
    crowsnest_tests::wait_for("the echoing member to respond", || {
        let result =
            client.send("GET", &format!("{CLUSTERS}/echo/proxy/api/v1/nodes"), &context.header("01"), String::new());
        response = result.unwrap_or_else(|error| format!("{error:#}"));
        Ok(response.contains("traceparent"))
    })
    .with_context(|| response.clone())?;
    let head: BTreeMap<String, String> = serde_json::from_str(&response)?;
    ensure!(head["path"] == "/api/v1/nodes" && head["authorization"] == "Bearer of-the-member", "{head:#?}");
    Ok(head["traceparent"].clone())
}

fn audit_log(data: &Path) -> Result<String> {
    Ok(fs::read_to_string(data.join("audit/audit.log"))?)
}

fn log(data: &Path) -> Result<String> {
    Ok(fs::read_to_string(data.with_extension("log"))?)
}

#[test]
fn an_unavailable_receiver_is_reported_once() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    // The port is reserved, and nothing listens.
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    drop(listener);
    let args = ["--no-members", "--tracing-endpoint", &url, "--tracing-sampling-rate-per-million", "1000000"];
    let frequent_export = [("OTEL_BSP_SCHEDULE_DELAY", OsString::from("100"))];
    let fleet = Fleet::start_with_env(&data, &args, &frequent_export)?;
    let runtime = Runtime::new()?;
    let client = TracedClient::new(&runtime, &fleet)?;
    client.send("GET", CLUSTERS, &TraceContext::new(1).header("01"), String::new())?;
    crowsnest_tests::wait_for("the failed export to be logged", || Ok(log(&data)?.contains("cannot export traces")))?;
    client.send("GET", CLUSTERS, &TraceContext::new(2).header("01"), String::new())?;
    ensure!(fleet.stop()?.success());
    let log = log(&data)?;
    ensure!(log.matches("cannot export traces").count() == 1, "{log}");
    ensure!(log.contains(&url) && log.contains("Connection refused"), "{log}");
    Ok(())
}

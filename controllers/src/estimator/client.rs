//! The client of scheduler estimators: gRPC services, Karmada's or ours, one for each member, that say how much fits there.
//!
//! Asked by the controllers before they plan. Connections are pooled; an estimator that cannot be reached is left alone for
//! a while, so that decisions do not wait for it one by one. Where an estimator is, a Service of the control plane
//! says, else its name in DNS ([`EstimatorOptions::places`]).

use std::collections::HashMap;
use std::error::Error as _;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::estimator as wire;
use crowsnest_api::names::estimator_service_name;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::client::ConfigExt;
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic_prost::ProstCodec;

use super::EstimatorError;

/// The longest a dial may take.
const DIAL: Duration = Duration::from_secs(5);
/// What could not be reached is not tried again before.
const LEFT_ALONE: Duration = Duration::from_secs(10);
/// A connection whose other end does not answer this often is gone.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

/// How estimators are found and asked. `Default` is Karmada's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EstimatorOptions {
    pub port: u16,
    /// The longest a question may take.
    pub timeout: Duration,
    /// Where their Services are.
    pub service_namespace: String,
    /// What their Services' names begin with.
    pub service_prefix: String,
    /// Who signs their certificates; without it, and without `insecure_skip_verify`, they are asked in plain text.
    pub ca_file: Option<PathBuf>,
    /// Our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Any certificate will do.
    pub insecure_skip_verify: bool,
    /// Members in pull mode are not asked.
    pub not_in_pull_mode: bool,
}

impl Default for EstimatorOptions {
    fn default() -> Self {
        Self {
            port: wire::PORT,
            timeout: Duration::from_secs(3),
            service_namespace: "karmada-system".to_owned(),
            service_prefix: wire::SERVICE_PREFIX.to_owned(),
            ca_file: None,
            identity: None,
            insecure_skip_verify: false,
            not_in_pull_mode: false,
        }
    }
}

impl EstimatorOptions {
    /// The Service of a cluster's estimator.
    pub fn service_name(&self, cluster: &str) -> String {
        estimator_service_name(&self.service_prefix, cluster)
    }

    /// Where to dial a cluster's estimator, one after the other; `service` is what the control plane has of that name.
    pub fn places(&self, cluster: &str, service: Option<&Service>) -> Result<Vec<String>, EstimatorError> {
        let wrong = |reason: String| EstimatorError::Address { cluster: cluster.to_owned(), reason };
        let (name, namespace, port) = (self.service_name(cluster), &self.service_namespace, self.port);
        let Some(spec) = service.map(|service| service.spec.clone().unwrap_or_default()) else {
            // The second one is for clusters with a domain of their own.
            let names = [format!("{name}.{namespace}.svc.cluster.local"), format!("{name}.{namespace}.svc")];
            return Ok(names.map(|host| format!("{host}:{port}")).into());
        };
        let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
        if kind != "ExternalName" {
            return Err(wrong(format!("unsupported service type {kind:?}")));
        }
        let ports = spec.ports.unwrap_or_default();
        let Some(found) = ports.into_iter().find(|one| one.port == i32::from(port)) else {
            return Err(wrong(format!("no service port {port} found for service {name:?}")));
        };
        let target = match found.target_port {
            Some(IntOrString::Int(target)) => target,
            other => {
                let other = match other {
                    Some(IntOrString::String(name)) => name,
                    _ => String::new(),
                };
                return Err(wrong(format!(
                    "ExternalName service type should have int target port, current target port: {other}"
                )));
            }
        };
        let host = spec.external_name.unwrap_or_default();
        Ok(vec![if host.contains(':') { format!("[{host}]:{target}") } else { format!("{host}:{target}") }])
    }

    fn is_secure(&self) -> bool {
        self.ca_file.is_some() || self.insecure_skip_verify
    }

    fn tls(&self) -> Result<ClientConfig, EstimatorError> {
        if !self.is_secure() {
            // The connector wants one, which nobody is shown.
            let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
            let builder = builder.with_safe_default_protocol_versions();
            let builder = builder
                .map_err(|error| EstimatorError::Certificates { file: PathBuf::new(), reason: error.to_string() })?;
            return Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
        }
        let mut config = kube::Config::new(Uri::from_static("https://estimator"));
        config.accept_invalid_certs = self.insecure_skip_verify;
        let of = |file: &PathBuf, reason: String| EstimatorError::Certificates { file: file.clone(), reason };
        if let Some(file) = &self.ca_file {
            let pem = std::fs::read(file).map_err(|error| of(file, error.to_string()))?;
            let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
            let found = found.map_err(|error| of(file, error.to_string()))?;
            if found.is_empty() {
                return Err(of(file, "there is no certificate in it".to_owned()));
            }
            config.root_cert = Some(found.iter().map(|certificate| certificate.to_vec()).collect());
        }
        let mut named = self.ca_file.clone().unwrap_or_default();
        if let Some((certificate, key)) = &self.identity {
            named.clone_from(certificate);
            config.auth_info.client_certificate = Some(certificate.display().to_string());
            config.auth_info.client_key = Some(key.display().to_string());
        }
        let mut tls = config.rustls_client_config().map_err(|error| of(&named, error.to_string()))?;
        // The connector says which it speaks.
        tls.alpn_protocols.clear();
        Ok(tls)
    }

    /// What the files hold.
    fn read(&self) -> Result<Vec<Vec<u8>>, EstimatorError> {
        let identity = self.identity.iter().flat_map(|(certificate, key)| [certificate, key]);
        let read = |file: &PathBuf| {
            std::fs::read(file)
                .map_err(|error| EstimatorError::Certificates { file: file.clone(), reason: error.to_string() })
        };
        self.ca_file.iter().chain(identity).map(read).collect()
    }

    fn client(&self) -> Result<Client, EstimatorError> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(DIAL));
        http.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(self.tls()?)
            .https_or_http()
            .enable_http2()
            .wrap_connector(http);
        let mut builder = legacy::Builder::new(TokioExecutor::new());
        builder.http2_only(true).timer(TokioTimer::new()).pool_timer(TokioTimer::new());
        builder.http2_keep_alive_interval(KEEP_ALIVE);
        Ok(builder.build(connector))
    }
}

type Client = legacy::Client<HttpsConnector<HttpConnector>, tonic::body::Body>;

/// What is known of a cluster's estimator.
enum Reached {
    /// It answered there.
    At(String),
    /// It was nowhere; not to be tried before.
    Nowhere(Instant),
}

/// A client, and what the files held that it was made of.
struct Made {
    client: Client,
    files: Vec<Vec<u8>>,
}

struct Inner {
    options: EstimatorOptions,
    made: Mutex<Made>,
    reached: Mutex<HashMap<String, Reached>>,
}

/// Asks estimators. Cheap to clone.
#[derive(Clone)]
pub struct Estimators {
    inner: Arc<Inner>,
}

impl fmt::Debug for Estimators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.options.fmt(f)
    }
}

/// Which estimator is asked, and what the question is about.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub cluster: &'a str,
    /// What the control plane has of [`EstimatorOptions::service_name`].
    pub service: Option<&'a Service>,
    /// `kind=…, name=namespace/name`, for the estimator's log.
    pub object: &'a str,
}

impl Estimators {
    /// Reads the certificates. Nothing is dialled yet.
    pub fn open(options: EstimatorOptions) -> Result<Self, EstimatorError> {
        let files = options.read()?;
        let made = Mutex::new(Made { client: options.client()?, files });
        Ok(Self { inner: Arc::new(Inner { options, made, reached: Mutex::default() }) })
    }

    pub fn options(&self) -> &EstimatorOptions {
        &self.inner.options
    }

    /// How many replicas fit into the cluster.
    pub async fn max_available_replicas(
        &self,
        asked: Asked<'_>,
        question: wire::MaxAvailableReplicasRequest,
    ) -> Result<i32, EstimatorError> {
        let answer: wire::MaxAvailableReplicasResponse =
            self.ask(asked, wire::MAX_AVAILABLE_REPLICAS, "MaxAvailableReplicas", question).await?;
        Ok(answer.max_replicas)
    }

    /// How many whole sets of components do.
    pub async fn max_available_component_sets(
        &self,
        asked: Asked<'_>,
        question: wire::MaxAvailableComponentSetsRequest,
    ) -> Result<i32, EstimatorError> {
        let answer: wire::MaxAvailableComponentSetsResponse =
            self.ask(asked, wire::MAX_AVAILABLE_COMPONENT_SETS, "MaxAvailableComponentSets", question).await?;
        Ok(answer.max_sets)
    }

    /// How many replicas of a workload have found no node for longer than a threshold.
    pub async fn unschedulable_replicas(
        &self,
        asked: Asked<'_>,
        question: wire::UnschedulableReplicasRequest,
    ) -> Result<i32, EstimatorError> {
        let answer: wire::UnschedulableReplicasResponse =
            self.ask(asked, wire::GET_UNSCHEDULABLE_REPLICAS, "UnschedulableReplicas", question).await?;
        Ok(answer.unschedulable_replicas)
    }

    /// Forgets a cluster that has left.
    pub fn forget(&self, cluster: &str) {
        self.inner.reached.lock().remove(cluster);
    }

    async fn ask<Q, A>(
        &self,
        asked: Asked<'_>,
        path: &'static str,
        method: &'static str,
        question: Q,
    ) -> Result<A, EstimatorError>
    where
        Q: prost::Message + Clone + 'static,
        A: prost::Message + Default + 'static,
    {
        let cluster = asked.cluster;
        let places = self.places(asked)?;
        let asking = async {
            let mut failed = None;
            for place in places {
                match self.ask_at(&place, asked.object, path, question.clone()).await {
                    Ok(answer) => return Ok((place, answer)),
                    Err(status) if is_dial(&status) => failed = Some(status),
                    Err(status) => return Err(status),
                }
            }
            Err(failed.unwrap_or_else(|| tonic::Status::unavailable("it is nowhere")))
        };
        let refused = |status: tonic::Status| EstimatorError::Answer {
            cluster: cluster.to_owned(),
            method,
            status: Arc::new(status),
        };
        match tokio::time::timeout(self.inner.options.timeout, asking).await {
            Ok(Ok((place, answer))) => {
                self.inner.reached.lock().insert(cluster.to_owned(), Reached::At(place));
                Ok(answer)
            }
            Ok(Err(status)) => {
                if is_transport(&status) {
                    self.left_alone(cluster);
                }
                Err(refused(status))
            }
            Err(_) => {
                self.left_alone(cluster);
                Err(refused(tonic::Status::deadline_exceeded("context deadline exceeded")))
            }
        }
    }

    /// Where to try; the place that answered before alone, if it still is one.
    fn places(&self, asked: Asked<'_>) -> Result<Vec<String>, EstimatorError> {
        let places = self.inner.options.places(asked.cluster, asked.service)?;
        match self.inner.reached.lock().get(asked.cluster) {
            Some(Reached::Nowhere(until)) if Instant::now() < *until => {
                Err(EstimatorError::Unreachable { cluster: asked.cluster.to_owned() })
            }
            Some(Reached::At(place)) if places.contains(place) => Ok(vec![place.clone()]),
            _ => Ok(places),
        }
    }

    /// It is not asked for a while; then with certificates as the files have them by then.
    fn left_alone(&self, cluster: &str) {
        let until = Instant::now() + LEFT_ALONE;
        self.inner.reached.lock().insert(cluster.to_owned(), Reached::Nowhere(until));
        if let Err(error) = self.read_again() {
            tracing::warn!(%error, "what was there before stays in use");
        }
    }

    fn read_again(&self) -> Result<(), EstimatorError> {
        let files = self.inner.options.read()?;
        if files != self.inner.made.lock().files {
            let client = self.inner.options.client()?;
            *self.inner.made.lock() = Made { client, files };
        }
        Ok(())
    }

    async fn ask_at<Q, A>(&self, place: &str, object: &str, path: &'static str, question: Q) -> Result<A, tonic::Status>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let scheme = if self.inner.options.is_secure() { "https" } else { "http" };
        let origin = Uri::builder().scheme(scheme).authority(place).path_and_query("/").build();
        let origin = origin.map_err(|error| tonic::Status::invalid_argument(format!("{place:?}: {error}")))?;
        let mut request = tonic::Request::new(question);
        // A name that no header carries is left out.
        if let Ok(object) = AsciiMetadataValue::try_from(object) {
            request.metadata_mut().insert(wire::OBJECT, object);
        }
        let client = self.inner.made.lock().client.clone();
        let mut grpc = Grpc::with_origin(client, origin);
        let codec: ProstCodec<Q, A> = ProstCodec::default();
        Ok(grpc.unary(request, PathAndQuery::from_static(path), codec).await?.into_inner())
    }
}

/// Why the connection failed, if it did.
fn transport(status: &tonic::Status) -> Option<&legacy::Error> {
    let mut cause = status.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<legacy::Error>() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

fn is_transport(status: &tonic::Status) -> bool {
    transport(status).is_some()
}

fn is_dial(status: &tonic::Status) -> bool {
    transport(status).is_some_and(legacy::Error::is_connect)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    #[rstest]
    #[case::unknown(Value::Null, Ok(vec![
        "karmada-scheduler-estimator-m1.karmada-system.svc.cluster.local:10352",
        "karmada-scheduler-estimator-m1.karmada-system.svc:10352",
    ]))]
    #[case::elsewhere(
        json!({"type": "ExternalName", "externalName": "estimator.example.com", "ports": [{"port": 10352, "targetPort": 443}]}),
        Ok(vec!["estimator.example.com:443"])
    )]
    #[case::address(
        json!({"type": "ExternalName", "externalName": "fd00::7", "ports": [{"port": 10352, "targetPort": 443}]}),
        Ok(vec!["[fd00::7]:443"])
    )]
    #[case::here(json!({"type": "ClusterIP"}), Err("unsupported service type \"ClusterIP\""))]
    #[case::another_port(
        json!({"type": "ExternalName", "externalName": "e", "ports": [{"port": 80, "targetPort": 80}]}),
        Err("no service port 10352 found for service \"karmada-scheduler-estimator-m1\"")
    )]
    #[case::named_port(
        json!({"type": "ExternalName", "externalName": "e", "ports": [{"port": 10352, "targetPort": "grpc"}]}),
        Err("ExternalName service type should have int target port, current target port: grpc")
    )]
    fn a_service_says_where_it_is(#[case] spec: Value, #[case] expected: Result<Vec<&str>, &str>) {
        let service = (!spec.is_null()).then(|| serde_json::from_value(json!({"spec": spec})).expect("a Service"));
        let found = EstimatorOptions::default().places("m1", service.as_ref());
        let expected = expected.map(|places| places.into_iter().map(str::to_owned).collect::<Vec<_>>());
        let expected = expected.map_err(|reason| format!("scheduler estimator of cluster m1: {reason}"));
        assert_eq!(found.map_err(|error| error.to_string()), expected);
    }

    #[tokio::test]
    async fn who_is_not_there_is_left_alone() {
        // Nobody listens at a port that was given back.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let service = json!({"spec": {
            "type": "ExternalName", "externalName": "127.0.0.1", "ports": [{"port": 10352, "targetPort": port}],
        }});
        let service: Service = serde_json::from_value(service).expect("a Service");
        let estimators = Estimators::open(EstimatorOptions::default()).expect("no files");
        let asked = Asked { cluster: "m1", service: Some(&service), object: "kind=Deployment, name=shop/web" };
        let ask = || estimators.max_available_replicas(asked, wire::MaxAvailableReplicasRequest::default());
        let first = ask().await.expect_err("nobody is there");
        assert!(matches!(first, EstimatorError::Answer { .. }), "{first}");
        assert_eq!(
            ask().await.expect_err("nobody is asked").to_string(),
            "scheduler estimator of cluster m1: it was not reached"
        );
        estimators.forget("m1");
        assert!(matches!(ask().await, Err(EstimatorError::Answer { .. })));
    }

    #[rstest]
    #[case::no_authority(None, "there is no certificate in it")]
    #[case::no_key(Some("missing.key"), "No such file")]
    fn files_that_are_no_good_are_named(#[case] key: Option<&str>, #[case] expected: &str) {
        let directory = tempfile::tempdir().expect("a directory");
        let empty = directory.path().join("ca.crt");
        std::fs::write(&empty, "").expect("written");
        let identity = key.map(|key| (empty.clone(), directory.path().join(key)));
        let ca_file = identity.is_none().then(|| empty.clone());
        let insecure_skip_verify = ca_file.is_none();
        let options = EstimatorOptions { ca_file, identity, insecure_skip_verify, ..EstimatorOptions::default() };
        let error = Estimators::open(options).expect_err("refused").to_string();
        assert!(error.contains(expected) && error.contains(directory.path().to_str().expect("a path")), "{error}");
    }
}

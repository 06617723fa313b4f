//! Client of scheduler estimators, which are gRPC services of Karmada or Crowsnest, one per member, that estimate
//! available replicas.
//!
//! Controllers query them before planning. Connections are pooled. An unreachable estimator is skipped for a while,
//! so that decisions do not wait for it repeatedly. Its address is that of a Service in the control plane, or else
//! its DNS name ([`EstimatorOptions::addresses`]).

use std::collections::HashMap;
use std::error::Error as _;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::estimator as wire;
use crowsnest_api::names::estimator_service_name;
use crowsnest_component_base::tls;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::metadata::AsciiMetadataValue;
use tonic_prost::ProstCodec;

use super::EstimatorError;

/// Connect timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which an unreachable estimator is skipped.
const SKIP_DURATION: Duration = Duration::from_secs(10);
/// Interval of HTTP/2 keep-alive pings.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// Addresses and credentials of estimators. `Default` has Karmada's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EstimatorOptions {
    pub port: u16,
    /// Timeout of a request.
    pub timeout: Duration,
    /// Namespace of the estimators' Services.
    pub service_namespace: String,
    /// Name prefix of the estimators' Services.
    pub service_prefix: String,
    /// CA of their certificates. Without it, and without `insecure_skip_verify`, requests are in plain text.
    pub ca_file: Option<PathBuf>,
    /// Client certificate and key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Accepts any server certificate.
    pub insecure_skip_verify: bool,
    /// Skips members in pull mode.
    pub skip_pull_mode: bool,
}

impl Default for EstimatorOptions {
    fn default() -> Self {
        Self {
            port: wire::DEFAULT_PORT,
            timeout: Duration::from_secs(3),
            service_namespace: "karmada-system".to_owned(),
            service_prefix: wire::DEFAULT_SERVICE_PREFIX.to_owned(),
            ca_file: None,
            identity: None,
            insecure_skip_verify: false,
            skip_pull_mode: false,
        }
    }
}

impl EstimatorOptions {
    /// Name of the Service of a cluster's estimator.
    pub fn service_name(&self, cluster: &str) -> String {
        estimator_service_name(&self.service_prefix, cluster)
    }

    /// Addresses of a cluster's estimator, to be tried in order. `service` is the Service of that name, if it exists.
    pub fn addresses(&self, cluster: &str, service: Option<&Service>) -> Result<Vec<String>, EstimatorError> {
        let address_error = |reason: String| EstimatorError::Address { cluster: cluster.to_owned(), reason };
        let (name, namespace, port) = (self.service_name(cluster), &self.service_namespace, self.port);
        let Some(spec) = service.map(|service| service.spec.clone().unwrap_or_default()) else {
            // The second one works in clusters with another cluster domain.
            let names = [format!("{name}.{namespace}.svc.cluster.local"), format!("{name}.{namespace}.svc")];
            return Ok(names.map(|host| format!("{host}:{port}")).into());
        };
        let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
        if kind != "ExternalName" {
            return Err(address_error(format!("unsupported service type {kind:?}")));
        }
        let ports = spec.ports.unwrap_or_default();
        let Some(found) = ports.into_iter().find(|candidate| candidate.port == i32::from(port)) else {
            return Err(address_error(format!("no service port {port} found for service {name:?}")));
        };
        let target = match found.target_port {
            Some(IntOrString::Int(target)) => target,
            other => {
                let target_port = match other {
                    Some(IntOrString::String(name)) => name,
                    _ => String::new(),
                };
                return Err(address_error(format!(
                    "ExternalName service type should have int target port, current target port: {target_port}"
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
            // The connector requires a TLS configuration, which is not used.
            let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
            let builder = builder.with_safe_default_protocol_versions();
            let builder = builder
                .map_err(|error| EstimatorError::Certificates { file: PathBuf::new(), reason: error.to_string() })?;
            return Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
        }
        let mut config = kube::Config::new(Uri::from_static("https://estimator"));
        config.accept_invalid_certs = self.insecure_skip_verify;
        let certificate_error =
            |file: &PathBuf, reason: String| EstimatorError::Certificates { file: file.clone(), reason };
        if let Some(file) = &self.ca_file {
            let pem = std::fs::read(file).map_err(|error| certificate_error(file, error.to_string()))?;
            let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
            let found = found.map_err(|error| certificate_error(file, error.to_string()))?;
            if found.is_empty() {
                return Err(certificate_error(file, "it contains no certificate".to_owned()));
            }
            config.root_cert = Some(found.iter().map(|certificate| certificate.to_vec()).collect());
        }
        let mut failed_file = self.ca_file.clone().unwrap_or_default();
        if let Some((certificate, key)) = &self.identity {
            failed_file.clone_from(certificate);
            config.auth_info.client_certificate = Some(certificate.display().to_string());
            config.auth_info.client_key = Some(key.display().to_string());
        }
        let mut tls =
            tls::kube_client_config(&config).map_err(|error| certificate_error(&failed_file, error.to_string()))?;
        // The connector sets ALPN itself.
        tls.alpn_protocols.clear();
        Ok(tls)
    }

    /// Reads the certificate and key files.
    fn read_files(&self) -> Result<Vec<Vec<u8>>, EstimatorError> {
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
        http.set_connect_timeout(Some(CONNECT_TIMEOUT));
        http.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(self.tls()?)
            .https_or_http()
            .enable_http2()
            .wrap_connector(http);
        let mut builder = legacy::Builder::new(TokioExecutor::new());
        builder.http2_only(true).timer(TokioTimer::new()).pool_timer(TokioTimer::new());
        builder.http2_keep_alive_interval(KEEP_ALIVE_INTERVAL);
        Ok(builder.build(connector))
    }
}

type Client = legacy::Client<HttpsConnector<HttpConnector>, tonic::body::Body>;

/// Reachability of a cluster's estimator.
enum Reachability {
    /// It responded at this address.
    Reachable(String),
    /// It was unreachable, and is skipped until this time.
    Unreachable(Instant),
}

/// A client, and the contents of the files that it was created from.
struct LoadedClient {
    client: Client,
    files: Vec<Vec<u8>>,
}

struct Inner {
    options: EstimatorOptions,
    loaded: Mutex<LoadedClient>,
    reachability: Mutex<HashMap<String, Reachability>>,
}

/// Client of all estimators. Cheap to clone.
#[derive(Clone)]
pub struct Estimators {
    inner: Arc<Inner>,
}

impl fmt::Debug for Estimators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.options.fmt(f)
    }
}

/// Target of an estimator request: the cluster with its Service, and the object for the log.
#[derive(Debug, Clone, Copy)]
pub struct EstimatorTarget<'a> {
    pub cluster: &'a str,
    /// The Service named [`EstimatorOptions::service_name`], if it exists.
    pub service: Option<&'a Service>,
    /// `kind=…, name=namespace/name`, for the estimator's log.
    pub object: &'a str,
}

impl Estimators {
    /// Reads the certificates. Does not connect yet.
    pub fn new(options: EstimatorOptions) -> Result<Self, EstimatorError> {
        let files = options.read_files()?;
        let loaded = Mutex::new(LoadedClient { client: options.client()?, files });
        Ok(Self { inner: Arc::new(Inner { options, loaded, reachability: Mutex::default() }) })
    }

    pub fn options(&self) -> &EstimatorOptions {
        &self.inner.options
    }

    /// Drops the state of a removed cluster.
    pub fn forget(&self, cluster: &str) {
        self.inner.reachability.lock().remove(cluster);
    }

    /// Calls a method of a cluster's estimator at its addresses, in order.
    pub async fn call<R: wire::Request>(
        &self,
        estimator_target: EstimatorTarget<'_>,
        request: R,
    ) -> Result<R::Response, EstimatorError> {
        let cluster = estimator_target.cluster;
        let addresses = self.addresses(estimator_target)?;
        let attempt = async {
            let mut last_error = None;
            for address in addresses {
                match self.query_address(&address, estimator_target.object, request.clone()).await {
                    Ok(response) => return Ok((address, response)),
                    Err(status) if is_connect_error(&status) => last_error = Some(status),
                    Err(status) => return Err(status),
                }
            }
            Err(last_error.unwrap_or_else(|| tonic::Status::unavailable("the estimator has no address")))
        };
        let request_error = |status: tonic::Status| EstimatorError::Request {
            cluster: cluster.to_owned(),
            method: R::METHOD,
            status: Arc::new(status),
        };
        match tokio::time::timeout(self.inner.options.timeout, attempt).await {
            Ok(Ok((address, response))) => {
                self.inner.reachability.lock().insert(cluster.to_owned(), Reachability::Reachable(address));
                Ok(response)
            }
            Ok(Err(status)) => {
                if is_transport_error(&status) {
                    self.skip(cluster);
                }
                Err(request_error(status))
            }
            Err(_) => {
                self.skip(cluster);
                Err(request_error(tonic::Status::deadline_exceeded("context deadline exceeded")))
            }
        }
    }

    /// Addresses to try: only the one that responded last, if it is still an address of the estimator. Fails while the
    /// estimator is skipped.
    fn addresses(&self, estimator_target: EstimatorTarget<'_>) -> Result<Vec<String>, EstimatorError> {
        let addresses = self.inner.options.addresses(estimator_target.cluster, estimator_target.service)?;
        match self.inner.reachability.lock().get(estimator_target.cluster) {
            Some(Reachability::Unreachable(until)) if Instant::now() < *until => {
                Err(EstimatorError::Unreachable { cluster: estimator_target.cluster.to_owned() })
            }
            Some(Reachability::Reachable(address)) if addresses.contains(address) => Ok(vec![address.clone()]),
            _ => Ok(addresses),
        }
    }

    /// Skips an estimator for a while. The certificate files are read again, in case they changed.
    fn skip(&self, cluster: &str) {
        let until = Instant::now() + SKIP_DURATION;
        self.inner.reachability.lock().insert(cluster.to_owned(), Reachability::Unreachable(until));
        if let Err(error) = self.reload() {
            tracing::warn!(%error, "cannot reload the certificates of scheduler estimators; the previous ones stay in use");
        }
    }

    fn reload(&self) -> Result<(), EstimatorError> {
        let files = self.inner.options.read_files()?;
        if files != self.inner.loaded.lock().files {
            let client = self.inner.options.client()?;
            *self.inner.loaded.lock() = LoadedClient { client, files };
        }
        Ok(())
    }

    async fn query_address<R: wire::Request>(
        &self,
        address: &str,
        object: &str,
        request: R,
    ) -> Result<R::Response, tonic::Status> {
        let scheme = if self.inner.options.is_secure() { "https" } else { "http" };
        let origin = Uri::builder().scheme(scheme).authority(address).path_and_query("/").build();
        let origin = origin.map_err(|error| tonic::Status::invalid_argument(format!("{address:?}: {error}")))?;
        let mut grpc_request = tonic::Request::new(request);
        // A name that is not a valid header value is omitted.
        if let Ok(object) = AsciiMetadataValue::try_from(object) {
            grpc_request.metadata_mut().insert(wire::OBJECT_METADATA_KEY, object);
        }
        let client = self.inner.loaded.lock().client.clone();
        let mut grpc = Grpc::with_origin(client, origin);
        let codec: ProstCodec<R, R::Response> = ProstCodec::default();
        Ok(grpc.unary(grpc_request, PathAndQuery::from_static(R::PATH), codec).await?.into_inner())
    }
}

/// The connection error behind a gRPC status, if any.
fn find_transport_error(status: &tonic::Status) -> Option<&legacy::Error> {
    let mut cause = status.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<legacy::Error>() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

fn is_transport_error(status: &tonic::Status) -> bool {
    find_transport_error(status).is_some()
}

fn is_connect_error(status: &tonic::Status) -> bool {
    find_transport_error(status).is_some_and(legacy::Error::is_connect)
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
    #[case::external_name(
        json!({"type": "ExternalName", "externalName": "estimator.example.com", "ports": [{"port": 10352, "targetPort": 443}]}),
        Ok(vec!["estimator.example.com:443"])
    )]
    #[case::ipv6_address(
        json!({"type": "ExternalName", "externalName": "fd00::7", "ports": [{"port": 10352, "targetPort": 443}]}),
        Ok(vec!["[fd00::7]:443"])
    )]
    #[case::cluster_ip(json!({"type": "ClusterIP"}), Err("unsupported service type \"ClusterIP\""))]
    #[case::another_port(
        json!({"type": "ExternalName", "externalName": "e", "ports": [{"port": 80, "targetPort": 80}]}),
        Err("no service port 10352 found for service \"karmada-scheduler-estimator-m1\"")
    )]
    #[case::named_port(
        json!({"type": "ExternalName", "externalName": "e", "ports": [{"port": 10352, "targetPort": "grpc"}]}),
        Err("ExternalName service type should have int target port, current target port: grpc")
    )]
    fn address_of_a_service(#[case] spec: Value, #[case] expected: Result<Vec<&str>, &str>) {
        let service = (!spec.is_null()).then(|| serde_json::from_value(json!({"spec": spec})).expect("a Service"));
        let found = EstimatorOptions::default().addresses("m1", service.as_ref());
        let expected = expected.map(|addresses| addresses.into_iter().map(str::to_owned).collect::<Vec<_>>());
        let expected = expected.map_err(|reason| format!("scheduler estimator of cluster m1: {reason}"));
        assert_eq!(found.map_err(|error| error.to_string()), expected);
    }

    #[tokio::test]
    async fn unreachable_estimator_is_skipped() {
        // No process listens on a port that was released.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let service = json!({"spec": {
            "type": "ExternalName", "externalName": "127.0.0.1", "ports": [{"port": 10352, "targetPort": port}],
        }});
        let service: Service = serde_json::from_value(service).expect("a Service");
        let estimators = Estimators::new(EstimatorOptions::default()).expect("no files");
        let estimator_target =
            EstimatorTarget { cluster: "m1", service: Some(&service), object: "kind=Deployment, name=shop/web" };
        let call = || estimators.call(estimator_target, wire::MaxAvailableReplicasRequest::default());
        let first = call().await.expect_err("no server");
        assert!(matches!(first, EstimatorError::Request { .. }), "{first}");
        assert_eq!(
            call().await.expect_err("skipped").to_string(),
            "cannot reach the scheduler estimator of cluster m1"
        );
        estimators.forget("m1");
        assert!(matches!(call().await, Err(EstimatorError::Request { .. })));
    }

    #[rstest]
    #[case::no_authority(None, "it contains no certificate")]
    #[case::no_key(Some("missing.key"), "No such file")]
    fn invalid_files_are_named(#[case] key: Option<&str>, #[case] expected: &str) {
        let directory = tempfile::tempdir().expect("a directory");
        let empty = directory.path().join("ca.crt");
        std::fs::write(&empty, "").expect("written");
        let identity = key.map(|key| (empty.clone(), directory.path().join(key)));
        let ca_file = identity.is_none().then(|| empty.clone());
        let insecure_skip_verify = ca_file.is_none();
        let options = EstimatorOptions { ca_file, identity, insecure_skip_verify, ..EstimatorOptions::default() };
        let error = Estimators::new(options).expect_err("invalid files").to_string();
        assert!(error.contains(expected) && error.contains(directory.path().to_str().expect("a path")), "{error}");
    }
}

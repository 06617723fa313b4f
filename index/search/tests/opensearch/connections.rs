//! Connections: credentials, certificates, several nodes, limits, and the media types of each engine.

use super::node::install_cryptography;
use super::proxy::{Fault, Proxy, response};
use super::test_env::client_options;
use crowsnest_search::opensearch::client::{
    Authorization, Client, ClientError, CredentialSource, Credentials, ProxyChoice, Request, Secret,
};
use rstest::rstest;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

/// An address where nothing listens.
const NOWHERE: &str = "http://127.0.0.1:1";

/// An engine that gives the same response to every request.
async fn start_engine(distribution: &str, version: &str, headers: &str) -> Proxy {
    let proxy = Proxy::start(([127, 0, 0, 1], 1).into()).await;
    let distribution =
        if distribution.is_empty() { String::new() } else { format!(r#""distribution":"{distribution}","#) };
    proxy.set(response(200, headers, &format!(r#"{{"version":{{{distribution}"number":"{version}"}}}}"#)));
    proxy
}

#[rstest]
#[case::opensearch("opensearch", "3.9.0", "", "application/json", "application/x-ndjson")]
#[case::elasticsearch_7(
    "",
    "7.17.28",
    "x-elastic-product: Elasticsearch\r\n",
    "application/json",
    "application/x-ndjson"
)]
#[case::elasticsearch_8(
    "",
    "8.19.2",
    "x-elastic-product: Elasticsearch\r\n",
    "application/vnd.elasticsearch+json;compatible-with=8",
    "application/vnd.elasticsearch+x-ndjson;compatible-with=8"
)]
#[case::elasticsearch_9(
    "",
    "9.1.0",
    "x-elastic-product: Elasticsearch\r\n",
    "application/vnd.elasticsearch+json;compatible-with=8",
    "application/vnd.elasticsearch+x-ndjson;compatible-with=8"
)]
#[tokio::test]
async fn requests_use_the_media_type_of_the_engine(
    #[case] distribution: &str,
    #[case] version: &str,
    #[case] headers: &str,
    #[case] json: &str,
    #[case] lines: &str,
) {
    let proxy = start_engine(distribution, version, headers).await;
    let client = Client::new(client_options(&[&proxy.url()])).await.unwrap();
    let bulk = Request::new(http::Method::POST, "/_bulk").lines("{}\n".repeat(2000));
    client.send(&bulk).await.unwrap();
    let requests = proxy.requests();
    assert!(requests[0].head.starts_with("get / ") && requests[0].head.contains("accept: application/json\r\n"));
    let head = &requests[1].head;
    assert!(head.contains(&format!("accept: {json}\r\n")) && head.contains(&format!("content-type: {lines}\r\n")));
    assert!(head.contains("content-encoding: gzip\r\n") && requests[1].body.len() < 500, "{head}");
}

#[tokio::test]
async fn an_unsupported_engine_is_named_with_the_supported_ones() {
    let proxy = start_engine("opensearch", "1.3.0", "").await;
    let client = Client::new(client_options(&[&proxy.url()])).await.unwrap();
    let error = client.detect().await.unwrap_err();
    assert!(error.to_string().contains("opensearch 1.3.0") && error.to_string().contains("OpenSearch 2.19"), "{error}");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn requests_fail_over_to_another_node() {
    let (first, second) =
        (start_engine("opensearch", "2.19.6", "").await, start_engine("opensearch", "2.19.6", "").await);
    let client = Client::new(client_options(&[&first.url(), NOWHERE, &second.url()])).await.unwrap();
    first.set(response(503, "", ""));
    for _ in 0..6 {
        client.detect().await.unwrap();
    }
    assert!(first.requests().len() <= 2, "a node that failed is not preferred: {}", first.requests().len());
    second.set(Fault::Refuse);
    let error = client.detect().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

#[rstest]
#[case::endless(Fault::Endless, "more than 4194304 bytes")]
#[case::bomb(bomb(), "more than 4194304 bytes")]
#[case::redirect(response(302, "location: http://127.0.0.1:1/\r\n", ""), "redirect (302)")]
#[case::silence(Fault::Silence, "did not respond within")]
#[tokio::test]
async fn invalid_responses_end_within_the_limits(#[case] fault: Fault, #[case] message: &str) {
    // For `Silence`, an engine behind the proxy has to respond.
    let upstream = start_engine("opensearch", "2.19.6", "").await;
    let proxy = Proxy::start(upstream.address).await;
    proxy.set(fault);
    let mut options = client_options(&[&proxy.url()]);
    options.request_timeout = Duration::from_secs(2);
    let error = Client::new(options).await.unwrap().detect().await.unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
}

/// 64 MiB of spaces, compressed.
fn bomb() -> Fault {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&vec![b' '; 64 << 20]).unwrap();
    let body = encoder.finish().unwrap();
    let mut bytes =
        format!("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend(body);
    Fault::Respond(bytes)
}

#[tokio::test]
async fn a_changed_password_is_used_without_a_restart() {
    let upstream = start_engine("opensearch", "2.19.6", "").await;
    let proxy = Proxy::start(upstream.address).await;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("username", "crow");
    write("password", "old-s3cret");
    let mut options = client_options(&[&proxy.url()]);
    options.credentials = CredentialSource::Folder(folder.path().to_owned());
    options.credentials_interval = Duration::from_secs(3600);
    let client = Client::new(options).await.unwrap();
    proxy.set(Fault::Authorization("Basic Y3JvdzpvbGQtczNjcmV0".to_owned()));
    client.detect().await.unwrap();

    // The engine's password changes first.
    proxy.set(Fault::Authorization("Basic Y3JvdzpuZXctczNjcmV0".to_owned()));
    let error = client.detect().await.unwrap_err();
    assert_eq!(error.status(), Some(401));
    write("password", "new-s3cret");
    client.detect().await.unwrap();
    let shown = format!("{client:?} {error:?} {}", error.chain());
    assert!(!shown.contains("s3cret") && !shown.contains("Y3Jvdzp"), "{shown}");

    // An incomplete change: the previous credentials stay in use.
    std::fs::remove_file(folder.path().join("username")).unwrap();
    client.detect().await.unwrap();
}

#[rstest]
#[case::api_key(Authorization::ApiKey(Secret::new("aWQ6a2V5")), "ApiKey aWQ6a2V5")]
#[case::bearer(Authorization::Bearer(Secret::new("abc")), "Bearer abc")]
#[tokio::test]
async fn other_credentials_are_sent(#[case] authorization: Authorization, #[case] header: &str) {
    let upstream = start_engine("opensearch", "2.19.6", "").await;
    let proxy = Proxy::start(upstream.address).await;
    proxy.set(Fault::Authorization(header.to_owned()));
    let mut options = client_options(&[&proxy.url()]);
    options.credentials = CredentialSource::Fixed(Credentials { authorization, ..Credentials::default() });
    Client::new(options).await.unwrap().detect().await.unwrap();
}

#[tokio::test]
async fn requests_go_through_a_proxy() {
    let proxy = start_engine("opensearch", "2.19.6", "").await;
    let mut options = client_options(&["http://engine.example:9200"]);
    options.proxy = ProxyChoice::Url(Secret::new(format!("http://user:s3cret@{}", proxy.address)));
    assert!(!format!("{options:?}").contains("s3cret"));
    Client::new(options).await.unwrap().detect().await.unwrap();
    let head = proxy.requests().remove(0).head;
    assert!(
        head.starts_with("get http://engine.example:9200/ ") && head.contains("proxy-authorization: basic"),
        "{head}"
    );
}

/// An authority with a server certificate, valid or expired, and a client certificate.
struct Authority {
    ca: String,
    client: (String, String),
    acceptor: TlsAcceptor,
}

fn authority(expired: bool) -> Authority {
    install_cryptography();
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = rcgen::Issuer::new(params, ca_key);
    let issue = |name: &str, expired: bool| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_after = if expired { rcgen::date_time_ymd(2020, 1, 1) } else { rcgen::date_time_ymd(2090, 1, 1) };
        params.not_before = rcgen::date_time_ymd(2019, 1, 1);
        (params.signed_by(&key, &issuer).unwrap(), key)
    };
    let (server, server_key) = issue("127.0.0.1", expired);
    let (client, client_key) = issue("crowsnest", false);
    let mut roots = RootCertStore::empty();
    roots.add(ca.der().clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
    let key = tokio_rustls::rustls::pki_types::PrivateKeyDer::try_from(server_key.serialize_der()).unwrap();
    let config = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![server.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    Authority { ca: ca.pem(), client: (client.pem(), client_key.serialize_pem()), acceptor }
}

async fn detect_over_tls(folder: &Path, authority: &Authority) -> Result<(), ClientError> {
    let upstream = start_engine("opensearch", "2.19.6", "").await;
    let proxy = Proxy::with_tls(upstream.address, Some(authority.acceptor.clone())).await;
    let mut options = client_options(&[&proxy.url().replace("http", "https")]);
    options.credentials = CredentialSource::Folder(folder.to_owned());
    Client::new(options).await?.detect().await.map(drop)
}

#[tokio::test]
async fn certificates_are_presented_and_checked() {
    let (good, expired) = (authority(false), authority(true));
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("ca.crt", &good.ca);
    let error = detect_over_tls(folder.path(), &good).await.unwrap_err();
    assert!(error.chain().contains("ertificate"), "the engine wants a client certificate: {}", error.chain());
    write("tls.crt", &good.client.0);
    write("tls.key", &good.client.1);
    detect_over_tls(folder.path(), &good).await.unwrap();

    let error = detect_over_tls(folder.path(), &expired).await.unwrap_err();
    assert!(error.chain().contains("certificate") && !error.is_retryable(), "another authority: {}", error.chain());
    write("ca.crt", &expired.ca);
    write("tls.crt", &expired.client.0);
    write("tls.key", &expired.client.1);
    let error = detect_over_tls(folder.path(), &expired).await.unwrap_err();
    assert!(error.chain().contains("expired") && !error.is_retryable(), "{}", error.chain());
}

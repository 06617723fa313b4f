//! Reads certificates: those that a server presents, and the client certificate of a kubeconfig.

use std::time::Duration;

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::client::ConfigExt;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Timeout for connecting to a server, including the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) type Chain = Vec<CertificateDer<'static>>;

/// The chain that a server presents for `name`; it is not verified.
pub(super) async fn fetch_chain(address: (&str, u16), name: &str) -> anyhow::Result<Chain> {
    let mut insecure_config = kube::Config::new(http::Uri::from_static("https://localhost"));
    insecure_config.accept_invalid_certs = true;
    let connector = TlsConnector::from(std::sync::Arc::new(insecure_config.rustls_client_config()?));
    let name = ServerName::try_from(name.to_owned())?;
    let handshake = async {
        let socket = TcpStream::connect(address).await?;
        connector.connect(name, socket).await
    };
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, handshake).await;
    let stream = stream.with_context(|| format!("no response within {} s", CONNECT_TIMEOUT.as_secs()))??;
    match stream.get_ref().1.peer_certificates() {
        Some(presented) if !presented.is_empty() => {
            Ok(presented.iter().map(|certificate| certificate.clone().into_owned()).collect())
        }
        _ => bail!("the server presented no certificate"),
    }
}

/// The client certificate of a kubeconfig; `None` if it uses other credentials.
pub(super) async fn client_certificate(config: &kube::Config) -> anyhow::Result<Option<Chain>> {
    const CONTEXT: &str = "cannot read the client certificate of the kubeconfig";
    let pem = match (&config.auth_info.client_certificate_data, &config.auth_info.client_certificate) {
        (Some(encoded), _) => STANDARD.decode(encoded).context(CONTEXT)?,
        (None, Some(file)) => tokio::fs::read(file).await.with_context(|| format!("{CONTEXT}: {file}"))?,
        (None, None) => return Ok(None),
    };
    parse_chain(&pem).context(CONTEXT).map(Some)
}

/// Parses PEM certificates.
pub(super) fn parse_chain(pem: &[u8]) -> anyhow::Result<Chain> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Chain, _>>()?;
    if found.is_empty() { bail!("the PEM has no certificate") } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apiserver::authn::{Authority, ServingCertificates};
    use crowsnest_process::serving::{Tls, serve};
    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn untrusted_chains_are_read() {
        let names = ["a.svc", "b.svc"];
        let authority = Authority::generate("untrusted").unwrap();
        let [first, second] = names.map(|name| authority.issue_serving_certificate(&[name.to_owned()]).unwrap());
        let serving = ServingCertificates::new(&first).unwrap();
        serving.replace_by_name(std::slice::from_ref(&second)).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(
            listener,
            Some(Tls::without_client_certificates(serving)),
            axum::Router::new(),
            stop.clone(),
        ));
        for (name, expected) in names.into_iter().zip([first, second]) {
            let chain = fetch_chain(("127.0.0.1", port), name).await.unwrap();
            assert_eq!(chain, parse_chain(expected.certificate.as_bytes()).unwrap(), "{name}");
        }
        stop.cancel();
        server.await.unwrap();
        assert!(fetch_chain(("127.0.0.1", port), names[0]).await.is_err());
    }

    #[tokio::test]
    async fn client_certificates_are_read_from_kubeconfigs() {
        let pem = Authority::generate("a").unwrap().credentials().certificate.clone();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tls.crt");
        std::fs::write(&file, &pem).unwrap();
        let mut config = kube::Config::new(http::Uri::from_static("https://cp"));
        assert_eq!(client_certificate(&config).await.unwrap(), None);
        config.auth_info.client_certificate = Some(file.display().to_string());
        let expected = Some(parse_chain(pem.as_bytes()).unwrap());
        assert_eq!(client_certificate(&config).await.unwrap(), expected);
        config.auth_info.client_certificate_data = Some(STANDARD.encode(&pem));
        config.auth_info.client_certificate = None;
        assert_eq!(client_certificate(&config).await.unwrap(), expected);
        config.auth_info.client_certificate_data = Some("%".to_owned());
        let error = client_certificate(&config).await.unwrap_err();
        assert!(error.to_string().contains("client certificate of the kubeconfig"), "{error:#}");
    }
}

//! A member cluster whose responses try to affect the origin that passes them on, and its registration.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::Fleet;
use http::HeaderMap;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Headers of each response that try to affect the origin.
pub const HOSTILE_HEADERS: [(&str, &str); 18] = [
    ("Set-Cookie", "crowsnest-session=planted; Path=/"),
    ("Clear-Site-Data", "\"*\""),
    ("Content-Security-Policy", "default-src *"),
    ("Strict-Transport-Security", "max-age=31536000"),
    ("Refresh", "0; url=https://evil.example/"),
    ("Location", "https://evil.example/"),
    ("Service-Worker-Allowed", "/"),
    ("Access-Control-Allow-Origin", "https://evil.example"),
    ("Access-Control-Allow-Credentials", "true"),
    ("Link", "<https://evil.example/a.css>; rel=stylesheet"),
    ("NEL", "{\"report_to\":\"a\"}"),
    ("Report-To", "{\"group\":\"a\"}"),
    ("WWW-Authenticate", "Basic realm=\"fleet\""),
    ("Alt-Svc", "h2=\"evil.example:443\""),
    ("SourceMap", "https://evil.example/a.map"),
    ("X-Frame-Options", "ALLOWALL"),
    ("X-Content-Type-Options", "none"),
    ("Cross-Origin-Resource-Policy", "cross-origin"),
];
pub const DOCUMENT: &str = "<script>document.title='run'</script>";

/// Starts the member's server, which runs until the process ends; returns the port.
async fn start_server() -> Result<u16> {
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()])?.self_signed(&key)?;
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.into()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())?;
    let (acceptor, listener) = (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await?);
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            // Errors of a connection are ignored.
            tokio::spawn(async move { handle(acceptor.accept(stream).await?).await });
        }
    });
    Ok(port)
}

/// Responds to one request; reads only its head.
async fn handle(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let hostile: String = HOSTILE_HEADERS.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let text = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let response = match text.contains("upgrade: websocket") {
        true => {
            format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{hostile}\r\n")
        }
        false => format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nETag: \"kept\"\r\nContent-Length: {}\r\nConnection: close\r\n\
            {hostile}\r\n{DOCUMENT}",
            DOCUMENT.len()
        ),
    };
    stream.write_all(response.as_bytes()).await?;
    stream.flush().await?;
    // The client closes the connection.
    stream.read_u8().await.map(drop)
}

async fn client(fleet: &Fleet) -> Result<kube::Client> {
    let kubeconfig = Kubeconfig::read_from(fleet.kubeconfig("cp"))?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(kube::Client::try_from(config)?)
}

async fn create(client: &kube::Client, path: &str, object: &Value) -> Result<()> {
    let request =
        http::Request::post(path).header("content-type", "application/json").body(serde_json::to_vec(object)?)?;
    match client.request::<Value>(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(error).with_context(|| path.to_owned()),
    }
}

/// Registers the member as `karmadactl join` does.
pub async fn join(fleet: &Fleet) -> Result<()> {
    let (port, client) = (start_server().await?, client(fleet).await?);
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "karmada-cluster"}});
    create(&client, "/api/v1/namespaces", &namespace).await?;
    for name in ["hostile", "hostile-impersonator"] {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "karmada-cluster"},
            "stringData": {"token": "a-token-of-the-member"}});
        create(&client, "/api/v1/namespaces/karmada-cluster/secrets", &secret).await?;
    }
    let reference = |name: &str| json!({"namespace": "karmada-cluster", "name": name});
    let cluster = json!({
        "apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster", "metadata": {"name": "hostile"},
        "spec": {
            "syncMode": "Push", "apiEndpoint": format!("https://127.0.0.1:{port}"), "insecureSkipTLSVerification": true,
            "secretRef": reference("hostile"), "impersonatorSecretRef": reference("hostile-impersonator"),
        },
    });
    create(&client, "/apis/cluster.karmada.io/v1alpha1/clusters", &cluster).await
}

/// An object of the control plane.
pub async fn get(fleet: &Fleet, path: &str) -> Result<Value> {
    Ok(client(fleet).await?.request(http::Request::get(path).body(Vec::new())?).await?)
}

/// The headers of a response through the control plane's aggregation layer.
pub async fn get_headers(fleet: &Fleet, path: &str) -> Result<HeaderMap> {
    let request = http::Request::get(path).body(kube::client::Body::empty())?;
    let response = client(fleet).await?.send(request).await?;
    ensure!(response.status() == 200, "{response:?}");
    Ok(response.headers().clone())
}

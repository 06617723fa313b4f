//! Calls to a server that requests a client certificate.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::authn::{Authority, ServingCertificates};

/// Resolver for tests that use URLs only.
struct NoServices;

impl ServiceResolver for NoServices {
    fn resolve(&self, _: &str, name: &str, _: u16) -> Result<Endpoint, ResolveError> {
        Err(ResolveError::NotFound(name.to_owned()))
    }
}

/// Reports the client certificate of each connection, and responds to one request with an empty body.
async fn serve(listener: TcpListener, acceptor: TlsAcceptor, seen: mpsc::Sender<Vec<u8>>) {
    while let Ok((socket, _)) = listener.accept().await {
        let mut stream = acceptor.accept(socket).await.unwrap();
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        seen.send(certificates.first().map(|first| first.to_vec()).unwrap_or_default()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
    }
}

/// Responds to the first request on each connection, and closes the connection on the second one; reports each
/// response.
async fn serve_one_request_per_connection(listener: TcpListener, responses: mpsc::Sender<()>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let responses = responses.clone();
        tokio::spawn(async move {
            for responds in [true, false] {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await?);
                }
                if responds {
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await?;
                    // The receiver may be closed at the end of the test.
                    let _ = responses.send(()).await;
                }
            }
            std::io::Result::Ok(())
        });
    }
}

#[tokio::test]
async fn idempotent_requests_are_retried_when_a_pooled_connection_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = ServerAddress::Url(format!("http://{}", listener.local_addr().unwrap()));
    let target = Target { address, ca_bundle: Vec::new(), insecure: false };
    let (sender, mut responses) = mpsc::channel(16);
    let server = tokio::spawn(serve_one_request_per_connection(listener, sender));
    let outbound = OutboundClients::new(Arc::new(NoServices), None);
    let request = async |method: http::Method, body: Body| {
        let request = http::Request::builder().method(method).uri("/").body(body).unwrap();
        outbound.send(&target, request, false).await.map(|response| response.status().as_u16())
    };
    // The second request uses a pooled connection that the server closes.
    for _ in 0..3 {
        assert_eq!(request(http::Method::GET, Body::empty()).await.unwrap(), 200);
        responses.recv().await.unwrap();
    }
    // The result of a write is unknown, so it is not retried.
    let error = request(http::Method::POST, Body::from("{}")).await.unwrap_err().to_string();
    assert!(error.starts_with("Post ") && error.contains("connection"), "{error}");
    assert_eq!(request(http::Method::POST, Body::from("{}")).await.unwrap(), 200);
    server.abort();
}

fn identity(authority: &Authority) -> Identity {
    let credentials = authority.issue_client_certificate("front-proxy-client", &[]).unwrap();
    Identity { certificate: credentials.certificate.into_bytes(), key: credentials.key.into_bytes() }
}

fn presented_certificate(identity: &Identity) -> Vec<u8> {
    use rustls_pki_types::pem::PemObject;
    rustls_pki_types::CertificateDer::from_pem_slice(&identity.certificate).unwrap().to_vec()
}

#[tokio::test]
async fn renewed_client_certificates_are_presented() {
    let authority = Authority::generate("cp").unwrap();
    let serving =
        ServingCertificates::new(&authority.issue_serving_certificate(&["127.0.0.1".to_owned()]).unwrap()).unwrap();
    let acceptor = TlsAcceptor::from(authority.tls(serving).unwrap().config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = ServerAddress::Url(format!("https://{}", listener.local_addr().unwrap()));
    let target = Target { address, ca_bundle: authority.certificate().as_bytes().to_vec(), insecure: false };
    let (seen, mut certificates) = mpsc::channel(4);
    let server = tokio::spawn(serve(listener, acceptor, seen));

    let (first, second) = (identity(&authority), identity(&authority));
    let outbound = OutboundClients::new(Arc::new(NoServices), Some(first.clone()));
    let request = async |with_identity| {
        let request = http::Request::builder().uri("/").body(Body::empty()).unwrap();
        outbound.send(&target, request, with_identity).await.unwrap().status().as_u16()
    };
    assert_eq!(request(true).await, 200);
    assert_eq!(certificates.recv().await.unwrap(), presented_certificate(&first));
    outbound.set_front_proxy_identity(second.clone());
    assert_eq!(request(true).await, 200);
    assert_eq!(certificates.recv().await.unwrap(), presented_certificate(&second));
    assert_eq!(request(false).await, 200);
    assert_eq!(certificates.recv().await.unwrap(), Vec::<u8>::new(), "no client certificate is presented to webhooks");
    server.abort();
}

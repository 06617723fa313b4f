//! What listens on a simulated container's ports: an HTTP/1.1 server that says which pod it is.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;

use super::pods::Endpoint;

/// The page of one port: pod, container, node and the request's first line.
pub fn answer<B>(endpoint: &Endpoint, request: &Request<B>) -> Response<Full<Bytes>> {
    let Endpoint { namespace, pod, node, ip, container, image, port } = endpoint;
    let text = format!(
        "Hello from pod {namespace}/{pod} on node {node}\ncontainer: {container} ({image})\naddress: {ip}:{port}\nrequest: {} {}\n",
        request.method(),
        request.uri(),
    );
    let mut response = Response::new(Full::new(Bytes::from(text)));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Serves HTTP on the inner end of a connection to the port, until either side closes it.
pub async fn serve(endpoint: Endpoint, io: DuplexStream) {
    let endpoint = Arc::new(endpoint);
    let service = service_fn(move |request: Request<Incoming>| {
        let endpoint = endpoint.clone();
        async move { Ok::<_, Infallible>(answer(&endpoint, &request)) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    if let Err(error) = server.half_close(true).serve_connection(TokioIo::new(io), service).await {
        tracing::debug!(%error, "forwarded connection ended");
    }
}

//! HTTP/1.1 server on the ports of simulated containers. Its responses identify the pod.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;

use super::filesystem::FileSystem;
use super::image::{SimulatedServer, document_root};
use super::pods::Endpoint;
use super::probes::served_file;

/// The server of one port.
pub struct Server {
    pub endpoint: Endpoint,
    /// File system of the container, for web servers.
    pub fs: Option<Arc<FileSystem>>,
}

/// Returns the content of the default page of web servers.
pub fn default_page(namespace: &str, pod: &str) -> String {
    format!("Hello from pod {namespace}/{pod}\n")
}

impl Server {
    /// Responds with a page that shows pod, container, node and the request line, or with a file of a web server.
    pub fn respond<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let Endpoint { namespace, pod, node, ip, container, image, port, .. } = &self.endpoint;
        let path = request.uri().path();
        if self.endpoint.server == SimulatedServer::ServeHostname
            || (self.endpoint.server == SimulatedServer::Netexec && path == "/hostname")
        {
            return plain_text(StatusCode::OK, self.endpoint.hostname.clone());
        }
        match self.read_file(path) {
            Some(None) => return plain_text(StatusCode::NOT_FOUND, "404 Not Found\n"),
            Some(Some(content)) if content != default_page(namespace, pod).as_bytes() => {
                return plain_text(StatusCode::OK, content);
            }
            _ => {}
        }
        let text = format!(
            "Hello from pod {namespace}/{pod} on node {node}\ncontainer: {container} ({image})\naddress: {ip}:{port}\nrequest: {} {}\n",
            request.method(),
            request.uri(),
        );
        plain_text(StatusCode::OK, text)
    }

    /// Returns the content of the file for a path. The inner value is `None` if the file was removed.
    fn read_file(&self, path: &str) -> Option<Option<Bytes>> {
        let file = served_file(document_root(&self.endpoint.image)?, path)?;
        Some(self.fs.as_ref()?.read(&file).ok())
    }
}

fn plain_text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Serves HTTP on the container's end of a connection until either side closes it.
pub async fn serve(server: Server, io: DuplexStream) {
    let server = Arc::new(server);
    let service = service_fn(move |request: Request<Incoming>| {
        let server = server.clone();
        async move { Ok::<_, Infallible>(server.respond(&request)) }
    });
    let mut connection = hyper::server::conn::http1::Builder::new();
    if let Err(error) = connection.half_close(true).serve_connection(TokioIo::new(io), service).await {
        tracing::debug!(%error, "a connection to a simulated container failed");
    }
}

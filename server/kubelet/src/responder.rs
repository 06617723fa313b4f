//! What listens on a simulated container's ports: an HTTP/1.1 server that says which pod it is.

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
use super::image::{Service, document_root};
use super::pods::Endpoint;
use super::probes::file_of;

/// A server on one port.
pub struct Server {
    pub endpoint: Endpoint,
    /// Files of the container, for web servers.
    pub fs: Option<Arc<FileSystem>>,
}

/// The page that a web server's image brings along.
pub fn default_page(namespace: &str, pod: &str) -> String {
    format!("Hello from pod {namespace}/{pod}\n")
}

impl Server {
    /// The page of one port: pod, container, node and the request's first line; or what the container's files say.
    pub fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let Endpoint { namespace, pod, node, ip, container, image, port, .. } = &self.endpoint;
        let path = request.uri().path();
        if self.endpoint.service == Service::Hostname
            || (self.endpoint.service == Service::Tester && path == "/hostname")
        {
            return plain(StatusCode::OK, self.endpoint.hostname.clone());
        }
        match self.file(path) {
            Some(None) => return plain(StatusCode::NOT_FOUND, "404 Not Found\n"),
            Some(Some(content)) if content != default_page(namespace, pod).as_bytes() => {
                return plain(StatusCode::OK, content);
            }
            _ => {}
        }
        let text = format!(
            "Hello from pod {namespace}/{pod} on node {node}\ncontainer: {container} ({image})\naddress: {ip}:{port}\nrequest: {} {}\n",
            request.method(),
            request.uri(),
        );
        plain(StatusCode::OK, text)
    }

    /// Content of the file behind a path, `None` inside when it was removed.
    fn file(&self, path: &str) -> Option<Option<Bytes>> {
        let file = file_of(document_root(&self.endpoint.image)?, path)?;
        Some(self.fs.as_ref()?.read(&file).ok())
    }
}

fn plain(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Serves HTTP on the inner end of a connection to the port, until either side closes it.
pub async fn serve(server: Server, io: DuplexStream) {
    let server = Arc::new(server);
    let service = service_fn(move |request: Request<Incoming>| {
        let server = server.clone();
        async move { Ok::<_, Infallible>(server.answer(&request)) }
    });
    let mut connection = hyper::server::conn::http1::Builder::new();
    if let Err(error) = connection.half_close(true).serve_connection(TokioIo::new(io), service).await {
        tracing::debug!(%error, "forwarded connection ended");
    }
}

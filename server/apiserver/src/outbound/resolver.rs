//! Resolves Services to endpoints.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use crowsnest_apimachinery::names::NamespacedName;
use parking_lot::RwLock;

/// A server in this process that is reachable as a Service. Upgrade requests carry the client's connection
/// (`hyper::upgrade::on`), which a 101 response takes over.
#[async_trait]
pub trait InProcessServer: Send + Sync {
    async fn serve(&self, request: http::Request<Body>) -> http::Response<Body>;
}

/// Target of a Service port.
#[derive(Clone)]
pub enum Endpoint {
    Address { host: String, port: u16 },
    InProcess(Arc<dyn InProcessServer>),
}

/// Reason why a Service cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    #[error("service \"{0}\" not found")]
    NotFound(String),
    #[error("no service port {port} found for service \"{name}\"")]
    NoPort { name: String, port: u16 },
    /// The Service has no EndpointSlice.
    #[error("no endpoints available for service \"{0}\"")]
    NoSlices(String),
    #[error("no endpoints available for service \"{name}\"")]
    NoEndpoints { name: String, port_name: String },
}

/// Resolves a Service port to an endpoint.
pub trait ServiceResolver: Send + Sync {
    fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<Endpoint, ResolveError>;
}

/// Registry of Services that are served by this process.
#[derive(Default)]
pub struct InProcessServices {
    services: RwLock<HashMap<NamespacedName, Arc<dyn InProcessServer>>>,
}

impl InProcessServices {
    /// Registers a server under the name of a Service, and replaces a previous one.
    pub fn mount(&self, namespace: &str, name: &str, service: Arc<dyn InProcessServer>) {
        self.services.write().insert(NamespacedName::new(namespace, name), service);
    }

    /// The server registered under this name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<dyn InProcessServer>> {
        self.services.read().get(&NamespacedName::new(namespace, name)).cloned()
    }
}

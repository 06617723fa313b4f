//! Connects a member's API server to its kubelet: pods are read from the registry, and pod subresources are served
//! by the kubelet.

use std::sync::Arc;

use async_trait::async_trait;
use axum::body::Body;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::options::ListOptions;
use crowsnest_apimachinery::status::{ApiError, ApiResult, Reason};
use crowsnest_registry::Registry;
use crowsnest_registry::connect::{Connect, ConnectRequest};
use http::{Response, StatusCode, Uri, header};
use jiff::Timestamp;
use serde_json::Value;

use super::pods::{PodRef, PodRuntime};
use super::{Kubelet, Subresource};

/// A [`PodRuntime`] that reads objects from the registry of the API server in this process.
pub struct RegistryRuntime(Arc<Registry>);

impl RegistryRuntime {
    pub fn new(registry: Arc<Registry>) -> Self {
        Self(registry)
    }
}

#[async_trait]
impl PodRuntime for RegistryRuntime {
    async fn get(&self, resource: &str, namespace: &str, name: &str) -> ApiResult<Option<Arc<Value>>> {
        let resource = self.0.resource(&Gvr::new("", "v1", resource))?;
        match self.0.get(&resource, namespace, name).await {
            Ok(object) => Ok(Some(Arc::new(object))),
            Err(error) if error.is(Reason::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list_pods(&self, namespace: &str) -> ApiResult<Vec<Arc<Value>>> {
        let pods = self.0.resource(&Gvr::new("", "v1", "pods"))?;
        let list = self.0.list(&pods, namespace, &ListOptions::default()).await?;
        Ok(list.objects.into_iter().map(Arc::new).collect())
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Serves the streaming subresources of pods and services in `registry` with `kubelet`.
pub fn install(registry: &Registry, kubelet: &Arc<Kubelet>) {
    let backend: Arc<dyn Connect> = Arc::new(PodBackend(kubelet.clone()));
    for subresource in ["log", "exec", "attach", "portforward", "proxy"] {
        registry.register_connect("", "pods", subresource, backend.clone());
    }
    registry.register_connect("", "services", "proxy", Arc::new(ServiceBackend(kubelet.clone())));
}

struct PodBackend(Arc<Kubelet>);
struct ServiceBackend(Arc<Kubelet>);

#[async_trait]
impl Connect for PodBackend {
    async fn connect(&self, request: ConnectRequest) -> Response<Body> {
        let subresource = match request.subresource.as_str() {
            "log" => Subresource::Log,
            "exec" => Subresource::Exec,
            "attach" => Subresource::Attach,
            "portforward" => Subresource::PortForward,
            _ => {
                let ConnectRequest { namespace, name, .. } = &request;
                let (namespace, name) = (namespace.clone(), name.clone());
                return match pod_request(request) {
                    Ok(pod_request) => into_response(self.0.proxy_pod(&namespace, &name, pod_request).await),
                    Err(error) => error_response(&error),
                };
            }
        };
        let pod = PodRef { namespace: request.namespace, name: request.name };
        into_response(self.0.connect(&pod, subresource, request.request).await)
    }
}

#[async_trait]
impl Connect for ServiceBackend {
    async fn connect(&self, request: ConnectRequest) -> Response<Body> {
        let (namespace, name) = (request.namespace.clone(), request.name.clone());
        match pod_request(request) {
            Ok(pod_request) => into_response(self.0.proxy_service(&namespace, &name, pod_request).await),
            Err(error) => error_response(&error),
        }
    }
}

/// Returns the request that the pod receives: with the path after `proxy`, and the query.
fn pod_request(request: ConnectRequest) -> ApiResult<http::Request<Body>> {
    let ConnectRequest { rest, mut request, .. } = request;
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let uri: Uri = format!("/{rest}{query}").parse().map_err(|error| ApiError::bad_request(format!("{error}")))?;
    *request.uri_mut() = uri;
    Ok(request)
}

fn into_response(result: ApiResult<Response<Body>>) -> Response<Body> {
    result.unwrap_or_else(|error| error_response(&error))
}

fn error_response(error: &ApiError) -> Response<Body> {
    let mut response = Response::new(Body::from(error.to_status().to_string()));
    *response.status_mut() = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

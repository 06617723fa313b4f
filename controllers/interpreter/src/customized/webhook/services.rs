//! Resolves the addresses of webhooks that are specified by a reference to a Service.

use async_trait::async_trait;
use crowsnest_apimachinery::unstructured;
use serde_json::Value;

/// Lookup error of the Service store.
pub type LookupError = Box<dyn std::error::Error + Send + Sync>;

/// Access to the control plane's Services.
#[async_trait]
pub trait Services: Send + Sync {
    async fn find(&self, namespace: &str, name: &str) -> Result<Option<Value>, LookupError>;
}

/// A store without Services, so that names are resolved by DNS.
pub(super) struct NoServices;

#[async_trait]
impl Services for NoServices {
    async fn find(&self, _namespace: &str, _name: &str) -> Result<Option<Value>, LookupError> {
        Ok(None)
    }
}

/// Reason why a Service cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("cannot route to service with ClusterIP \"None\"")]
    Headless,
    #[error("no service port {port} found for service {name:?}")]
    NoPort { name: String, port: u16 },
    #[error("unsupported service type {0:?}")]
    Type(String),
    #[error("{0}")]
    Lookup(#[source] LookupError),
}

/// Reference to a webhook's Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceReference {
    pub namespace: String,
    pub name: String,
    pub port: u16,
}

impl ServiceReference {
    /// DNS name of the Service, which the certificate must contain.
    pub fn server_name(&self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }

    /// Host and port to connect to: the cluster IP or external name of the Service. Services that do not exist are
    /// resolved by DNS.
    pub fn endpoint(&self, service: Option<&Value>) -> Result<(String, u16), ServiceError> {
        let Some(service) = service else { return Ok((self.server_name(), self.port)) };
        let text = |field| unstructured::text(service, &["spec", field]);
        match text("type") {
            "ClusterIP" | "" if text("clusterIP") == "None" => Err(ServiceError::Headless),
            "ClusterIP" | "LoadBalancer" | "NodePort" | "" => {
                let ports =
                    unstructured::at(service, &["spec", "ports"]).and_then(Value::as_array).into_iter().flatten();
                let has_port =
                    ports.filter_map(|port| unstructured::integer(port, &["port"])).any(|p| p == i64::from(self.port));
                match has_port {
                    true => Ok((text("clusterIP").to_owned(), self.port)),
                    false => Err(ServiceError::NoPort { name: self.name.clone(), port: self.port }),
                }
            }
            "ExternalName" => Ok((text("externalName").to_owned(), self.port)),
            other => Err(ServiceError::Type(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case::unknown(Value::Null, Ok("hooks.ns.svc"))]
    #[case::address(json!({"type": "ClusterIP", "clusterIP": "10.0.0.7", "ports": [{"port": 80}, {"port": 443}]}), Ok("10.0.0.7"))]
    #[case::node_port(json!({"type": "NodePort", "clusterIP": "10.0.0.7", "ports": [{"port": 443}]}), Ok("10.0.0.7"))]
    #[case::external_name(json!({"type": "ExternalName", "externalName": "hooks.example.com"}), Ok("hooks.example.com"))]
    #[case::headless(
        json!({"type": "ClusterIP", "clusterIP": "None", "ports": [{"port": 443}]}),
        Err("cannot route to service with ClusterIP \"None\"")
    )]
    #[case::another_port(
        json!({"type": "ClusterIP", "clusterIP": "10.0.0.7", "ports": [{"port": 80}]}),
        Err("no service port 443 found for service \"hooks\"")
    )]
    #[case::unsupported_type(json!({"type": "Carrier"}), Err("unsupported service type \"Carrier\""))]
    fn endpoint_of_a_service(#[case] spec: Value, #[case] expected: Result<&str, &str>) {
        let reference = ServiceReference { namespace: "ns".to_owned(), name: "hooks".to_owned(), port: 443 };
        let service = (!spec.is_null()).then(|| json!({"spec": spec}));
        let found = reference.endpoint(service.as_ref()).map_err(|error| error.to_string());
        assert_eq!(found, expected.map(|host| (host.to_owned(), 443)).map_err(str::to_owned));
    }
}

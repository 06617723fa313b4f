//! Resolves a port of a pod: by number, by container port name, or by a Service's port number or name. Has no side effects.

use anyhow::{Context, anyhow};
use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use serde::Deserialize;
use serde_json::Value;

/// Meaning of the port numbers and names of a workload.
#[derive(Debug, Clone)]
pub(crate) enum PortMap {
    /// They are ports of the pod's containers.
    ContainerPorts,
    /// They are ports of the Service with this name.
    ServicePorts(String, Vec<ServicePort>),
}

impl PortMap {
    pub(super) fn from_service(service: &Value) -> anyhow::Result<Self> {
        let service = Service::deserialize(service).context("cannot read the service's ports")?;
        let name = service.name_any();
        Ok(Self::ServicePorts(name, service.spec.and_then(|spec| spec.ports).unwrap_or_default()))
    }

    /// The container port that a number or a name refers to.
    pub(crate) fn resolve(&self, requested: &str, pod: &Pod) -> anyhow::Result<u16> {
        let number = requested.parse::<u16>().ok();
        match self {
            Self::ContainerPorts => {
                number.or_else(|| find_named_port(pod, requested)).ok_or_else(|| unknown_port_error(pod, requested))
            }
            Self::ServicePorts(service, ports) => {
                let is_requested = |port: &&ServicePort| {
                    port.name.as_deref() == Some(requested)
                        || number.is_some_and(|number| i32::from(number) == port.port)
                };
                let port = ports.iter().find(is_requested).ok_or_else(|| {
                    let available: Vec<String> = ports.iter().map(|port| port.port.to_string()).collect();
                    anyhow!("service {service} has no port {requested}; it has {}", available.join(", "))
                })?;
                match &port.target_port {
                    None => u16::try_from(port.port).map_err(|_| unknown_port_error(pod, requested)),
                    Some(IntOrString::Int(target)) => {
                        u16::try_from(*target).map_err(|_| unknown_port_error(pod, requested))
                    }
                    Some(IntOrString::String(target)) => {
                        let target_number = target.parse().ok().or_else(|| find_named_port(pod, target));
                        target_number.ok_or_else(|| unknown_port_error(pod, target))
                    }
                }
            }
        }
    }
}

fn find_named_port(pod: &Pod, name: &str) -> Option<u16> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(name))?;
    u16::try_from(port.container_port).ok()
}

fn unknown_port_error(pod: &Pod, requested: &str) -> anyhow::Error {
    anyhow!("pod {} has no port {requested:?}", pod.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[rstest::rstest]
    #[case::of_a_pod(None, "8080", Ok(8080))]
    #[case::by_its_name(None, "http", Ok(80))]
    #[case::no_such_name(None, "https", Err("pod web-0 has no port \"https\""))]
    #[case::service(Some(json!({"port": 1080, "targetPort": 80})), "1080", Ok(80))]
    #[case::service_by_name(Some(json!({"name": "web", "port": 1080, "targetPort": "http"})), "web", Ok(80))]
    #[case::same(Some(json!({"port": 81})), "81", Ok(81))]
    #[case::no_such_target(Some(json!({"port": 81, "targetPort": "x"})), "81", Err("has no port \"x\""))]
    #[case::none_of_the_service(Some(json!({"port": 81})), "80", Err("service web has no port 80; it has 81"))]
    fn ports_are_resolved(
        #[case] service: Option<Value>,
        #[case] requested: &str,
        #[case] expected: Result<u16, &str>,
    ) {
        let pod = json!({"metadata": {"name": "web-0"},
            "spec": {"containers": [{"name": "web", "ports": [{"name": "http", "containerPort": 80}]}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let ports = match service {
            None => PortMap::ContainerPorts,
            Some(port) => {
                PortMap::from_service(&json!({"metadata": {"name": "web"}, "spec": {"ports": [port]}})).unwrap()
            }
        };
        match (ports.resolve(requested, &pod), expected) {
            (Ok(port), Ok(expected)) => assert_eq!(port, expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (port, _) => panic!("{requested}: {port:?}"),
        }
    }
}

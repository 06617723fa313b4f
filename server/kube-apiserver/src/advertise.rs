//! The Service `kubernetes` in `default` with its EndpointSlice and Endpoints, through which pods reach the API
//! server.
//!
//! The server writes them when it listens. Endpoints cannot contain loopback addresses, so the Service of a server that
//! listens on one has no endpoints.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::{ApiResult, Reason};
use crowsnest_registry::authz::bootstrap::{loopback, loopback_options};
use crowsnest_registry::{Change, Edit, Registry};
use serde_json::{Value, json};

const NAME: &str = "kubernetes";
const NAMESPACE: &str = "default";
/// Cluster IP of the Service: the first address of the range.
const CLUSTER_IP: &str = "10.96.0.1";

/// Creates or updates the three objects for a server that listens on `address`.
pub async fn write(registry: &Arc<Registry>, address: SocketAddr) -> ApiResult<()> {
    let edits: [(Gvr, Value, fn(&mut Value, &Value)); 3] = [
        (Gvr::new("", "v1", "services"), service(address), |live, desired| {
            live["spec"]["ports"] = desired["spec"]["ports"].clone();
        }),
        (Gvr::new("", "v1", "endpoints"), endpoints(address), |live, desired| {
            live["subsets"] = desired["subsets"].clone();
        }),
        (Gvr::new("discovery.k8s.io", "v1", "endpointslices"), endpoint_slice(address), |live, desired| {
            live["endpoints"] = desired["endpoints"].clone();
            live["ports"] = desired["ports"].clone();
        }),
    ];
    for (gvr, desired, edit) in edits {
        let Some(resource) = registry.catalog.get(&gvr) else { continue };
        let (ctx, options, mut warnings) = (loopback(NAMESPACE), loopback_options(), Vec::new());
        // Creating the Service again would fail because its cluster IP is taken, not with AlreadyExists.
        match registry.get(&resource, NAMESPACE, NAME).await {
            Ok(_) => {}
            Err(error) if error.is(Reason::NotFound) => {
                registry.create(&resource, &ctx, desired, &options, &mut warnings).await?;
                continue;
            }
            Err(error) => return Err(error),
        }
        let edit = Edit(Arc::new(move |live: &mut Value| {
            edit(live, &desired);
            Ok(())
        }));
        registry.update(&resource, &ctx, NAME, &Change::Edit(edit), &options, &mut warnings).await?;
    }
    Ok(())
}

/// The IP address, if endpoints can contain it.
fn endpoint_ip(address: SocketAddr) -> Option<String> {
    let link_local = match address.ip() {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let ip = address.ip();
    (!ip.is_loopback() && !ip.is_unspecified() && !ip.is_multicast() && !link_local).then(|| ip.to_string())
}

fn service(address: SocketAddr) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "type": "ClusterIP", "clusterIP": CLUSTER_IP, "clusterIPs": [CLUSTER_IP], "sessionAffinity": "None",
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "internalTrafficPolicy": "Cluster",
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": address.port()}],
        },
    })
}

fn endpoints(address: SocketAddr) -> Value {
    let subsets = endpoint_ip(address).map(|ip| {
        json!([{"addresses": [{"ip": ip}], "ports": [{"name": "https", "port": address.port(), "protocol": "TCP"}]}])
    });
    json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": subsets.unwrap_or_else(|| json!([])),
    })
}

fn endpoint_slice(address: SocketAddr) -> Value {
    let endpoints = endpoint_ip(address).map(|ip| json!([{"addresses": [ip], "conditions": {"ready": true}}]));
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": if address.is_ipv6() { "IPv6" } else { "IPv4" },
        "endpoints": endpoints.unwrap_or_else(|| json!([])),
        "ports": [{"name": "https", "port": address.port(), "protocol": "TCP"}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ApiServer, Config, Data};

    #[tokio::test]
    async fn endpoints_follow_the_listen_address() {
        let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
        let registry = server.registry();
        let get = async |group: &str, resource: &str| {
            let resource = registry.resource(&Gvr::new(group, "v1", resource)).unwrap();
            registry.get(&resource, NAMESPACE, NAME).await.unwrap()
        };
        // Listen address, addresses of the slice, addresses of the Endpoints.
        for (address, in_slice, in_endpoints) in [
            ("192.0.2.7:6443", json!(["192.0.2.7"]), json!([{"ip": "192.0.2.7"}])),
            ("192.0.2.8:7443", json!(["192.0.2.8"]), json!([{"ip": "192.0.2.8"}])),
            ("127.0.0.1:7443", Value::Null, Value::Null),
            ("0.0.0.0:7443", Value::Null, Value::Null),
        ] {
            let address: SocketAddr = address.parse().unwrap();
            write(registry, address).await.unwrap();
            let service = get("", "services").await;
            assert_eq!(service["spec"]["clusterIP"], CLUSTER_IP);
            assert_eq!(service["spec"]["ports"][0]["targetPort"], address.port());
            let slice = get("discovery.k8s.io", "endpointslices").await;
            assert_eq!(slice["endpoints"][0]["addresses"], in_slice, "{address}");
            assert_eq!(slice["ports"][0]["port"], address.port());
            assert_eq!(get("", "endpoints").await["subsets"][0]["addresses"], in_endpoints, "{address}");
        }
        server.stop().await.unwrap();
    }
}

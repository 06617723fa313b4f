//! Columns of services, endpoints, ingresses and other networking kinds.

use std::borrow::Borrow;

use serde_json::Value;

use super::ColumnDescription::{Field, Text};
use super::fields::{self, NONE, int, list, text};
use super::{AGE, Column, KindPrinter, NAME};
use crate::printers::Cell;

const NETWORKING: &str = "networking.k8s.io";

pub(super) const KINDS: &[KindPrinter] = &[
    KindPrinter::new(
        "",
        "Service",
        &[
            NAME,
            Column::text("Type", Field("api.core.v1.ServiceSpec", "type")),
            Column::text("Cluster-IP", Field("api.core.v1.ServiceSpec", "clusterIP")),
            Column::text("External-IP", Field("api.core.v1.ServiceSpec", "externalIPs")),
            Column::text("Port(s)", Field("api.core.v1.ServiceSpec", "ports")),
            AGE,
            Column::text("Selector", Field("api.core.v1.ServiceSpec", "selector")).wide(),
        ],
        service,
    ),
    KindPrinter::new(
        "",
        "Endpoints",
        &[NAME, Column::text("Endpoints", Field("api.core.v1.Endpoints", "subsets")), AGE],
        |o| vec![fields::name(o), Cell::from(endpoints(o)), fields::age(o)],
    ),
    KindPrinter::new(
        "discovery.k8s.io",
        "EndpointSlice",
        &[
            NAME,
            Column::text("AddressType", Field("api.discovery.v1.EndpointSlice", "addressType")),
            Column::text("Ports", Field("api.discovery.v1.EndpointSlice", "ports")),
            Column::text("Endpoints", Field("api.discovery.v1.EndpointSlice", "endpoints")),
            AGE,
        ],
        |o| {
            vec![
                fields::name(o),
                Cell::from(text(o, "/addressType")),
                Cell::from(slice_ports(o)),
                Cell::from(slice_endpoints(o)),
                fields::age(o),
            ]
        },
    ),
    KindPrinter::new(
        NETWORKING,
        "Ingress",
        &[
            NAME,
            Column::text(
                "Class",
                Text("The name of the IngressClass resource that should be used for additional configuration"),
            ),
            Column::text("Hosts", Text("Hosts that incoming requests are matched against before the ingress rule")),
            Column::text("Address", Text("Address is a list containing ingress points for the load-balancer")),
            Column::text("Ports", Text("Ports of TLS configurations that open")),
            AGE,
        ],
        |o| {
            let ports = if list(o, "/spec/tls").is_empty() { "80" } else { "80, 443" };
            vec![
                fields::name(o),
                fields::text_or(o, "/spec/ingressClassName", NONE),
                Cell::from(hosts(o)),
                Cell::from(load_balancer_addresses(o).join(",")),
                Cell::from(ports),
                fields::age(o),
            ]
        },
    ),
    KindPrinter::new(
        NETWORKING,
        "IngressClass",
        &[
            NAME,
            Column::text("Controller", Text("Controller that is responsible for handling this class")),
            Column::text("Parameters", Text("A reference to a resource with additional parameters")),
            AGE,
        ],
        |o| {
            let parameters = o.pointer("/spec/parameters").map_or(NONE.to_owned(), |p| {
                let (group, kind) = (text(p, "/apiGroup"), text(p, "/kind"));
                let kind = if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") };
                format!("{kind}/{}", text(p, "/name"))
            });
            vec![fields::name(o), Cell::from(text(o, "/spec/controller")), Cell::from(parameters), fields::age(o)]
        },
    ),
    KindPrinter::new(
        NETWORKING,
        "NetworkPolicy",
        &[NAME, Column::text("Pod-Selector", Field("api.networking.v1.NetworkPolicySpec", "podSelector")), AGE],
        |o| vec![fields::name(o), fields::selector(o.pointer("/spec/podSelector")), fields::age(o)],
    ),
    KindPrinter::new(
        NETWORKING,
        "IPAddress",
        &[NAME, Column::text("ParentRef", Field("api.networking.v1.IPAddressSpec", "parentRef"))],
        |o| {
            let part = |field: &str| text(o, &format!("/spec/parentRef/{field}")).to_owned();
            let resource =
                [part("resource"), part("group")].into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(".");
            let parent: Vec<String> =
                [resource, part("namespace"), part("name")].into_iter().filter(|p| !p.is_empty()).collect();
            vec![fields::name(o), Cell::from(parent.join("/"))]
        },
    ),
    KindPrinter::new(
        NETWORKING,
        "ServiceCIDR",
        &[NAME, Column::text("CIDRs", Field("api.networking.v1.ServiceCIDRSpec", "cidrs")), AGE],
        |o| {
            let cidrs: Vec<&str> = list(o, "/spec/cidrs").iter().filter_map(Value::as_str).collect();
            vec![fields::name(o), Cell::from(cidrs.join(",")), fields::age(o)]
        },
    ),
];

fn service(o: &Value) -> Vec<Cell> {
    let cluster_ip = list(o, "/spec/clusterIPs").first().and_then(Value::as_str).unwrap_or(text(o, "/spec/clusterIP"));
    let ports: Vec<String> = list(o, "/spec/ports")
        .iter()
        .map(|p| match int(p, "/nodePort") {
            0 => format!("{}/{}", int(p, "/port"), text(p, "/protocol")),
            node => format!("{}:{node}/{}", int(p, "/port"), text(p, "/protocol")),
        })
        .collect();
    vec![
        fields::name(o),
        Cell::from(text(o, "/spec/type")),
        Cell::from(if cluster_ip.is_empty() { NONE } else { cluster_ip }),
        Cell::from(external_ip(o)),
        Cell::from(if ports.is_empty() { NONE.to_owned() } else { ports.join(",") }),
        fields::age(o),
        fields::labels(o.pointer("/spec/selector")),
    ]
}

fn external_ip(o: &Value) -> String {
    let fixed: Vec<&str> = list(o, "/spec/externalIPs").iter().filter_map(Value::as_str).collect();
    match text(o, "/spec/type") {
        "ClusterIP" | "NodePort" if fixed.is_empty() => NONE.to_owned(),
        "ClusterIP" | "NodePort" => fixed.join(","),
        "LoadBalancer" => {
            let mut all = load_balancer_addresses(o);
            all.extend(fixed.into_iter().map(str::to_owned));
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        "ExternalName" => text(o, "/spec/externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// Distinct addresses of `status.loadBalancer`, sorted.
fn load_balancer_addresses(o: &Value) -> Vec<String> {
    let mut found: Vec<String> = list(o, "/status/loadBalancer/ingress")
        .iter()
        .map(|i| [text(i, "/ip"), text(i, "/hostname")].into_iter().find(|t| !t.is_empty()).unwrap_or("").to_owned())
        .filter(|address| !address.is_empty())
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn hosts(o: &Value) -> String {
    let all: Vec<&str> = list(o, "/spec/rules").iter().map(|r| text(r, "/host")).filter(|h| !h.is_empty()).collect();
    shorten(&all, 3, "*")
}

fn host_port(ip: &str, port: i64) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

fn endpoints(o: &Value) -> String {
    const SHOWN: usize = 3;
    let mut endpoints: Vec<String> = Vec::new();
    for subset in list(o, "/subsets") {
        let addresses = list(subset, "/addresses").iter().map(|a| text(a, "/ip"));
        let ports = list(subset, "/ports");
        if ports.is_empty() {
            endpoints.extend(addresses.map(str::to_owned));
        } else {
            let addresses: Vec<&str> = addresses.collect();
            endpoints.extend(ports.iter().flat_map(|p| addresses.iter().map(|ip| host_port(ip, int(p, "/port")))));
        }
    }
    shorten(&endpoints, SHOWN, NONE)
}

/// The first `shown` items with the number of the others (`a,b + 3 more...`); `empty` if there are none.
fn shorten(all: &[impl Borrow<str>], shown: usize, empty: &str) -> String {
    match all.len() {
        0 => empty.to_owned(),
        n if n > shown => format!("{} + {} more...", all[..shown].join(","), n - shown),
        _ => all.join(","),
    }
}

fn slice_ports(o: &Value) -> String {
    let all: Vec<String> = list(o, "/ports")
        .iter()
        .map(|p| match (fields::maybe_int(p, "/port"), text(p, "/name")) {
            (Some(port), _) => port.to_string(),
            (None, "") => "*".to_owned(),
            (None, name) => name.to_owned(),
        })
        .collect();
    shorten(&all, 3, "<unset>")
}

fn slice_endpoints(o: &Value) -> String {
    let all: Vec<String> = list(o, "/endpoints")
        .iter()
        .flat_map(|e| list(e, "/addresses").iter().filter_map(Value::as_str).map(str::to_owned))
        .collect();
    shorten(&all, 3, "<unset>")
}

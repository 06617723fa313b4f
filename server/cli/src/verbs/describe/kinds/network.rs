//! Describes Services and Ingresses with their endpoints. Has no side effects.

use serde_json::Value;

use super::{RelatedObjects, SLICES, format_unknown};
use crate::verbs::describe::render::add_labels_and_annotations;
use crate::verbs::describe::sheet::{NONE, Sheet, join_or_none, list, or_none, to_text};

/// Number of endpoints shown; the rest is counted.
const MAX_ENDPOINTS: usize = 3;
const SERVICE: &str = "kubernetes.io/service-name";

pub(super) fn describe_service(sheet: &mut Sheet, service: &Value, related: &RelatedObjects) {
    let spec = &service["spec"];
    add_labels_and_annotations(sheet, service);
    sheet.add_pairs(0, "Selector", &spec["selector"], "=");
    sheet.add_field(0, "Type", or_none(&spec["type"]));
    sheet.add_field_if_set(0, "IP Family Policy", &spec["ipFamilyPolicy"]);
    if !list(&spec["ipFamilies"]).is_empty() {
        sheet.add_field(0, "IP Families", join_or_none(&spec["ipFamilies"], ","));
    }
    sheet.add_field(0, "IP", or_none(&spec["clusterIP"]));
    sheet.add_field(0, "IPs", join_or_none(&spec["clusterIPs"], ","));
    if !list(&spec["externalIPs"]).is_empty() {
        sheet.add_field(0, "External IPs", join_or_none(&spec["externalIPs"], ","));
    }
    sheet.add_field_if_set(0, "Desired LoadBalancer IP", &spec["loadBalancerIP"]);
    sheet.add_field_if_set(0, "External Name", &spec["externalName"]);
    let balancers = addresses(service);
    if !balancers.is_empty() {
        sheet.add_field(0, "LoadBalancer Ingress", balancers.join(", "));
    }
    for port in list(&spec["ports"]) {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        let name = port["name"].as_str().filter(|name| !name.is_empty()).unwrap_or("<unset>");
        sheet.add_field(0, "Port", format!("{name}  {}/{protocol}", to_text(&port["port"])));
        sheet.add_field(0, "TargetPort", format!("{}/{protocol}", to_text(&port["targetPort"])));
        if port["nodePort"].as_i64().is_some_and(|port| port != 0) {
            sheet.add_field(0, "NodePort", format!("{name}  {}/{protocol}", to_text(&port["nodePort"])));
        }
        sheet.add_field(
            0,
            "Endpoints",
            format_endpoints(related, text_or_empty(&service["metadata"]["name"]), &port["name"]),
        );
    }
    sheet.add_field(0, "Session Affinity", or_none(&spec["sessionAffinity"]));
    sheet.add_field_if_set(0, "External Traffic Policy", &spec["externalTrafficPolicy"]);
    sheet.add_field_if_set(0, "Internal Traffic Policy", &spec["internalTrafficPolicy"]);
    sheet.add_field_if_set(0, "HealthCheck NodePort", &spec["healthCheckNodePort"]);
    if !list(&spec["loadBalancerSourceRanges"]).is_empty() {
        sheet.add_field(0, "LoadBalancer Source Ranges", join_or_none(&spec["loadBalancerSourceRanges"], ","));
    }
}

fn text_or_empty(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Addresses of the load balancer.
fn addresses(object: &Value) -> Vec<String> {
    let ingress_points = list(&object["status"]["loadBalancer"]["ingress"]).iter();
    ingress_points
        .filter_map(|point| point["ip"].as_str().or_else(|| point["hostname"].as_str()))
        .map(str::to_owned)
        .collect()
}

/// Ready endpoints of a Service's port, shortened to `MAX_ENDPOINTS`.
fn format_endpoints(related: &RelatedObjects, service: &str, port: &Value) -> String {
    let slices = match related.get(SLICES) {
        Some(Ok(slices)) => slices,
        Some(Err(reason)) => return format_unknown(reason),
        None => return NONE.to_owned(),
    };
    let mut endpoints: Vec<String> = Vec::new();
    for slice in slices.iter().filter(|slice| slice["metadata"]["labels"][SERVICE] == *service) {
        let has_port_name = |item: &&Value| text_or_empty(&item["name"]) == text_or_empty(port);
        let Some(number) = list(&slice["ports"]).iter().find(has_port_name).and_then(|item| item["port"].as_i64())
        else {
            continue;
        };
        let ready = list(&slice["endpoints"]).iter().filter(|item| item["conditions"]["ready"] != false);
        for address in ready.flat_map(|item| list(&item["addresses"])).filter_map(Value::as_str) {
            match slice["addressType"] == "IPv6" {
                true => endpoints.push(format!("[{address}]:{number}")),
                false => endpoints.push(format!("{address}:{number}")),
            }
        }
    }
    endpoints.sort();
    endpoints.dedup();
    match endpoints.len() {
        0 => String::new(),
        count if count > MAX_ENDPOINTS => {
            format!("{} + {} more...", endpoints[..MAX_ENDPOINTS].join(","), count - MAX_ENDPOINTS)
        }
        _ => endpoints.join(","),
    }
}

/// Names of the Services that an Ingress routes to, sorted and without duplicates.
pub(super) fn service_names(ingress: &Value) -> Vec<&str> {
    let spec = &ingress["spec"];
    let paths = list(&spec["rules"]).iter().flat_map(|rule| list(&rule["http"]["paths"])).map(|path| &path["backend"]);
    let names = paths.chain([&spec["defaultBackend"]]).filter_map(|backend| backend["service"]["name"].as_str());
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    names
}

pub(super) fn describe_ingress(sheet: &mut Sheet, ingress: &Value, related: &RelatedObjects) {
    let spec = &ingress["spec"];
    sheet.add_pairs(0, "Labels", &ingress["metadata"]["labels"], "=");
    sheet.add_field(0, "Address", addresses(ingress).join(","));
    sheet.add_field(0, "Ingress Class", or_none(&spec["ingressClassName"]));
    let default = &spec["defaultBackend"];
    sheet.add_field(
        0,
        "Default backend",
        if default.is_object() { format_backend(default, related) } else { "<default>".to_owned() },
    );
    if !list(&spec["tls"]).is_empty() {
        sheet.add_heading(0, "TLS");
        for tls in list(&spec["tls"]) {
            let hosts = join_or_none(&tls["hosts"], ",");
            match tls["secretName"].as_str().filter(|name| !name.is_empty()) {
                Some(secret) => sheet.add_line(2, format!("{secret} terminates {hosts}")),
                None => sheet.add_line(2, format!("SNI routes {hosts}")),
            }
        }
    }
    let mut rows = Vec::new();
    for rule in list(&spec["rules"]) {
        let host = rule["host"].as_str().filter(|host| !host.is_empty()).unwrap_or("*");
        for path in list(&rule["http"]["paths"]) {
            rows.push(vec![
                host.to_owned(),
                text_or_empty(&path["path"]).to_owned(),
                format_backend(&path["backend"], related),
            ]);
        }
    }
    sheet.add_heading(0, "Rules");
    if rows.is_empty() {
        rows.push(vec!["*".to_owned(), "*".to_owned(), "<default>".to_owned()]);
    }
    sheet.add_table(2, &["Host", "Path", "Backends"], &rows);
    sheet.add_pairs(0, "Annotations", &ingress["metadata"]["annotations"], ": ");
}

/// `web:80 (10.0.0.1:8080)`. Named Service ports that no EndpointSlice has show no endpoints.
fn format_backend(backend: &Value, related: &RelatedObjects) -> String {
    let resource = &backend["resource"];
    if resource.is_object() {
        let group = resource["apiGroup"].as_str().unwrap_or("<none>");
        return format!(
            "APIGroup: {group}, Kind: {}, Name: {}",
            to_text(&resource["kind"]),
            to_text(&resource["name"])
        );
    }
    let service = &backend["service"];
    let (name, port) = (text_or_empty(&service["name"]), &service["port"]);
    let port_text = if port["name"].is_string() { to_text(&port["name"]) } else { to_text(&port["number"]) };
    let found = match port["name"].is_string() {
        true => format_endpoints(related, name, &port["name"]),
        false => single_port_endpoints(related, name),
    };
    format!("{name}:{port_text} ({found})")
}

/// Endpoints of a Service with a single port, regardless of the port's name.
fn single_port_endpoints(related: &RelatedObjects, service: &str) -> String {
    let Some(Ok(slices)) = related.get(SLICES) else { return format_endpoints(related, service, &Value::Null) };
    let service_slice = slices.iter().find(|slice| slice["metadata"]["labels"][SERVICE] == *service);
    match service_slice.map(|slice| list(&slice["ports"])) {
        Some([port]) => format_endpoints(related, service, &port["name"]),
        Some(_) => "several ports".to_owned(),
        None => "<none>".to_owned(),
    }
}

//! Describes Services and Ingresses with their endpoints. Pure.

use serde_json::Value;

use super::{Related, SLICES, unknown};
use crate::verbs::describe::render::marks;
use crate::verbs::describe::sheet::{NONE, Sheet, joined, list, or_none, plain};

/// Number of endpoints shown; the rest is counted.
const MOST: usize = 3;
const SERVICE: &str = "kubernetes.io/service-name";

pub(super) fn service(sheet: &mut Sheet, service: &Value, related: &Related) {
    let spec = &service["spec"];
    marks(sheet, service);
    sheet.pairs(0, "Selector", &spec["selector"], "=");
    sheet.say(0, "Type", or_none(&spec["type"]));
    sheet.maybe(0, "IP Family Policy", &spec["ipFamilyPolicy"]);
    if !list(&spec["ipFamilies"]).is_empty() {
        sheet.say(0, "IP Families", joined(&spec["ipFamilies"], ","));
    }
    sheet.say(0, "IP", or_none(&spec["clusterIP"]));
    sheet.say(0, "IPs", joined(&spec["clusterIPs"], ","));
    if !list(&spec["externalIPs"]).is_empty() {
        sheet.say(0, "External IPs", joined(&spec["externalIPs"], ","));
    }
    sheet.maybe(0, "Desired LoadBalancer IP", &spec["loadBalancerIP"]);
    sheet.maybe(0, "External Name", &spec["externalName"]);
    let balancers = addresses(service);
    if !balancers.is_empty() {
        sheet.say(0, "LoadBalancer Ingress", balancers.join(", "));
    }
    for port in list(&spec["ports"]) {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        let name = port["name"].as_str().filter(|name| !name.is_empty()).unwrap_or("<unset>");
        sheet.say(0, "Port", format!("{name}  {}/{protocol}", plain(&port["port"])));
        sheet.say(0, "TargetPort", format!("{}/{protocol}", plain(&port["targetPort"])));
        if port["nodePort"].as_i64().is_some_and(|port| port != 0) {
            sheet.say(0, "NodePort", format!("{name}  {}/{protocol}", plain(&port["nodePort"])));
        }
        sheet.say(0, "Endpoints", endpoints(related, text_of(&service["metadata"]["name"]), &port["name"]));
    }
    sheet.say(0, "Session Affinity", or_none(&spec["sessionAffinity"]));
    sheet.maybe(0, "External Traffic Policy", &spec["externalTrafficPolicy"]);
    sheet.maybe(0, "Internal Traffic Policy", &spec["internalTrafficPolicy"]);
    sheet.maybe(0, "HealthCheck NodePort", &spec["healthCheckNodePort"]);
    if !list(&spec["loadBalancerSourceRanges"]).is_empty() {
        sheet.say(0, "LoadBalancer Source Ranges", joined(&spec["loadBalancerSourceRanges"], ","));
    }
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Addresses of the load balancer.
fn addresses(object: &Value) -> Vec<String> {
    let all = list(&object["status"]["loadBalancer"]["ingress"]).iter();
    all.filter_map(|one| one["ip"].as_str().or_else(|| one["hostname"].as_str())).map(str::to_owned).collect()
}

/// Ready endpoints of a Service's port, shortened to `MOST`.
fn endpoints(related: &Related, service: &str, port: &Value) -> String {
    let slices = match related.get(SLICES) {
        Some(Ok(slices)) => slices,
        Some(Err(why)) => return unknown(why),
        None => return NONE.to_owned(),
    };
    let mut all: Vec<String> = Vec::new();
    for slice in slices.iter().filter(|slice| slice["metadata"]["labels"][SERVICE] == *service) {
        let named = |one: &&Value| text_of(&one["name"]) == text_of(port);
        let Some(number) = list(&slice["ports"]).iter().find(named).and_then(|one| one["port"].as_i64()) else {
            continue;
        };
        let ready = list(&slice["endpoints"]).iter().filter(|one| one["conditions"]["ready"] != false);
        for address in ready.flat_map(|one| list(&one["addresses"])).filter_map(Value::as_str) {
            match slice["addressType"] == "IPv6" {
                true => all.push(format!("[{address}]:{number}")),
                false => all.push(format!("{address}:{number}")),
            }
        }
    }
    all.sort();
    all.dedup();
    match all.len() {
        0 => String::new(),
        count if count > MOST => format!("{} + {} more...", all[..MOST].join(","), count - MOST),
        _ => all.join(","),
    }
}

/// Services that an Ingress routes to.
pub(super) fn services(ingress: &Value) -> Vec<&str> {
    let spec = &ingress["spec"];
    let paths = list(&spec["rules"]).iter().flat_map(|rule| list(&rule["http"]["paths"])).map(|path| &path["backend"]);
    let named = paths.chain([&spec["defaultBackend"]]).filter_map(|backend| backend["service"]["name"].as_str());
    let mut named: Vec<&str> = named.collect();
    named.sort_unstable();
    named.dedup();
    named
}

pub(super) fn ingress(sheet: &mut Sheet, ingress: &Value, related: &Related) {
    let spec = &ingress["spec"];
    sheet.pairs(0, "Labels", &ingress["metadata"]["labels"], "=");
    sheet.say(0, "Address", addresses(ingress).join(","));
    sheet.say(0, "Ingress Class", or_none(&spec["ingressClassName"]));
    let default = &spec["defaultBackend"];
    sheet.say(
        0,
        "Default backend",
        if default.is_object() { backend(default, related) } else { "<default>".to_owned() },
    );
    if !list(&spec["tls"]).is_empty() {
        sheet.head(0, "TLS");
        for tls in list(&spec["tls"]) {
            let hosts = joined(&tls["hosts"], ",");
            match tls["secretName"].as_str().filter(|name| !name.is_empty()) {
                Some(secret) => sheet.line(2, format!("{secret} terminates {hosts}")),
                None => sheet.line(2, format!("SNI routes {hosts}")),
            }
        }
    }
    let mut rows = Vec::new();
    for rule in list(&spec["rules"]) {
        let host = rule["host"].as_str().filter(|host| !host.is_empty()).unwrap_or("*");
        for path in list(&rule["http"]["paths"]) {
            rows.push(vec![host.to_owned(), text_of(&path["path"]).to_owned(), backend(&path["backend"], related)]);
        }
    }
    sheet.head(0, "Rules");
    if rows.is_empty() {
        rows.push(vec!["*".to_owned(), "*".to_owned(), "<default>".to_owned()]);
    }
    sheet.table(2, &["Host", "Path", "Backends"], &rows);
    sheet.pairs(0, "Annotations", &ingress["metadata"]["annotations"], ": ");
}

/// `web:80 (10.0.0.1:8080)`. Named Service ports that no EndpointSlice has show no endpoints.
fn backend(backend: &Value, related: &Related) -> String {
    let resource = &backend["resource"];
    if resource.is_object() {
        let group = resource["apiGroup"].as_str().unwrap_or("<none>");
        return format!("APIGroup: {group}, Kind: {}, Name: {}", plain(&resource["kind"]), plain(&resource["name"]));
    }
    let service = &backend["service"];
    let (name, port) = (text_of(&service["name"]), &service["port"]);
    let port_text = if port["name"].is_string() { plain(&port["name"]) } else { plain(&port["number"]) };
    let found = match port["name"].is_string() {
        true => endpoints(related, name, &port["name"]),
        false => any_port(related, name),
    };
    format!("{name}:{port_text} ({found})")
}

/// Endpoints of a Service with a single port, regardless of the port's name.
fn any_port(related: &Related, service: &str) -> String {
    let Some(Ok(slices)) = related.get(SLICES) else { return endpoints(related, service, &Value::Null) };
    let own = slices.iter().find(|slice| slice["metadata"]["labels"][SERVICE] == *service);
    match own.map(|slice| list(&slice["ports"])) {
        Some([port]) => endpoints(related, service, &port["name"]),
        Some(_) => "several ports".to_owned(),
        None => "<none>".to_owned(),
    }
}

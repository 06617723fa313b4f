//! Describes containers, volumes and scheduling constraints of pods and pod templates. Has no side effects.

use serde_json::Value;

use crate::verbs::describe::render::{add_nested_fields, add_template_labels_and_annotations};
use crate::verbs::describe::sheet::{NONE, Sheet, list, number, or_none, selector, sorted_fields, time, to_text};

/// Details of a container state that is missing.
static NO_DETAILS: Value = Value::Null;

/// Adds the pod template of a workload.
pub(super) fn add_pod_template(sheet: &mut Sheet, template: &Value) {
    sheet.add_heading(0, "Pod Template");
    add_template_labels_and_annotations(sheet, 2, &template["metadata"]);
    let spec = &template["spec"];
    sheet.add_field_if_set(2, "Service Account", &spec["serviceAccountName"]);
    add_containers(sheet, 2, "Init Containers", &spec["initContainers"], None);
    add_containers(sheet, 2, "Containers", &spec["containers"], None);
    add_volumes(sheet, 2, &spec["volumes"]);
    add_topology_spread(sheet, 2, spec);
    sheet.add_field_if_set(2, "Priority Class Name", &spec["priorityClassName"]);
    sheet.add_pairs(2, "Node-Selectors", &spec["nodeSelector"], "=");
    add_tolerations(sheet, 2, spec);
}

/// Adds containers, with their state if `statuses` is given.
pub(super) fn add_containers(
    sheet: &mut Sheet,
    indent: usize,
    label: &str,
    containers: &Value,
    statuses: Option<&Value>,
) {
    if list(containers).is_empty() {
        return;
    }
    sheet.add_heading(indent, label);
    for container in list(containers) {
        let name = to_text(&container["name"]);
        let status = statuses.and_then(|statuses| list(statuses).iter().find(|status| status["name"] == *name));
        sheet.add_heading(indent + 2, &name);
        add_container(sheet, indent + 4, container, status);
    }
}

fn add_container(sheet: &mut Sheet, indent: usize, container: &Value, status: Option<&Value>) {
    if let Some(status) = status {
        sheet.add_field(indent, "Container ID", to_text_or_empty(&status["containerID"]));
    }
    sheet.add_field(indent, "Image", to_text_or_empty(&container["image"]));
    if let Some(status) = status {
        sheet.add_field(indent, "Image ID", to_text_or_empty(&status["imageID"]));
    }
    add_ports(sheet, indent, list(&container["ports"]));
    add_arguments(sheet, indent, "Command", &container["command"]);
    add_arguments(sheet, indent, "Args", &container["args"]);
    if let Some(status) = status {
        add_state(sheet, indent, "State", &status["state"]);
        if status["lastState"].as_object().is_some_and(|state| !state.is_empty()) {
            add_state(sheet, indent, "Last State", &status["lastState"]);
        }
        sheet.add_field(indent, "Ready", if status["ready"] == true { "True" } else { "False" });
        sheet.add_field(indent, "Restart Count", number(&status["restartCount"]).to_string());
    }
    for (label, field) in [("Limits", "limits"), ("Requests", "requests")] {
        let amounts = sorted_fields(&container["resources"][field]);
        if !amounts.is_empty() {
            sheet.add_heading(indent, label);
            amounts.into_iter().for_each(|(name, amount)| sheet.add_field(indent + 2, name, to_text(amount)));
        }
    }
    for (label, field) in [("Liveness", "livenessProbe"), ("Readiness", "readinessProbe"), ("Startup", "startupProbe")]
    {
        if container[field].is_object() {
            sheet.add_field(indent, label, format_probe(&container[field]));
        }
    }
    add_environment(sheet, indent, container);
    let mount = |mount: &Value| {
        let mut modes = vec![if mount["readOnly"] == true { "ro".to_owned() } else { "rw".to_owned() }];
        modes.extend(mount["subPath"].as_str().filter(|path| !path.is_empty()).map(|path| format!("path={path:?}")));
        format!("{} from {} ({})", to_text(&mount["mountPath"]), to_text(&mount["name"]), modes.join(","))
    };
    let mut mounts: Vec<String> = list(&container["volumeMounts"]).iter().map(mount).collect();
    mounts.sort();
    match mounts.is_empty() {
        true => sheet.add_field(indent, "Mounts", NONE),
        false => {
            sheet.add_heading(indent, "Mounts");
            mounts.into_iter().for_each(|mount| sheet.add_line(indent + 2, mount));
        }
    }
}

fn to_text_or_empty(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn add_ports(sheet: &mut Sheet, indent: usize, ports: &[Value]) {
    let protocol = |port: &Value| port["protocol"].as_str().unwrap_or("TCP").to_owned();
    let container_port = |port: &Value| {
        let name = port["name"].as_str().map(|name| format!(" ({name})")).unwrap_or_default();
        format!("{}/{}{name}", number(&port["containerPort"]), protocol(port))
    };
    let host_port = |port: &Value| format!("{}/{}", number(&port["hostPort"]), protocol(port));
    let plural = if ports.len() > 1 { "s" } else { "" };
    let join_or_none = |texts: Vec<String>| if texts.is_empty() { NONE.to_owned() } else { texts.join(", ") };
    sheet.add_field(indent, &format!("Port{plural}"), join_or_none(ports.iter().map(container_port).collect()));
    sheet.add_field(indent, &format!("Host Port{plural}"), join_or_none(ports.iter().map(host_port).collect()));
}

fn add_arguments(sheet: &mut Sheet, indent: usize, label: &str, arguments: &Value) {
    if !list(arguments).is_empty() {
        sheet.add_heading(indent, label);
        list(arguments).iter().for_each(|argument| sheet.add_line(indent + 2, to_text(argument)));
    }
}

fn add_state(sheet: &mut Sheet, indent: usize, label: &str, state: &Value) {
    let (state_name, details) =
        match state.as_object().and_then(|state| state.iter().find(|(_, details)| details.is_object())) {
            Some((key, details)) if key == "running" => ("Running", details),
            Some((key, details)) if key == "terminated" => ("Terminated", details),
            Some((_, details)) => ("Waiting", details),
            None => ("Waiting", &NO_DETAILS),
        };
    sheet.add_field(indent, label, state_name);
    sheet.add_field_if_set(indent + 2, "Reason", &details["reason"]);
    sheet.add_field_if_set(indent + 2, "Message", &details["message"]);
    if state_name == "Terminated" {
        sheet.add_field(indent + 2, "Exit Code", number(&details["exitCode"]).to_string());
        sheet.add_field_if_set(indent + 2, "Signal", &details["signal"]);
    }
    for (label, field) in [("Started", "startedAt"), ("Finished", "finishedAt")] {
        if details[field].is_string() {
            sheet.add_field(indent + 2, label, time(&details[field]));
        }
    }
}

/// `http-get http://:8080/healthz delay=0s timeout=1s period=10s #success=1 #failure=3`
fn format_probe(probe: &Value) -> String {
    let action = match probe {
        probe if probe["exec"].is_object() => {
            let words: Vec<String> = list(&probe["exec"]["command"]).iter().map(to_text).collect();
            format!("exec [{}]", words.join(" "))
        }
        probe if probe["httpGet"].is_object() => {
            let get = &probe["httpGet"];
            let scheme = get["scheme"].as_str().unwrap_or("HTTP").to_lowercase();
            let path = to_text_or_empty(&get["path"]);
            let slash = if path.starts_with('/') { "" } else { "/" };
            format!("http-get {scheme}://{}:{}{slash}{path}", to_text_or_empty(&get["host"]), to_text(&get["port"]))
        }
        probe if probe["tcpSocket"].is_object() => {
            let socket = &probe["tcpSocket"];
            format!("tcp-socket {}:{}", to_text_or_empty(&socket["host"]), to_text(&socket["port"]))
        }
        probe if probe["grpc"].is_object() => {
            let grpc = &probe["grpc"];
            format!("grpc <pod>:{} {}", to_text(&grpc["port"]), to_text_or_empty(&grpc["service"]))
                .trim_end()
                .to_owned()
        }
        _ => "unknown".to_owned(),
    };
    let number_or = |field: &str, default: i64| probe[field].as_i64().unwrap_or(default);
    format!(
        "{action} delay={}s timeout={}s period={}s #success={} #failure={}",
        number_or("initialDelaySeconds", 0),
        number_or("timeoutSeconds", 1),
        number_or("periodSeconds", 10),
        number_or("successThreshold", 1),
        number_or("failureThreshold", 3)
    )
}

fn add_environment(sheet: &mut Sheet, indent: usize, container: &Value) {
    if !list(&container["envFrom"]).is_empty() {
        sheet.add_heading(indent, "Environment Variables from");
        for from in list(&container["envFrom"]) {
            let (kind, reference) = match from["configMapRef"].is_object() {
                true => ("ConfigMap", &from["configMapRef"]),
                false => ("Secret", &from["secretRef"]),
            };
            let prefix = from["prefix"].as_str().filter(|prefix| !prefix.is_empty());
            let prefix = prefix.map(|prefix| format!(" with prefix '{prefix}'")).unwrap_or_default();
            sheet.add_line(
                indent + 2,
                format!("{}  {kind}{prefix}  Optional: {}", to_text(&reference["name"]), reference["optional"] == true),
            );
        }
    }
    if list(&container["env"]).is_empty() {
        return sheet.add_field(indent, "Environment", NONE);
    }
    sheet.add_heading(indent, "Environment");
    for variable in list(&container["env"]) {
        sheet.add_field(indent + 2, &to_text(&variable["name"]), environment_value(variable));
    }
}

/// The source of an environment variable's value.
fn environment_value(variable: &Value) -> String {
    let from = &variable["valueFrom"];
    let key = |reference: &Value, description: &str| {
        format!(
            "<set to the key '{}' {description} '{}'>  Optional: {}",
            to_text(&reference["key"]),
            to_text(&reference["name"]),
            reference["optional"] == true
        )
    };
    match from {
        from if from["fieldRef"].is_object() => {
            let field = &from["fieldRef"];
            format!("({}:{})", field["apiVersion"].as_str().unwrap_or("v1"), to_text(&field["fieldPath"]))
        }
        from if from["resourceFieldRef"].is_object() => format!("({})", to_text(&from["resourceFieldRef"]["resource"])),
        from if from["secretKeyRef"].is_object() => key(&from["secretKeyRef"], "in secret"),
        from if from["configMapKeyRef"].is_object() => key(&from["configMapKeyRef"], "of config map"),
        _ => to_text_or_empty(&variable["value"]).to_owned(),
    }
}

/// Volume types with kubectl's descriptions and the fields to show.
const VOLUMES: [(&str, &str, &[(&str, &str)]); 8] = [
    ("hostPath", "HostPath (bare host directory volume)", &[("Path", "path"), ("HostPathType", "type")]),
    (
        "emptyDir",
        "EmptyDir (a temporary directory that shares a pod's lifetime)",
        &[("Medium", "medium"), ("SizeLimit", "sizeLimit")],
    ),
    ("secret", "Secret (a volume populated by a Secret)", &[("SecretName", "secretName"), ("Optional", "optional")]),
    ("configMap", "ConfigMap (a volume populated by a ConfigMap)", &[("Name", "name"), ("Optional", "optional")]),
    (
        "persistentVolumeClaim",
        "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
        &[("ClaimName", "claimName"), ("ReadOnly", "readOnly")],
    ),
    (
        "nfs",
        "NFS (an NFS mount that lasts the lifetime of a pod)",
        &[("Server", "server"), ("Path", "path"), ("ReadOnly", "readOnly")],
    ),
    (
        "csi",
        "CSI (a Container Storage Interface (CSI) volume source)",
        &[("Driver", "driver"), ("FSType", "fsType"), ("ReadOnly", "readOnly")],
    ),
    ("image", "Image (a container image or OCI artifact)", &[("Reference", "reference"), ("PullPolicy", "pullPolicy")]),
];

pub(super) fn add_volumes(sheet: &mut Sheet, indent: usize, volumes: &Value) {
    if list(volumes).is_empty() {
        return sheet.add_field(indent, "Volumes", NONE);
    }
    sheet.add_heading(indent, "Volumes");
    for volume in list(volumes) {
        sheet.add_heading(indent + 2, &to_text(&volume["name"]));
        add_volume(sheet, indent + 4, volume);
    }
}

fn add_volume(sheet: &mut Sheet, indent: usize, volume: &Value) {
    if volume["projected"].is_object() {
        sheet.add_field(indent, "Type", "Projected (a volume that contains injected data from multiple sources)");
        return list(&volume["projected"]["sources"])
            .iter()
            .for_each(|source| add_projected_source(sheet, indent, source));
    }
    if let Some((field, description, fields)) = VOLUMES.iter().find(|(field, ..)| volume[*field].is_object()) {
        sheet.add_field(indent, "Type", *description);
        for (label, name) in *fields {
            sheet.add_field(indent, label, format_field(label, &volume[*field][*name]));
        }
        return;
    }
    let mut sources = volume.as_object().into_iter().flatten().filter(|(name, _)| *name != "name");
    match sources.next() {
        Some((kind, Value::Object(source))) => {
            sheet.add_field(indent, "Type", kind.as_str());
            add_nested_fields(sheet, indent, source);
        }
        _ => sheet.add_line(indent, "<unknown>"),
    }
}

fn format_field(label: &str, value: &Value) -> String {
    match (label, value) {
        ("Optional" | "ReadOnly", value) => (*value == true).to_string(),
        ("SizeLimit", Value::Null) => "<unset>".to_owned(),
        ("Medium", value) => to_text_or_empty(value).to_owned(),
        (_, value) => or_none(value),
    }
}

fn add_projected_source(sheet: &mut Sheet, indent: usize, source: &Value) {
    if source["secret"].is_object() {
        sheet.add_field(indent, "SecretName", to_text(&source["secret"]["name"]));
        sheet.add_field(indent, "Optional", format_field("Optional", &source["secret"]["optional"]));
    } else if source["configMap"].is_object() {
        sheet.add_field(indent, "ConfigMapName", to_text(&source["configMap"]["name"]));
        sheet.add_field(indent, "Optional", format_field("Optional", &source["configMap"]["optional"]));
    } else if source["serviceAccountToken"].is_object() {
        let seconds = source["serviceAccountToken"]["expirationSeconds"].as_i64().unwrap_or(3600);
        sheet.add_field(indent, "TokenExpirationSeconds", seconds.to_string());
    } else if source["downwardAPI"].is_object() {
        sheet.add_field(indent, "DownwardAPI", "true");
    } else if let Some((kind, Value::Object(fields))) = source.as_object().and_then(|source| source.iter().next()) {
        sheet.add_heading(indent, kind);
        add_nested_fields(sheet, indent + 2, fields);
    }
}

/// `key=value:Effect op=Exists for 300s`
pub(super) fn format_toleration(toleration: &Value) -> String {
    let mut text = to_text_or_empty(&toleration["key"]).to_owned();
    if let Some(value) = toleration["value"].as_str().filter(|value| !value.is_empty()) {
        text.push_str(&format!("={value}"));
    }
    if let Some(effect) = toleration["effect"].as_str().filter(|effect| !effect.is_empty()) {
        text.push_str(&format!(":{effect}"));
    }
    if toleration["operator"] == "Exists" {
        text.push_str(if text.is_empty() { "op=Exists" } else { " op=Exists" });
    }
    if let Some(seconds) = toleration["tolerationSeconds"].as_i64() {
        text.push_str(&format!(" for {seconds}s"));
    }
    text
}

pub(super) fn add_tolerations(sheet: &mut Sheet, indent: usize, spec: &Value) {
    let mut all: Vec<String> = list(&spec["tolerations"]).iter().map(format_toleration).collect();
    all.sort();
    sheet.add_list(indent, "Tolerations", &all);
}

pub(super) fn add_topology_spread(sheet: &mut Sheet, indent: usize, spec: &Value) {
    let format_constraint = |constraint: &Value| {
        let selector_text = selector(&constraint["labelSelector"]);
        let selector_text =
            if selector_text.is_empty() { String::new() } else { format!(" for selector {selector_text}") };
        format!(
            "{}:{} when max skew {} is exceeded{selector_text}",
            to_text(&constraint["topologyKey"]),
            to_text(&constraint["whenUnsatisfiable"]),
            to_text(&constraint["maxSkew"])
        )
    };
    let mut all: Vec<String> = list(&spec["topologySpreadConstraints"]).iter().map(format_constraint).collect();
    all.sort();
    if !all.is_empty() {
        sheet.add_list(indent, "Topology Spread Constraints", &all);
    }
}

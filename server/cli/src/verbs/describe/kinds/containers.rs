//! Describes containers, volumes and scheduling constraints of pods and pod templates. Pure.

use serde_json::Value;

use crate::verbs::describe::render::{content, marks_of};
use crate::verbs::describe::sheet::{NONE, Sheet, list, number, or_none, plain, selector, sorted, time};

/// Status of a container that has none.
static NOTHING: Value = Value::Null;

/// Adds the pod template of a workload.
pub(super) fn template(sheet: &mut Sheet, template: &Value) {
    sheet.head(0, "Pod Template");
    marks_of(sheet, 2, &template["metadata"]);
    let spec = &template["spec"];
    sheet.maybe(2, "Service Account", &spec["serviceAccountName"]);
    containers(sheet, 2, "Init Containers", &spec["initContainers"], None);
    containers(sheet, 2, "Containers", &spec["containers"], None);
    volumes(sheet, 2, &spec["volumes"]);
    spread(sheet, 2, spec);
    sheet.maybe(2, "Priority Class Name", &spec["priorityClassName"]);
    sheet.pairs(2, "Node-Selectors", &spec["nodeSelector"], "=");
    tolerations(sheet, 2, spec);
}

/// Adds containers, with their state if `statuses` is given.
pub(super) fn containers(sheet: &mut Sheet, indent: usize, label: &str, of: &Value, statuses: Option<&Value>) {
    if list(of).is_empty() {
        return;
    }
    sheet.head(indent, label);
    for container in list(of) {
        let name = plain(&container["name"]);
        let status = statuses.and_then(|all| list(all).iter().find(|status| status["name"] == *name));
        sheet.head(indent + 2, &name);
        container_of(sheet, indent + 4, container, status);
    }
}

fn container_of(sheet: &mut Sheet, indent: usize, container: &Value, status: Option<&Value>) {
    if let Some(status) = status {
        sheet.say(indent, "Container ID", plain_or_nothing(&status["containerID"]));
    }
    sheet.say(indent, "Image", plain_or_nothing(&container["image"]));
    if let Some(status) = status {
        sheet.say(indent, "Image ID", plain_or_nothing(&status["imageID"]));
    }
    ports(sheet, indent, list(&container["ports"]));
    words(sheet, indent, "Command", &container["command"]);
    words(sheet, indent, "Args", &container["args"]);
    if let Some(status) = status {
        state(sheet, indent, "State", &status["state"]);
        if status["lastState"].as_object().is_some_and(|state| !state.is_empty()) {
            state(sheet, indent, "Last State", &status["lastState"]);
        }
        sheet.say(indent, "Ready", if status["ready"] == true { "True" } else { "False" });
        sheet.say(indent, "Restart Count", number(&status["restartCount"]).to_string());
    }
    for (label, field) in [("Limits", "limits"), ("Requests", "requests")] {
        let amounts = sorted(&container["resources"][field]);
        if !amounts.is_empty() {
            sheet.head(indent, label);
            amounts.into_iter().for_each(|(name, amount)| sheet.say(indent + 2, name, plain(amount)));
        }
    }
    for (label, field) in [("Liveness", "livenessProbe"), ("Readiness", "readinessProbe"), ("Startup", "startupProbe")]
    {
        if container[field].is_object() {
            sheet.say(indent, label, probe(&container[field]));
        }
    }
    environment(sheet, indent, container);
    let mount = |mount: &Value| {
        let mut how = vec![if mount["readOnly"] == true { "ro".to_owned() } else { "rw".to_owned() }];
        how.extend(mount["subPath"].as_str().filter(|path| !path.is_empty()).map(|path| format!("path={path:?}")));
        format!("{} from {} ({})", plain(&mount["mountPath"]), plain(&mount["name"]), how.join(","))
    };
    let mut mounts: Vec<String> = list(&container["volumeMounts"]).iter().map(mount).collect();
    mounts.sort();
    match mounts.is_empty() {
        true => sheet.say(indent, "Mounts", NONE),
        false => {
            sheet.head(indent, "Mounts");
            mounts.into_iter().for_each(|mount| sheet.line(indent + 2, mount));
        }
    }
}

fn plain_or_nothing(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn ports(sheet: &mut Sheet, indent: usize, ports: &[Value]) {
    let protocol = |port: &Value| port["protocol"].as_str().unwrap_or("TCP").to_owned();
    let own = |port: &Value| {
        let name = port["name"].as_str().map(|name| format!(" ({name})")).unwrap_or_default();
        format!("{}/{}{name}", number(&port["containerPort"]), protocol(port))
    };
    let host = |port: &Value| format!("{}/{}", number(&port["hostPort"]), protocol(port));
    let plural = if ports.len() > 1 { "s" } else { "" };
    let join_or_none = |texts: Vec<String>| if texts.is_empty() { NONE.to_owned() } else { texts.join(", ") };
    sheet.say(indent, &format!("Port{plural}"), join_or_none(ports.iter().map(own).collect()));
    sheet.say(indent, &format!("Host Port{plural}"), join_or_none(ports.iter().map(host).collect()));
}

fn words(sheet: &mut Sheet, indent: usize, label: &str, of: &Value) {
    if !list(of).is_empty() {
        sheet.head(indent, label);
        list(of).iter().for_each(|word| sheet.line(indent + 2, plain(word)));
    }
}

fn state(sheet: &mut Sheet, indent: usize, label: &str, state: &Value) {
    let (state_name, of) = match state.as_object().and_then(|state| state.iter().find(|(_, of)| of.is_object())) {
        Some((word, of)) if word == "running" => ("Running", of),
        Some((word, of)) if word == "terminated" => ("Terminated", of),
        Some((_, of)) => ("Waiting", of),
        None => ("Waiting", &NOTHING),
    };
    sheet.say(indent, label, state_name);
    sheet.maybe(indent + 2, "Reason", &of["reason"]);
    sheet.maybe(indent + 2, "Message", &of["message"]);
    if state_name == "Terminated" {
        sheet.say(indent + 2, "Exit Code", number(&of["exitCode"]).to_string());
        sheet.maybe(indent + 2, "Signal", &of["signal"]);
    }
    for (label, field) in [("Started", "startedAt"), ("Finished", "finishedAt")] {
        if of[field].is_string() {
            sheet.say(indent + 2, label, time(&of[field]));
        }
    }
}

/// `http-get http://:8080/healthz delay=0s timeout=1s period=10s #success=1 #failure=3`
fn probe(probe: &Value) -> String {
    let how = match probe {
        probe if probe["exec"].is_object() => {
            let words: Vec<String> = list(&probe["exec"]["command"]).iter().map(plain).collect();
            format!("exec [{}]", words.join(" "))
        }
        probe if probe["httpGet"].is_object() => {
            let get = &probe["httpGet"];
            let scheme = get["scheme"].as_str().unwrap_or("HTTP").to_lowercase();
            let path = plain_or_nothing(&get["path"]);
            let gap = if path.starts_with('/') { "" } else { "/" };
            format!("http-get {scheme}://{}:{}{gap}{path}", plain_or_nothing(&get["host"]), plain(&get["port"]))
        }
        probe if probe["tcpSocket"].is_object() => {
            let socket = &probe["tcpSocket"];
            format!("tcp-socket {}:{}", plain_or_nothing(&socket["host"]), plain(&socket["port"]))
        }
        probe if probe["grpc"].is_object() => {
            let grpc = &probe["grpc"];
            format!("grpc <pod>:{} {}", plain(&grpc["port"]), plain_or_nothing(&grpc["service"])).trim_end().to_owned()
        }
        _ => "unknown".to_owned(),
    };
    let of = |field: &str, default: i64| probe[field].as_i64().unwrap_or(default);
    format!(
        "{how} delay={}s timeout={}s period={}s #success={} #failure={}",
        of("initialDelaySeconds", 0),
        of("timeoutSeconds", 1),
        of("periodSeconds", 10),
        of("successThreshold", 1),
        of("failureThreshold", 3)
    )
}

fn environment(sheet: &mut Sheet, indent: usize, container: &Value) {
    if !list(&container["envFrom"]).is_empty() {
        sheet.head(indent, "Environment Variables from");
        for from in list(&container["envFrom"]) {
            let (what, of) = match from["configMapRef"].is_object() {
                true => ("ConfigMap", &from["configMapRef"]),
                false => ("Secret", &from["secretRef"]),
            };
            let prefix = from["prefix"].as_str().filter(|prefix| !prefix.is_empty());
            let prefix = prefix.map(|prefix| format!(" with prefix '{prefix}'")).unwrap_or_default();
            sheet.line(
                indent + 2,
                format!("{}  {what}{prefix}  Optional: {}", plain(&of["name"]), of["optional"] == true),
            );
        }
    }
    if list(&container["env"]).is_empty() {
        return sheet.say(indent, "Environment", NONE);
    }
    sheet.head(indent, "Environment");
    for variable in list(&container["env"]) {
        sheet.say(indent + 2, &plain(&variable["name"]), set_to(variable));
    }
}

/// The source of an environment variable's value.
fn set_to(variable: &Value) -> String {
    let from = &variable["valueFrom"];
    let key = |of: &Value, what: &str| {
        format!(
            "<set to the key '{}' {what} '{}'>  Optional: {}",
            plain(&of["key"]),
            plain(&of["name"]),
            of["optional"] == true
        )
    };
    match from {
        from if from["fieldRef"].is_object() => {
            let field = &from["fieldRef"];
            format!("({}:{})", field["apiVersion"].as_str().unwrap_or("v1"), plain(&field["fieldPath"]))
        }
        from if from["resourceFieldRef"].is_object() => format!("({})", plain(&from["resourceFieldRef"]["resource"])),
        from if from["secretKeyRef"].is_object() => key(&from["secretKeyRef"], "in secret"),
        from if from["configMapKeyRef"].is_object() => key(&from["configMapKeyRef"], "of config map"),
        _ => plain_or_nothing(&variable["value"]).to_owned(),
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

pub(super) fn volumes(sheet: &mut Sheet, indent: usize, volumes: &Value) {
    if list(volumes).is_empty() {
        return sheet.say(indent, "Volumes", NONE);
    }
    sheet.head(indent, "Volumes");
    for volume in list(volumes) {
        sheet.head(indent + 2, &plain(&volume["name"]));
        volume_of(sheet, indent + 4, volume);
    }
}

fn volume_of(sheet: &mut Sheet, indent: usize, volume: &Value) {
    if volume["projected"].is_object() {
        sheet.say(indent, "Type", "Projected (a volume that contains injected data from multiple sources)");
        return list(&volume["projected"]["sources"]).iter().for_each(|source| projected(sheet, indent, source));
    }
    if let Some((field, what, fields)) = VOLUMES.iter().find(|(field, ..)| volume[*field].is_object()) {
        sheet.say(indent, "Type", *what);
        for (label, name) in *fields {
            sheet.say(indent, label, format_field(label, &volume[*field][*name]));
        }
        return;
    }
    let mut sources = volume.as_object().into_iter().flatten().filter(|(name, _)| *name != "name");
    match sources.next() {
        Some((kind, Value::Object(source))) => {
            sheet.say(indent, "Type", kind.as_str());
            content(sheet, indent, source);
        }
        _ => sheet.line(indent, "<unknown>"),
    }
}

fn format_field(label: &str, value: &Value) -> String {
    match (label, value) {
        ("Optional" | "ReadOnly", value) => (*value == true).to_string(),
        ("SizeLimit", Value::Null) => "<unset>".to_owned(),
        ("Medium", value) => plain_or_nothing(value).to_owned(),
        (_, value) => or_none(value),
    }
}

fn projected(sheet: &mut Sheet, indent: usize, source: &Value) {
    if source["secret"].is_object() {
        sheet.say(indent, "SecretName", plain(&source["secret"]["name"]));
        sheet.say(indent, "Optional", format_field("Optional", &source["secret"]["optional"]));
    } else if source["configMap"].is_object() {
        sheet.say(indent, "ConfigMapName", plain(&source["configMap"]["name"]));
        sheet.say(indent, "Optional", format_field("Optional", &source["configMap"]["optional"]));
    } else if source["serviceAccountToken"].is_object() {
        let seconds = source["serviceAccountToken"]["expirationSeconds"].as_i64().unwrap_or(3600);
        sheet.say(indent, "TokenExpirationSeconds", seconds.to_string());
    } else if source["downwardAPI"].is_object() {
        sheet.say(indent, "DownwardAPI", "true");
    } else if let Some((kind, Value::Object(fields))) = source.as_object().and_then(|source| source.iter().next()) {
        sheet.head(indent, kind);
        content(sheet, indent + 2, fields);
    }
}

/// `key=value:Effect op=Exists for 300s`
pub(super) fn toleration(of: &Value) -> String {
    let mut text = plain_or_nothing(&of["key"]).to_owned();
    if let Some(value) = of["value"].as_str().filter(|value| !value.is_empty()) {
        text.push_str(&format!("={value}"));
    }
    if let Some(effect) = of["effect"].as_str().filter(|effect| !effect.is_empty()) {
        text.push_str(&format!(":{effect}"));
    }
    if of["operator"] == "Exists" {
        text.push_str(if text.is_empty() { "op=Exists" } else { " op=Exists" });
    }
    if let Some(seconds) = of["tolerationSeconds"].as_i64() {
        text.push_str(&format!(" for {seconds}s"));
    }
    text
}

pub(super) fn tolerations(sheet: &mut Sheet, indent: usize, spec: &Value) {
    let mut all: Vec<String> = list(&spec["tolerations"]).iter().map(toleration).collect();
    all.sort();
    sheet.list(indent, "Tolerations", &all);
}

pub(super) fn spread(sheet: &mut Sheet, indent: usize, spec: &Value) {
    let one = |one: &Value| {
        let of = selector(&one["labelSelector"]);
        let of = if of.is_empty() { String::new() } else { format!(" for selector {of}") };
        format!(
            "{}:{} when max skew {} is exceeded{of}",
            plain(&one["topologyKey"]),
            plain(&one["whenUnsatisfiable"]),
            plain(&one["maxSkew"])
        )
    };
    let mut all: Vec<String> = list(&spec["topologySpreadConstraints"]).iter().map(one).collect();
    all.sort();
    if !all.is_empty() {
        sheet.list(indent, "Topology Spread Constraints", &all);
    }
}

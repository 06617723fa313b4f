//! Defaults of pods and pod templates.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Value, json};

use super::{at, default, each, inside, is_set, is_unset, put, text};
use crate::object::{fields, flag, number};

pub(crate) fn pod(object: &mut Value) {
    let Some(spec) = inside(object, "spec") else { return };
    for list in ["containers", "initContainers"] {
        each(spec, list, limits_become_requests);
    }
    default(spec, "enableServiceLinks", true);
    if flag(spec, "hostNetwork") {
        for list in ["containers", "initContainers"] {
            each(spec, list, |container| {
                each(container, "ports", |port| {
                    if port.get("hostPort").and_then(Value::as_i64).unwrap_or(0) == 0 {
                        copy_port(port);
                    }
                });
            });
        }
    }
    if number(spec, "terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0) {
        put(spec, "terminationGracePeriodSeconds", 1);
    }
    pod_spec(spec);
}

fn copy_port(port: &mut Value) {
    if let Some(number) = port.get("containerPort").cloned() {
        put(port, "hostPort", number);
    }
}

fn limits_become_requests(container: &mut Value) {
    let Some(resources) = inside(container, "resources") else { return };
    let limits = fields(resources, "limits").clone();
    if limits.is_empty() {
        return;
    }
    if !is_set(resources, "requests") {
        put(resources, "requests", json!({}));
    }
    if let Some(requests) = inside(resources, "requests") {
        for (name, amount) in limits {
            default(requests, &name, amount);
        }
    }
}

pub(crate) fn template(template: &mut Value) {
    if let Some(spec) = inside(template, "spec") {
        pod_spec(spec);
    }
}

fn pod_spec(spec: &mut Value) {
    default(spec, "dnsPolicy", "ClusterFirst");
    default(spec, "restartPolicy", "Always");
    default(spec, "terminationGracePeriodSeconds", 30);
    default(spec, "schedulerName", "default-scheduler");
    if !is_set(spec, "securityContext") {
        put(spec, "securityContext", json!({}));
    }
    // The deprecated field is kept equal to the current one.
    if is_unset(spec, "serviceAccountName") {
        let old = text(spec, "serviceAccount").to_owned();
        if !old.is_empty() {
            put(spec, "serviceAccountName", old);
        }
    } else {
        let name = text(spec, "serviceAccountName").to_owned();
        put(spec, "serviceAccount", name);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        each(spec, list, container);
    }
    each(spec, "volumes", volume);
}

fn container(container: &mut Value) {
    let pull = pull_policy(text(container, "image"));
    default(container, "imagePullPolicy", pull);
    default(container, "terminationMessagePath", "/dev/termination-log");
    default(container, "terminationMessagePolicy", "File");
    each(container, "ports", |port| default(port, "protocol", "TCP"));
    each(container, "env", |env| {
        if let Some(field) = inside(env, "valueFrom.fieldRef") {
            default(field, "apiVersion", "v1");
        }
        if let Some(file) = inside(env, "valueFrom.fileKeyRef") {
            default(file, "optional", false);
        }
    });
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = inside(container, name) {
            for (field, wanted) in
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
            {
                if probe.get(field).and_then(Value::as_i64).unwrap_or(0) == 0 {
                    put(probe, field, wanted);
                }
            }
            if let Some(grpc) = inside(probe, "grpc") {
                default(grpc, "service", "");
            }
            http_get(probe);
        }
    }
    for name in ["lifecycle.postStart", "lifecycle.preStop"] {
        if let Some(handler) = inside(container, name) {
            http_get(handler);
        }
    }
}

fn http_get(handler: &mut Value) {
    if let Some(get) = inside(handler, "httpGet") {
        default(get, "path", "/");
        default(get, "scheme", "HTTP");
    }
}

/// Image reference by the grammar of `distribution/reference`: name, tag, digest.
static IMAGE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let part = "(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])";
    let domain = format!(r"(?:(?:{part}(?:\.{part})*|\[(?:[a-fA-F0-9:]+)\])(?::[0-9]+)?/)?");
    let name = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*";
    let digest = "[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}";
    Regex::new(&format!(r"^{domain}{name}(?:/{name})*(?::(?<tag>[\w][\w.-]{{0,127}}))?(?<digest>@{digest})?$")).ok()
});

/// Default pull policy: `Always` for the explicit or implied tag `latest`. Invalid references imply no tag.
fn pull_policy(image: &str) -> &'static str {
    // 64 hexadecimal digits are an image ID, not a name.
    let identifier = image.len() == 64 && image.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let found = IMAGE.as_ref().filter(|_| !identifier).and_then(|form| form.captures(image));
    let Some(found) = found else { return "IfNotPresent" };
    match (found.name("tag").map(|tag| tag.as_str()), found.name("digest")) {
        (Some("latest"), _) | (None, None) => "Always",
        _ => "IfNotPresent",
    }
}

fn volume(volume: &mut Value) {
    let sources = volume
        .as_object()
        .map_or(0, |v| v.iter().filter(|(name, source)| *name != "name" && !source.is_null()).count());
    if sources == 0 {
        put(volume, "emptyDir", json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = inside(volume, source) {
            default(source, "defaultMode", 420);
        }
    }
    if let Some(source) = inside(volume, "downwardAPI") {
        each(source, "items", field_ref);
    }
    if let Some(projected) = inside(volume, "projected") {
        each(projected, "sources", |source| {
            if let Some(token) = inside(source, "serviceAccountToken") {
                default(token, "expirationSeconds", 3600);
            }
            if let Some(certificate) = inside(source, "podCertificate") {
                default(certificate, "maxExpirationSeconds", 86400);
            }
            if let Some(downward) = inside(source, "downwardAPI") {
                each(downward, "items", field_ref);
            }
        });
    }
    if let Some(path) = inside(volume, "hostPath") {
        default(path, "type", "");
    }
    if let Some(iscsi) = inside(volume, "iscsi") {
        default(iscsi, "iscsiInterface", "default");
    }
    if let Some(rbd) = inside(volume, "rbd") {
        rbd_source(rbd);
    }
    if let Some(disk) = inside(volume, "azureDisk") {
        azure_disk(disk);
    }
    if let Some(scale) = inside(volume, "scaleIO") {
        default(scale, "storageMode", "ThinProvisioned");
        default(scale, "fsType", "xfs");
    }
    if let Some(spec) = inside(volume, "ephemeral.volumeClaimTemplate.spec") {
        default(spec, "volumeMode", "Filesystem");
    }
    if is_set(volume, "image") {
        let pull = pull_policy(text(volume, "image.reference"));
        if let Some(image) = inside(volume, "image") {
            default(image, "pullPolicy", pull);
        }
    }
}

fn field_ref(item: &mut Value) {
    if let Some(field) = inside(item, "fieldRef") {
        default(field, "apiVersion", "v1");
    }
}

pub(super) fn rbd_source(rbd: &mut Value) {
    default(rbd, "pool", "rbd");
    default(rbd, "user", "admin");
    default(rbd, "keyring", "/etc/ceph/keyring");
}

pub(super) fn azure_disk(disk: &mut Value) {
    default(disk, "cachingMode", "ReadWrite");
    default(disk, "kind", "Shared");
    default(disk, "fsType", "ext4");
    default(disk, "readOnly", false);
}

/// The `status.qosClass` of a new pod.
pub(crate) fn qos_class(spec: &Value) -> &'static str {
    use crowsnest_apimachinery::quantity::Quantity;
    let amount = |container: &Value, kind: &str, name: &str| {
        let text = at(container, "resources").get(kind).and_then(|list| list.get(name)).and_then(Value::as_str);
        text.and_then(|text| Quantity::parse(text).ok()).filter(|quantity| !quantity.is_zero())
    };
    let pod_level = is_set(spec, "resources.requests") || is_set(spec, "resources.limits");
    let whole = json!({"resources": at(spec, "resources")});
    let containers: Vec<&Value> = if pod_level {
        vec![&whole]
    } else {
        ["containers", "initContainers"].iter().flat_map(|list| crate::object::items(spec, list)).collect()
    };
    let (mut any, mut guaranteed) = (false, true);
    for container in containers {
        for name in ["cpu", "memory"] {
            let (request, limit) = (amount(container, "requests", name), amount(container, "limits", name));
            any |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request.is_none_or(|request| Some(request) == limit);
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

//! Defaults of pods and pod templates.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Value, json};

use super::{at, at_mut, for_each_item, is_set, is_unset, set_default, set_field, text};
use crate::object::{fields, flag, number};

pub(crate) fn set_pod_defaults(object: &mut Value) {
    let Some(spec) = at_mut(object, "spec") else { return };
    for list in ["containers", "initContainers"] {
        for_each_item(spec, list, copy_limits_to_requests);
    }
    set_default(spec, "enableServiceLinks", true);
    if flag(spec, "hostNetwork") {
        for list in ["containers", "initContainers"] {
            for_each_item(spec, list, |container| {
                for_each_item(container, "ports", |port| {
                    if port.get("hostPort").and_then(Value::as_i64).unwrap_or(0) == 0 {
                        copy_port(port);
                    }
                });
            });
        }
    }
    if number(spec, "terminationGracePeriodSeconds").is_some_and(|seconds| seconds < 0) {
        set_field(spec, "terminationGracePeriodSeconds", 1);
    }
    set_pod_spec_defaults(spec);
}

fn copy_port(port: &mut Value) {
    if let Some(number) = port.get("containerPort").cloned() {
        set_field(port, "hostPort", number);
    }
}

fn copy_limits_to_requests(container: &mut Value) {
    let Some(resources) = at_mut(container, "resources") else { return };
    let limits = fields(resources, "limits").clone();
    if limits.is_empty() {
        return;
    }
    if !is_set(resources, "requests") {
        set_field(resources, "requests", json!({}));
    }
    if let Some(requests) = at_mut(resources, "requests") {
        for (name, amount) in limits {
            set_default(requests, &name, amount);
        }
    }
}

pub(crate) fn set_template_defaults(template: &mut Value) {
    if let Some(spec) = at_mut(template, "spec") {
        set_pod_spec_defaults(spec);
    }
}

fn set_pod_spec_defaults(spec: &mut Value) {
    set_default(spec, "dnsPolicy", "ClusterFirst");
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "terminationGracePeriodSeconds", 30);
    set_default(spec, "schedulerName", "default-scheduler");
    if !is_set(spec, "securityContext") {
        set_field(spec, "securityContext", json!({}));
    }
    // The deprecated field is kept equal to the current one.
    if is_unset(spec, "serviceAccountName") {
        let old = text(spec, "serviceAccount").to_owned();
        if !old.is_empty() {
            set_field(spec, "serviceAccountName", old);
        }
    } else {
        let name = text(spec, "serviceAccountName").to_owned();
        set_field(spec, "serviceAccount", name);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for_each_item(spec, list, set_container_defaults);
    }
    for_each_item(spec, "volumes", set_volume_defaults);
}

fn set_container_defaults(container: &mut Value) {
    let policy = pull_policy(text(container, "image"));
    set_default(container, "imagePullPolicy", policy);
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    for_each_item(container, "ports", |port| set_default(port, "protocol", "TCP"));
    for_each_item(container, "env", |env| {
        if let Some(field) = at_mut(env, "valueFrom.fieldRef") {
            set_default(field, "apiVersion", "v1");
        }
        if let Some(file) = at_mut(env, "valueFrom.fileKeyRef") {
            set_default(file, "optional", false);
        }
    });
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = at_mut(container, name) {
            for (field, default) in
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
            {
                if probe.get(field).and_then(Value::as_i64).unwrap_or(0) == 0 {
                    set_field(probe, field, default);
                }
            }
            if let Some(grpc) = at_mut(probe, "grpc") {
                set_default(grpc, "service", "");
            }
            set_http_get_defaults(probe);
        }
    }
    for name in ["lifecycle.postStart", "lifecycle.preStop"] {
        if let Some(handler) = at_mut(container, name) {
            set_http_get_defaults(handler);
        }
    }
}

fn set_http_get_defaults(handler: &mut Value) {
    if let Some(get) = at_mut(handler, "httpGet") {
        set_default(get, "path", "/");
        set_default(get, "scheme", "HTTP");
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
    let is_image_id = image.len() == 64 && image.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let found = IMAGE.as_ref().filter(|_| !is_image_id).and_then(|pattern| pattern.captures(image));
    let Some(found) = found else { return "IfNotPresent" };
    match (found.name("tag").map(|tag| tag.as_str()), found.name("digest")) {
        (Some("latest"), _) | (None, None) => "Always",
        _ => "IfNotPresent",
    }
}

fn set_volume_defaults(volume: &mut Value) {
    let sources = volume
        .as_object()
        .map_or(0, |v| v.iter().filter(|(name, source)| *name != "name" && !source.is_null()).count());
    if sources == 0 {
        set_field(volume, "emptyDir", json!({}));
    }
    for source in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = at_mut(volume, source) {
            set_default(source, "defaultMode", 420);
        }
    }
    if let Some(source) = at_mut(volume, "downwardAPI") {
        for_each_item(source, "items", set_field_ref_defaults);
    }
    if let Some(projected) = at_mut(volume, "projected") {
        for_each_item(projected, "sources", |source| {
            if let Some(token) = at_mut(source, "serviceAccountToken") {
                set_default(token, "expirationSeconds", 3600);
            }
            if let Some(certificate) = at_mut(source, "podCertificate") {
                set_default(certificate, "maxExpirationSeconds", 86400);
            }
            if let Some(downward) = at_mut(source, "downwardAPI") {
                for_each_item(downward, "items", set_field_ref_defaults);
            }
        });
    }
    set_shared_source_defaults(volume);
    if let Some(spec) = at_mut(volume, "ephemeral.volumeClaimTemplate.spec") {
        set_default(spec, "volumeMode", "Filesystem");
    }
    if is_set(volume, "image") {
        let policy = pull_policy(text(volume, "image.reference"));
        if let Some(image) = at_mut(volume, "image") {
            set_default(image, "pullPolicy", policy);
        }
    }
}

fn set_field_ref_defaults(item: &mut Value) {
    if let Some(field) = at_mut(item, "fieldRef") {
        set_default(field, "apiVersion", "v1");
    }
}

/// Sets the defaults of sources that pods and persistent volumes have in common.
pub(super) fn set_shared_source_defaults(volume: &mut Value) {
    if let Some(path) = at_mut(volume, "hostPath") {
        set_default(path, "type", "");
    }
    if let Some(iscsi) = at_mut(volume, "iscsi") {
        set_default(iscsi, "iscsiInterface", "default");
    }
    if let Some(rbd) = at_mut(volume, "rbd") {
        set_default(rbd, "pool", "rbd");
        set_default(rbd, "user", "admin");
        set_default(rbd, "keyring", "/etc/ceph/keyring");
    }
    if let Some(disk) = at_mut(volume, "azureDisk") {
        set_default(disk, "cachingMode", "ReadWrite");
        set_default(disk, "kind", "Shared");
        set_default(disk, "fsType", "ext4");
        set_default(disk, "readOnly", false);
    }
    if let Some(scale) = at_mut(volume, "scaleIO") {
        set_default(scale, "storageMode", "ThinProvisioned");
        set_default(scale, "fsType", "xfs");
    }
}

/// The `status.qosClass` of a new pod.
pub(crate) fn qos_class(spec: &Value) -> &'static str {
    use crowsnest_apimachinery::quantity::Quantity;
    let amount = |container: &Value, kind: &str, name: &str| {
        let text = at(container, "resources").get(kind).and_then(|list| list.get(name)).and_then(Value::as_str);
        text.and_then(|text| Quantity::parse(text).ok()).filter(|quantity| !quantity.is_zero())
    };
    let pod_level = is_set(spec, "resources.requests") || is_set(spec, "resources.limits");
    let pod_as_container = json!({"resources": at(spec, "resources")});
    let containers: Vec<&Value> = if pod_level {
        vec![&pod_as_container]
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

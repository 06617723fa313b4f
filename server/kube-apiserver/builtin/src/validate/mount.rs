//! Validation of a container's volume mounts and block devices. Has no side effects.

use std::collections::BTreeSet;

use super::{Errors, FieldError, Value, at, flag, is_set, items, json, text};

/// Names of a pod's volumes.
#[derive(Default)]
pub(super) struct Volumes {
    pub(super) names: BTreeSet<String>,
    /// Volumes that can be used as block devices.
    pub(super) claims: BTreeSet<String>,
    pub(super) images: BTreeSet<String>,
}

/// `validateLocalDescendingPath`.
pub(super) fn validate_local_descending_path(e: &mut Errors, path: &str, value: &str) {
    if value.starts_with('/') {
        e.invalid(path, &json!(value), "must be a relative path");
    }
    if has_parent_reference(value) {
        e.invalid(path, &json!(value), "must not contain '..'");
    }
}

/// True if a part of the path is `..`.
pub(super) fn has_parent_reference(value: &str) -> bool {
    value.split('/').any(|part| part == "..")
}

pub(super) fn validate_volume_mounts(e: &mut Errors, container: &Value, volumes: &Volumes, list: &str) {
    let devices = items(container, "volumeDevices");
    let mut points = BTreeSet::new();
    for (index, mount) in items(container, "volumeMounts").iter().enumerate() {
        let path = format!("{list}[{index}]");
        let (name, point) = (text(mount, "name"), text(mount, "mountPath"));
        if name.is_empty() {
            e.required(format!("{path}.name"), "");
        }
        if !volumes.names.contains(name) {
            e.push(FieldError::not_found(format!("{path}.name"), &json!(name)));
        }
        if point.is_empty() {
            e.required(format!("{path}.mountPath"), "");
        }
        if !points.insert(point) {
            e.invalid(format!("{path}.mountPath"), &json!(point), "must be unique");
        }
        if devices.iter().any(|device| text(device, "name") == name) {
            e.invalid(format!("{path}.name"), &json!(name), "must not already exist in volumeDevices");
        }
        if devices.iter().any(|device| text(device, "devicePath") == point) {
            e.invalid(format!("{path}.mountPath"), &json!(point), "must not already exist as a path in volumeDevices");
        }
        validate_sub_paths(e, mount, volumes.images.contains(name), list, &path);
        validate_mount_propagation(e, container, mount, list);
        validate_recursive_read_only(e, mount, &format!("{list}.recursiveReadOnly"));
    }
}

/// Validates sub paths. kube-apiserver reports some errors for the list instead of the mount.
fn validate_sub_paths(e: &mut Errors, mount: &Value, is_image: bool, list: &str, path: &str) {
    let (sub, expression) = (text(mount, "subPath"), text(mount, "subPathExpr"));
    if is_image {
        for (field, value) in [("subPath", sub), ("subPathExpr", expression)] {
            if !value.is_empty() {
                e.invalid(format!("{path}.{field}"), &json!(value), "not allowed in image volume sources");
            }
        }
    }
    validate_local_descending_path(e, &format!("{list}.subPath"), sub);
    if expression.is_empty() {
        return;
    }
    if !sub.is_empty() {
        e.invalid(format!("{path}.subPathExpr"), &json!(expression), "subPathExpr and subPath are mutually exclusive");
    }
    validate_local_descending_path(e, &format!("{list}.subPathExpr"), expression);
}

fn validate_mount_propagation(e: &mut Errors, container: &Value, mount: &Value, list: &str) {
    let (mode, path) = (at(mount, "mountPropagation"), format!("{list}.mountPropagation"));
    if mode.is_null() {
        return;
    }
    let supported = ["Bidirectional", "HostToContainer", "None"];
    if !supported.iter().any(|name| mode == name) {
        e.unsupported(&path, mode, &supported);
    }
    if mode == "Bidirectional" && !flag(container, "securityContext.privileged") {
        e.forbidden(path, "Bidirectional mount propagation is available only to privileged containers");
    }
}

fn validate_recursive_read_only(e: &mut Errors, mount: &Value, path: &str) {
    match text(mount, "recursiveReadOnly") {
        "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !flag(mount, "readOnly") {
                e.forbidden(path, "may only be specified when readOnly is true");
            }
            if is_set(mount, "mountPropagation") && text(mount, "mountPropagation") != "None" {
                e.forbidden(path, "may only be specified when mountPropagation is None or not specified");
            }
        }
        _ if !is_set(mount, "recursiveReadOnly") => {}
        other => e.unsupported(path, &json!(other), &["Disabled", "Enabled", "IfPossible"]),
    }
}

pub(super) fn validate_volume_devices(e: &mut Errors, container: &Value, volumes: &Volumes, list: &str) {
    let mounts = items(container, "volumeMounts");
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (index, device) in items(container, "volumeDevices").iter().enumerate() {
        let (name_field, path_field) = (format!("{list}[{index}].name"), format!("{list}[{index}].devicePath"));
        let (name, path) = (text(device, "name"), text(device, "devicePath"));
        let is_declared = volumes.names.contains(name);
        if name.is_empty() {
            e.required(&name_field, "");
        }
        if names.contains(name) {
            e.invalid(&name_field, &json!(name), "must be unique");
        }
        if is_declared && !volumes.claims.contains(name) {
            let reason = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
            e.invalid(&name_field, &json!(name), reason);
        }
        if !is_declared {
            e.push(FieldError::not_found(&name_field, &json!(name)));
        }
        if path.is_empty() {
            e.required(&path_field, "");
        }
        if paths.contains(path) {
            e.invalid(&path_field, &json!(path), "must be unique");
        }
        if has_parent_reference(path) {
            e.invalid(&path_field, &json!(path), "can not contain backsteps ('..')");
        } else {
            paths.insert(path);
        }
        if mounts.iter().any(|mount| text(mount, "name") == name) {
            e.invalid(&name_field, &json!(name), "must not already exist in volumeMounts");
        }
        if mounts.iter().any(|mount| text(mount, "mountPath") == path) {
            e.invalid(&path_field, &json!(path), "must not already exist as a path in volumeMounts");
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}

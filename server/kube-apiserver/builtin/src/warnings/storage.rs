//! Warnings for volumes, claims and storage classes.

use crowsnest_apimachinery::quantity::Quantity;
use serde_json::Value;

use super::super::object::{are_equal, at, fields, is_unset, items, text};
use super::labels;

/// Annotations that have been replaced by fields.
const DEPRECATED_ANNOTATIONS: [(&str, &str); 2] = [
    ("volume.beta.kubernetes.io/storage-class", "deprecated since v1.8; use \"storageClassName\" attribute instead"),
    ("volume.beta.kubernetes.io/mount-options", "deprecated since v1.31; use \"mountOptions\" attribute instead"),
];
/// Sources of persistent volumes that are no longer supported.
const REMOVED_SOURCES: [(&str, &str); 6] = [
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Warning for a fractional number of bytes.
pub(super) fn fraction_warning(amounts: &Value, name: &str, path: &str) -> Option<String> {
    let amount = Quantity::parse(amounts.get(name)?.as_str()?).ok()?;
    (amount.milli_value() % 1000 != 0)
        .then(|| format!("{path}[{name}]: fractional byte value \"{amount}\" is invalid, must be an integer"))
}

/// Warnings for the resources of a claim.
pub(super) fn resource_warnings(spec: &Value, path: &str) -> Vec<String> {
    ["requests", "limits"]
        .iter()
        .filter_map(|kind| {
            fraction_warning(at(spec, &format!("resources.{kind}")), "storage", &format!("{path}.resources.{kind}"))
        })
        .collect()
}

fn annotation_warning(new: &Value, (key, message): (&str, &str)) -> Option<String> {
    fields(new, "metadata.annotations").contains_key(key).then(|| format!("metadata.annotations[{key}]: {message}"))
}

pub(super) fn claim_warnings(new: &Value) -> Vec<String> {
    let mut out: Vec<String> = annotation_warning(new, DEPRECATED_ANNOTATIONS[0]).into_iter().collect();
    out.extend(resource_warnings(at(new, "spec"), "spec"));
    out
}

pub(super) fn volume_warnings(new: &Value) -> Vec<String> {
    let mut out: Vec<String> =
        DEPRECATED_ANNOTATIONS.iter().filter_map(|annotation| annotation_warning(new, *annotation)).collect();
    let spec = at(new, "spec");
    if text(spec, "persistentVolumeReclaimPolicy") == "Recycle" {
        out.push("spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.".into());
    }
    for (index, term) in items(spec, "nodeAffinity.required.nodeSelectorTerms").iter().enumerate() {
        let path = format!("spec.nodeAffinity.required.nodeSelectorTerms[{index}]");
        out.extend(labels::requirement_warnings(term, &path, false));
    }
    let removed = REMOVED_SOURCES.iter().filter(|(source, _)| !is_unset(spec, source));
    out.extend(removed.map(|(source, message)| {
        let field = if *source == "storageos" { "storageOS" } else { source };
        format!("spec.{field}: {message}")
    }));
    out
}

pub(super) fn storage_group_warnings(kind: &str, old: Option<&Value>, new: &Value) -> Vec<String> {
    match kind {
        "StorageClass" => {
            let topologies = items(new, "allowedTopologies").iter().enumerate();
            let warnings = topologies.flat_map(|(index, topology)| {
                let expressions = items(topology, "matchLabelExpressions").iter().enumerate();
                expressions.filter_map(move |(position, expression)| {
                    let message = labels::deprecation_message(text(expression, "key"))?;
                    Some(format!("allowedTopologies[{index}].matchLabelExpressions[{position}].key: {message}"))
                })
            });
            warnings.collect()
        }
        "CSIStorageCapacity" => {
            let topology = at(new, "nodeTopology");
            let mut out = labels::requirement_warnings(topology, "nodeTopology", false);
            out.extend(labels::selector_warnings(topology, "matchLabels", |message, key| {
                format!("nodeTopology.matchLabels.{key}: {message}")
            }));
            out
        }
        "CSIDriver" => {
            let token_requests = at(new, "spec.tokenRequests");
            let changed = old.is_none_or(|old| !are_equal(at(old, "spec.tokenRequests"), token_requests));
            let is_insecure = changed
                && !items(new, "spec.tokenRequests").is_empty()
                && is_unset(new, "spec.serviceAccountTokenInSecrets");
            is_insecure.then(|| "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes".to_owned()).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

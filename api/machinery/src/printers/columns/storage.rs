//! Columns of volumes, claims and storage drivers.

use serde_json::Value;

use super::ColumnDescription::{Field, Text};
use super::fields::{self, UNSET, flag, list, text};
use super::{AGE, Column, KindPrinter, NAME};
use crate::printers::Cell;

const STORAGE: &str = "storage.k8s.io";
/// JSON pointer.
const CLASS_ANNOTATION: &str = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";

pub(super) const KINDS: &[KindPrinter] = &[
    KindPrinter::new(
        "",
        "PersistentVolume",
        &[
            NAME,
            Column::text("Capacity", Field("api.core.v1.PersistentVolumeSpec", "capacity")),
            Column::text("Access Modes", Field("api.core.v1.PersistentVolumeSpec", "accessModes")),
            Column::text("Reclaim Policy", Field("api.core.v1.PersistentVolumeSpec", "persistentVolumeReclaimPolicy")),
            Column::text("Status", Field("api.core.v1.PersistentVolumeStatus", "phase")),
            Column::text("Claim", Field("api.core.v1.PersistentVolumeSpec", "claimRef")),
            Column::text("StorageClass", Text("StorageClass of the pv")),
            Column::text("VolumeAttributesClass", Text("VolumeAttributesClass of the pv")),
            Column::text("Reason", Field("api.core.v1.PersistentVolumeStatus", "reason")),
            AGE,
            Column::text("VolumeMode", Field("api.core.v1.PersistentVolumeSpec", "volumeMode")).wide(),
        ],
        volume,
    ),
    KindPrinter::new(
        "",
        "PersistentVolumeClaim",
        &[
            NAME,
            Column::text("Status", Field("api.core.v1.PersistentVolumeClaimStatus", "phase")),
            Column::text("Volume", Field("api.core.v1.PersistentVolumeClaimSpec", "volumeName")),
            Column::text("Capacity", Field("api.core.v1.PersistentVolumeClaimStatus", "capacity")),
            Column::text("Access Modes", Field("api.core.v1.PersistentVolumeClaimStatus", "accessModes")),
            Column::text("StorageClass", Text("StorageClass of the pvc")),
            Column::text("VolumeAttributesClass", Text("VolumeAttributesClass of the pvc")),
            AGE,
            Column::text("VolumeMode", Field("api.core.v1.PersistentVolumeClaimSpec", "volumeMode")).wide(),
        ],
        claim,
    ),
    KindPrinter::new(
        STORAGE,
        "StorageClass",
        &[
            NAME,
            Column::text("Provisioner", Field("api.storage.v1.StorageClass", "provisioner")),
            Column::text("ReclaimPolicy", Field("api.storage.v1.StorageClass", "reclaimPolicy")),
            Column::text("VolumeBindingMode", Field("api.storage.v1.StorageClass", "volumeBindingMode")),
            Column::text("AllowVolumeExpansion", Field("api.storage.v1.StorageClass", "allowVolumeExpansion")),
            AGE,
        ],
        |o| {
            let is_default =
                ["storageclass.kubernetes.io~1is-default-class", "storageclass.beta.kubernetes.io~1is-default-class"]
                    .iter()
                    .any(|a| text(o, &format!("/metadata/annotations/{a}")) == "true");
            let name = text(o, "/metadata/name");
            vec![
                Cell::from(if is_default { format!("{name} (default)") } else { name.to_owned() }),
                Cell::from(text(o, "/provisioner")),
                fields::text_or(o, "/reclaimPolicy", "Delete"),
                fields::text_or(o, "/volumeBindingMode", "Immediate"),
                Cell::from(flag(o, "/allowVolumeExpansion")),
                fields::age(o),
            ]
        },
    ),
    KindPrinter::new(
        STORAGE,
        "VolumeAttributesClass",
        &[NAME, Column::text("DriverName", Field("api.storage.v1.VolumeAttributesClass", "driverName")), AGE],
        |o| {
            let is_default = text(o, "/metadata/annotations/storage.alpha.kubernetes.io~1is-default-class") == "true";
            let name = text(o, "/metadata/name");
            let name = if is_default { format!("{name} (default)") } else { name.to_owned() };
            vec![Cell::from(name), Cell::from(text(o, "/driverName")), fields::age(o)]
        },
    ),
    KindPrinter::new(
        STORAGE,
        "VolumeAttachment",
        &[
            NAME,
            Column {
                format: "name",
                ..Column::text("Attacher", Field("api.storage.v1.VolumeAttachmentSpec", "attacher"))
            },
            Column::text("PV", Field("api.storage.v1.VolumeAttachmentSource", "persistentVolumeName")),
            Column::text("Node", Field("api.storage.v1.VolumeAttachmentSpec", "nodeName")),
            Column::boolean("Attached", Field("api.storage.v1.VolumeAttachmentStatus", "attached")),
            AGE,
        ],
        |o| {
            vec![
                fields::name(o),
                Cell::from(text(o, "/spec/attacher")),
                Cell::from(text(o, "/spec/source/persistentVolumeName")),
                Cell::from(text(o, "/spec/nodeName")),
                Cell::from(flag(o, "/status/attached")),
                fields::age(o),
            ]
        },
    ),
    KindPrinter::new(
        STORAGE,
        "CSIDriver",
        &[
            NAME,
            Column::boolean("AttachRequired", Field("api.storage.v1.CSIDriverSpec", "attachRequired")),
            Column::boolean("PodInfoOnMount", Field("api.storage.v1.CSIDriverSpec", "podInfoOnMount")),
            Column::boolean("StorageCapacity", Field("api.storage.v1.CSIDriverSpec", "storageCapacity")),
            Column::text("TokenRequests", Field("api.storage.v1.CSIDriverSpec", "tokenRequests")),
            Column::boolean("RequiresRepublish", Field("api.storage.v1.CSIDriverSpec", "requiresRepublish")),
            Column::text("Modes", Field("api.storage.v1.CSIDriverSpec", "volumeLifecycleModes")),
            AGE,
        ],
        csi_driver,
    ),
    KindPrinter::new(
        STORAGE,
        "CSINode",
        &[
            NAME,
            Column::number("Drivers", Text("Drivers indicates the number of CSI drivers registered on the node")),
            AGE,
        ],
        |o| vec![fields::name(o), Cell::from(list(o, "/spec/drivers").len()), fields::age(o)],
    ),
];

/// Distinct access modes in the order `RWO,ROX,RWX,RWOP`.
fn access_modes(modes: &[Value]) -> String {
    [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")]
        .iter()
        .filter(|(mode, _)| modes.iter().any(|m| m == mode))
        .map(|(_, short)| *short)
        .collect::<Vec<_>>()
        .join(",")
}

/// The class of a volume or claim; the beta annotation has precedence, as in kube-apiserver.
fn storage_class(o: &Value) -> Cell {
    match text(o, CLASS_ANNOTATION) {
        "" => Cell::from(text(o, "/spec/storageClassName")),
        class => Cell::from(class),
    }
}

fn phase(o: &Value) -> Cell {
    let is_terminating = o.pointer("/metadata/deletionTimestamp").is_some();
    Cell::from(if is_terminating { "Terminating" } else { text(o, "/status/phase") })
}

fn volume(o: &Value) -> Vec<Cell> {
    let claim = match (text(o, "/spec/claimRef/namespace"), text(o, "/spec/claimRef/name")) {
        ("", "") => String::new(),
        (namespace, name) => format!("{namespace}/{name}"),
    };
    vec![
        fields::name(o),
        Cell::from(text(o, "/spec/capacity/storage")),
        Cell::from(access_modes(list(o, "/spec/accessModes"))),
        Cell::from(text(o, "/spec/persistentVolumeReclaimPolicy")),
        phase(o),
        Cell::from(claim),
        storage_class(o),
        fields::text_or(o, "/spec/volumeAttributesClassName", UNSET),
        Cell::from(text(o, "/status/reason")),
        fields::age(o),
        fields::text_or(o, "/spec/volumeMode", UNSET),
    ]
}

fn claim(o: &Value) -> Vec<Cell> {
    let is_bound = !text(o, "/spec/volumeName").is_empty();
    let (capacity, modes) = if is_bound {
        (text(o, "/status/capacity/storage"), access_modes(list(o, "/status/accessModes")))
    } else {
        ("", String::new())
    };
    vec![
        fields::name(o),
        phase(o),
        Cell::from(text(o, "/spec/volumeName")),
        Cell::from(capacity),
        Cell::from(modes),
        storage_class(o),
        fields::text_or(o, "/spec/volumeAttributesClassName", UNSET),
        fields::age(o),
        fields::text_or(o, "/spec/volumeMode", UNSET),
    ]
}

fn csi_driver(o: &Value) -> Vec<Cell> {
    let default_true = |pointer: &str| Cell::from(o.pointer(pointer).and_then(Value::as_bool).unwrap_or(true));
    let modes: Vec<&str> = list(o, "/spec/volumeLifecycleModes").iter().filter_map(Value::as_str).collect();
    let tokens: Vec<&str> = list(o, "/spec/tokenRequests").iter().map(|t| text(t, "/audience")).collect();
    vec![
        fields::name(o),
        default_true("/spec/attachRequired"),
        Cell::from(flag(o, "/spec/podInfoOnMount")),
        Cell::from(flag(o, "/spec/storageCapacity")),
        Cell::from(if tokens.is_empty() { UNSET.to_owned() } else { tokens.join(",") }),
        Cell::from(flag(o, "/spec/requiresRepublish")),
        Cell::from(if modes.is_empty() { fields::NONE.to_owned() } else { modes.join(",") }),
        fields::age(o),
    ]
}

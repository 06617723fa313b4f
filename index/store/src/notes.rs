//! SQL of notes and facts, shared by the backends. A note is a text that a controller stores about an object,
//! independent of the object's record. A fact is a named value about the database itself.

use crate::record::RecordKey;
use crowsnest_apimachinery::names::{ClusterName, Gvr};

pub(super) const LIST: &str = "SELECT cluster, \"group\", version, resource, namespace, name, note FROM notes";
pub(super) const PUT: &str = "INSERT INTO notes (cluster, \"group\", version, resource, namespace, name, note) \
    VALUES ($1, $2, $3, $4, $5, $6, $7) \
    ON CONFLICT (cluster, \"group\", version, resource, namespace, name) DO UPDATE SET note = excluded.note";
pub(super) const DELETE: &str = "DELETE FROM notes WHERE cluster = $1 AND \"group\" = $2 AND version = $3 \
    AND resource = $4 AND namespace = $5 AND name = $6";
pub(super) const DELETE_CLUSTER: &str = "DELETE FROM notes WHERE cluster = $1";

/// Facts whose names begin with $1.
pub(super) const LIST_FACTS: &str =
    "SELECT name, value FROM facts WHERE substr(name, 1, length($1)) = $1 ORDER BY name";
pub(super) const PUT_FACT: &str = "INSERT INTO facts (name, value) VALUES ($1, $2) \
    ON CONFLICT (name) DO UPDATE SET value = excluded.value";
pub(super) const DELETE_FACT: &str = "DELETE FROM facts WHERE name = $1";

/// The first six parameters of [`PUT`], which identify the object.
pub(super) fn key_columns(key: &RecordKey) -> [&str; 6] {
    let gvr = key.resource();
    [key.cluster().as_str(), &gvr.group, &gvr.version, &gvr.resource, &key.namespace, &key.name]
}

/// Decodes the object and the note from a row of [`LIST`]; `None` if the cluster name is invalid.
pub(super) fn decode_note(columns: [String; 7]) -> Option<(RecordKey, String)> {
    let [cluster, group, version, resource, namespace, name, note] = columns;
    let cluster = ClusterName::parse(&cluster).ok()?;
    Some((RecordKey::new(cluster, Gvr::new(&group, &version, &resource), &namespace, &name), note))
}

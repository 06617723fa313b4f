//! Translates names between the public groups and the internal group, in objects, lists, tables and Statuses. Has no
//! side effects.

use crowsnest_api::constants::annotation::{MIGRATED_CREATED, MIGRATED_UID};
use serde_json::Value;

use super::{STORAGE_GROUP, StoredGroup};

/// Fields that a migrated object keeps, with the annotations that record them.
pub(super) const MIGRATED_FIELDS: [(&str, &str); 2] = [("uid", MIGRATED_UID), ("creationTimestamp", MIGRATED_CREATED)];

pub(super) fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("annotations")?.get(key)?.as_str()
}

impl StoredGroup {
    /// Renames group and kind in a response: an object, a list, a table or a Status.
    pub fn translate_response(self, value: &mut Value) {
        if value.get("kind").and_then(Value::as_str) == Some("Status") {
            self.translate_status(value);
            return;
        }
        self.translate_object(value);
        for list in ["items", "rows"] {
            for item in value.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                let object = if list == "rows" { item.get_mut("object") } else { Some(item) };
                if let Some(object) = object {
                    self.translate_object(object);
                }
            }
        }
    }

    /// Translates one object, with the UID and creation time that it had before a migration.
    fn translate_object(self, object: &mut Value) {
        self.to_public().rename_in_object(object);
        for (field, key) in MIGRATED_FIELDS {
            if let Some(value) = annotation(object, key).map(Value::from) {
                object["metadata"][field] = value;
            }
        }
    }

    fn translate_status(self, status: &mut Value) {
        if let Some(message) = status.get("message").and_then(Value::as_str) {
            let text = self.kind.public_text(message);
            // The webhook is part of this server, so its name is not part of the response.
            let text = match text.split_once(" denied the request: ") {
                Some((webhook, rest)) if webhook.starts_with("admission webhook ") => rest.to_owned(),
                _ => text,
            };
            status["message"] = text.into();
        }
        if status.pointer("/details/group").and_then(Value::as_str) == Some(STORAGE_GROUP) {
            status["details"]["group"] = self.kind.group.into();
            // `details.kind` is the plural, except for an invalid object: then it is the kind.
            if let Some(kind) =
                status.pointer("/details/kind").and_then(Value::as_str).map(|k| self.kind.public_text(k))
            {
                status["details"]["kind"] = kind.into();
            }
        }
    }

    pub(super) fn to_stored(self) -> NameTranslation {
        NameTranslation { group: (self.kind.group, STORAGE_GROUP), kind: (self.kind.kind, self.kind.stored_kind) }
    }

    fn to_public(self) -> NameTranslation {
        NameTranslation { group: (STORAGE_GROUP, self.kind.group), kind: (self.kind.stored_kind, self.kind.kind) }
    }
}

/// Group and kind before and after a translation between the stored and the public form, as `(from, to)`.
pub(super) struct NameTranslation {
    group: (&'static str, &'static str),
    kind: (&'static str, &'static str),
}

impl NameTranslation {
    /// Renames group and kind in an object and the group in its managed fields.
    pub(super) fn rename_in_object(&self, object: &mut Value) {
        if let Some(version) = object.get_mut("apiVersion") {
            self.rename_version(version);
        }
        if let Some(kind) = object.get_mut("kind") {
            self.rename_kind(kind);
        }
        let managed = object.pointer_mut("/metadata/managedFields").and_then(Value::as_array_mut);
        for entry in managed.into_iter().flatten() {
            if let Some(version) = entry.get_mut("apiVersion") {
                self.rename_version(version);
            }
        }
    }

    fn rename_version(&self, version: &mut Value) {
        let (from, to) = self.group;
        if let Some(rest) = version.as_str().and_then(|v| v.strip_prefix(from)).and_then(|r| r.strip_prefix('/')) {
            *version = format!("{to}/{rest}").into();
        }
    }

    /// Renames a kind, or the kind of its list.
    fn rename_kind(&self, kind: &mut Value) {
        let (from, to) = self.kind;
        match kind.as_str().and_then(|kind| kind.strip_prefix(from)) {
            Some("") => *kind = to.into(),
            Some("List") => *kind = format!("{to}List").into(),
            _ => {}
        }
    }
}

/// Renames group and kind in the values of a JSON patch.
pub(super) fn rename_operands(patch: &mut Value, translation: &NameTranslation) {
    for operation in patch.as_array_mut().into_iter().flatten() {
        let path = operation.get("path").and_then(Value::as_str).unwrap_or_default().to_owned();
        match (path.as_str(), operation.get_mut("value")) {
            ("", Some(object)) => translation.rename_in_object(object),
            ("/apiVersion", Some(version)) => translation.rename_version(version),
            ("/kind", Some(kind)) => translation.rename_kind(kind),
            _ => {}
        }
    }
}

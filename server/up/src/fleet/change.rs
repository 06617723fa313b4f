//! Determines whether `up` writes the shape of a member to its Cluster, and which fields of an earlier shape it
//! removes.

use crowsnest_api::cluster::Cluster;
use serde_json::{Map, Value, json};

use super::MemberShape;

/// Shape of a member at the last start and now.
#[derive(Debug, Clone)]
pub(crate) struct ShapeChange {
    /// True if `--members` states settings for this member.
    pub(crate) is_requested: bool,
    /// `None` if the data directory records no shape.
    pub(crate) before: Option<MemberShape>,
    pub(crate) after: MemberShape,
}

impl ShapeChange {
    /// True if the Cluster must be written. The default shape does not change a Cluster that has a location.
    pub(crate) fn requires_write(&self, existing: Option<&Cluster>) -> bool {
        let has_location = |cluster: &Cluster| {
            let spec = &cluster.spec;
            !spec.provider.is_empty() || !spec.region.is_empty() || !spec.zones.is_empty()
        };
        match &self.before {
            Some(before) => {
                let written_fields = |shape: &MemberShape| {
                    (shape.provider.clone(), shape.region.clone(), shape.zones.clone(), shape.labels.clone())
                };
                existing.is_none() || written_fields(before) != written_fields(&self.after)
            }
            None => self.is_requested || !existing.is_some_and(has_location),
        }
    }

    /// Merge patch that removes from the Cluster what only the earlier shape had.
    pub(crate) fn removal_patch(&self) -> Option<Value> {
        let before = self.before.as_ref()?;
        let mut spec = Map::new();
        let mut remove = |field: &str, is_removed: bool| {
            if is_removed {
                spec.insert(field.to_owned(), Value::Null);
            }
        };
        remove("provider", !before.provider.is_empty() && self.after.provider.is_empty());
        remove("region", !before.region.is_empty() && self.after.region.is_empty());
        remove("zones", !before.zones.is_empty() && self.after.zones.is_empty());
        let labels = before.labels.keys().filter(|key| !self.after.labels.contains_key(*key));
        let labels: Map<String, Value> = labels.map(|key| (key.clone(), Value::Null)).collect();
        (!spec.is_empty() || !labels.is_empty()).then(|| json!({"metadata": {"labels": labels}, "spec": spec}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_written_when_the_shape_changes() {
        let default = MemberShape::default_for_index(0);
        let without_region = MemberShape { region: String::new(), ..default.clone() };
        let change = |is_requested, before: Option<&MemberShape>, after: &MemberShape| ShapeChange {
            is_requested,
            before: before.cloned(),
            after: after.clone(),
        };
        let mut placed = Cluster::default();
        placed.spec.region = "eu".into();
        let bare = Cluster::default();
        let cases = [
            (change(false, None, &default), None, true),
            (change(false, None, &default), Some(&bare), true),
            (change(false, None, &default), Some(&placed), false),
            (change(true, None, &default), Some(&placed), true),
            (change(true, Some(&default), &default), Some(&placed), false),
            (change(true, Some(&default), &default), None, true),
            (change(true, Some(&default), &without_region), Some(&placed), true),
        ];
        for (number, (change, existing, expected)) in cases.into_iter().enumerate() {
            assert_eq!(change.requires_write(existing), expected, "case {number}");
        }
        let patch = change(true, Some(&default), &without_region).removal_patch();
        assert_eq!(patch, Some(json!({"metadata": {"labels": {}}, "spec": {"region": null}})));
        assert_eq!(change(true, Some(&default), &default).removal_patch(), None);
    }
}

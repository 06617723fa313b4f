//! `metadata.managedFields`: decoding, ordering and encoding of entries.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::path::FieldSet;

/// Maximum number of update managers; the oldest ones are merged into one entry per version.
const MAX_UPDATE_MANAGERS: usize = 10;
/// Manager of the merged entries.
const OLD_UPDATES_MANAGER: &str = "ancient-changes";

/// An entry of `metadata.managedFields`: a manager and the fields that it owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerEntry {
    pub manager: String,
    /// True for `Apply`, false for `Update`.
    pub is_apply: bool,
    pub api_version: String,
    pub subresource: String,
    /// RFC 3339 as stored.
    pub time: Option<String>,
    pub fields: FieldSet,
}

/// Identity of a manager: its entry without time and fields, as in `BuildManagerIdentifier` of k8s.io/apimachinery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ManagerId<'a> {
    manager: &'a str,
    /// Version of an update; `None` for an apply, whose manager is the same in all versions.
    update_version: Option<&'a str>,
    subresource: &'a str,
}

impl ManagerEntry {
    pub fn manager_id(&self) -> ManagerId<'_> {
        ManagerId {
            manager: &self.manager,
            update_version: (!self.is_apply).then_some(self.api_version.as_str()),
            subresource: &self.subresource,
        }
    }

    /// True for the entry into which older updates of its version were merged.
    fn contains_old_updates(&self) -> bool {
        !self.is_apply && self.manager == OLD_UPDATES_MANAGER && self.subresource.is_empty()
    }

    /// Turns this entry into that of the old updates of its version, and adds a newer update to it.
    fn merge_update(&mut self, newer: ManagerEntry) {
        OLD_UPDATES_MANAGER.clone_into(&mut self.manager);
        self.subresource.clear();
        self.fields.add_all(&newer.fields);
        self.time = self.time.take().max(newer.time);
    }

    /// Describes the manager as in conflict errors.
    pub fn describe(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(" with subresource {:?}", self.subresource));
        }
        if !self.is_apply {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }

    fn decode(value: &Value) -> Option<ManagerEntry> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_apply = match text("operation").as_str() {
            "Apply" => true,
            "Update" => false,
            _ => return None,
        };
        if text("apiVersion").is_empty() || text("fieldsType") != "FieldsV1" {
            return None;
        }
        Some(ManagerEntry {
            manager: text("manager"),
            is_apply,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: value.get("time").and_then(Value::as_str).map(str::to_owned),
            fields: value.get("fieldsV1").map_or_else(|| Some(FieldSet::default()), FieldSet::parse)?,
        })
    }

    fn encode(&self) -> Value {
        let mut out = json!({
            "apiVersion": self.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.encode(),
            "operation": if self.is_apply { "Apply" } else { "Update" },
        });
        if !self.manager.is_empty() {
            out["manager"] = json!(self.manager);
        }
        if !self.subresource.is_empty() {
            out["subresource"] = json!(self.subresource);
        }
        if let Some(time) = &self.time {
            out["time"] = json!(time);
        }
        out
    }
}

fn managed_fields(object: &Value) -> Option<&Vec<Value>> {
    object.get("metadata")?.get("managedFields")?.as_array()
}

/// Decodes the entries of an object; `None` if they are malformed.
pub fn decode(object: &Value) -> Option<Vec<ManagerEntry>> {
    let Some(list) = managed_fields(object) else { return Some(Vec::new()) };
    if is_reset(object) {
        return Some(Vec::new());
    }
    list.iter().map(ManagerEntry::decode).collect()
}

/// True for `managedFields: []` or `[{}]`, which resets all managers.
pub fn is_reset(object: &Value) -> bool {
    managed_fields(object).is_some_and(|list| {
        list.is_empty()
            || list.len() == 1
                && list[0]
                    .as_object()
                    .is_some_and(|entry| entry.values().all(|v| v.is_null() || v == "" || v == &json!({})))
    })
}

/// Entries before a write: those of the new object if it contains any, otherwise the live ones.
pub fn initial_entries(old: Option<&Value>, new: &Value, subresource: &str) -> Vec<ManagerEntry> {
    let live = || old.and_then(decode).unwrap_or_default();
    if !subresource.is_empty() {
        return live();
    }
    if is_reset(new) {
        return Vec::new();
    }
    match decode(new) {
        Some(entries) if !entries.is_empty() => entries,
        _ => live(),
    }
}

/// Encodes the entries after a create or an update, and limits the number of update managers. As in kube-apiserver, the
/// number is not limited after an apply or a write of the scale, which use [`encode`].
pub fn encode_capped(object: &mut Value, mut entries: Vec<ManagerEntry>) {
    cap_update_managers(&mut entries);
    encode(object, entries);
}

/// Encodes the entries in order: apply first, then by time, name, version and subresource.
pub fn encode(object: &mut Value, mut entries: Vec<ManagerEntry>) {
    fn order(entry: &ManagerEntry) -> impl Ord + '_ {
        (!entry.is_apply, &entry.time, &entry.manager, &entry.api_version, &entry.subresource)
    }
    entries.sort_by(|a, b| order(a).cmp(&order(b)));
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    if entries.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".into(), Value::Array(entries.iter().map(ManagerEntry::encode).collect()));
    }
}

/// Merges the oldest update entries per version until at most [`MAX_UPDATE_MANAGERS`] remain, as `capManagersManager` of
/// k8s.io/apimachinery. More can remain, because an old entry is kept if no other has its version. Takes time
/// `n log n`, because clients can send thousands of entries.
fn cap_update_managers(entries: &mut Vec<ManagerEntry>) {
    let updates = entries.iter().filter(|entry| !entry.is_apply).count();
    let mut excess = updates.saturating_sub(MAX_UPDATE_MANAGERS);
    if excess == 0 {
        return;
    }
    // Equal times are in the order of kube-apiserver's identifiers, JSON texts without empty members. Unlike in
    // kube-apiserver, an entry of merged updates precedes all others whatever its time: kube-apiserver loses the fields
    // of such an entry if it follows an older one.
    fn order(entry: &ManagerEntry) -> impl Ord + '_ {
        let ManagerEntry { manager, api_version, subresource, .. } = entry;
        let id = (manager.is_empty(), manager, api_version, subresource.is_empty(), subresource);
        (!entry.contains_old_updates(), &entry.time, id)
    }
    let (mut updates, mut kept): (Vec<_>, Vec<_>) = std::mem::take(entries).into_iter().partition(|e| !e.is_apply);
    updates.sort_by(|a, b| order(a).cmp(&order(b)));
    let mut oldest_by_version: HashMap<String, usize> = HashMap::new();
    for entry in updates {
        if excess == 0 {
            kept.push(entry);
        } else if let Some(&oldest) = oldest_by_version.get(&entry.api_version) {
            kept[oldest].merge_update(entry);
            excess -= 1;
        } else {
            oldest_by_version.insert(entry.api_version.clone(), kept.len());
            kept.push(entry);
        }
    }
    *entries = kept;
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Parses an entry from `manager version second`. The suffix `/Apply` of the manager marks an apply, `@subresource` a
    /// subresource. The entry owns one field, which has the name of the manager.
    fn entry(text: &str) -> ManagerEntry {
        let [manager, version, second] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
        let (manager, operation) = manager.split_once('/').unwrap_or((manager, "Update"));
        let (manager, subresource) = manager.split_once('@').unwrap_or((manager, ""));
        let mut fields = FieldSet::default();
        fields.insert_fields(&[manager]);
        ManagerEntry {
            manager: manager.to_owned(),
            is_apply: operation == "Apply",
            api_version: version.to_owned(),
            subresource: subresource.to_owned(),
            time: Some(format!("2026-01-01T00:00:{second}Z")),
            fields,
        }
    }

    /// Describes entries as `manager version second fields`.
    fn describe(entries: &[ManagerEntry]) -> Vec<String> {
        let describe = |entry: &ManagerEntry| {
            let time = entry.time.as_deref().unwrap_or_default();
            let second = time.trim_start_matches("2026-01-01T00:00:").trim_end_matches('Z');
            let at = if entry.subresource.is_empty() { "" } else { "@" };
            let ManagerEntry { manager, subresource, api_version, fields, .. } = entry;
            format!("{manager}{at}{subresource} {api_version} {second} {}", fields.paths().concat())
        };
        entries.iter().map(describe).collect()
    }

    /// The managedFields of an object after an update with these entries.
    fn encoded(entries: Vec<ManagerEntry>) -> Vec<ManagerEntry> {
        let mut object = json!({"metadata": {}});
        encode_capped(&mut object, entries);
        decode(&object).unwrap()
    }

    /// Updates by `m10`, `m11`, … in `v1`, which are newer than the entries of a case.
    fn newer_updates(count: usize) -> impl Iterator<Item = ManagerEntry> {
        (10..10 + count).map(|second| entry(&format!("m{second} v1 {second}")))
    }

    /// Each case adds `newer` updates to its entries. The last of them remain unchanged.
    #[rstest]
    #[case::few(&["a v1 01", "b v1 02"], 8, &["a v1 01 .a", "b v1 02 .b"], 8)]
    #[case::one_version(&["a v1 01", "b v1 02"], 9, &["ancient-changes v1 02 .a.b"], 9)]
    #[case::unordered(&["b v1 02", "a v1 01", "c v1 03"], 9, &["ancient-changes v1 03 .a.b.c"], 9)]
    #[case::several_versions(&["a v1 01", "b v2 02", "c v2 03", "d v1 04"], 8,
        &["ancient-changes v2 03 .b.c", "ancient-changes v1 04 .a.d"], 8)]
    #[case::one_of_its_version(&["a v2 01", "b v1 02", "c v1 03"], 8, &["a v2 01 .a", "ancient-changes v1 03 .b.c"], 8)]
    #[case::none_of_the_same_version(&["a v2 01", "b v3 02"], 9,
        &["a v2 01 .a", "b v3 02 .b", "ancient-changes v1 11 .m10.m11"], 7)]
    #[case::merged_before(&["ancient-changes v1 01", "a v1 02"], 9, &["ancient-changes v1 02 .a.ancient-changes"], 9)]
    #[case::merged_into_an_entry_of_the_same_second(&["ancient-changes v1 02", "a v1 02"], 9,
        &["ancient-changes v1 02 .a.ancient-changes"], 9)]
    #[case::appliers(&["a/Apply v1 01", "b/Apply v1 02"], 10, &["a v1 01 .a", "b v1 02 .b"], 10)]
    #[case::subresource_first(&["a v1 01", "a@status v1 01", "o v1 00"], 8,
        &["a v1 01 .a", "ancient-changes v1 01 .a.o"], 8)]
    fn the_oldest_updates_are_merged_by_version(
        #[case] oldest: &[&str],
        #[case] newer: usize,
        #[case] expected: &[&str],
        #[case] unchanged: usize,
    ) {
        let entries: Vec<ManagerEntry> = oldest.iter().map(|text| entry(text)).chain(newer_updates(newer)).collect();
        let mut expected: Vec<String> = expected.iter().map(|text| (*text).to_owned()).collect();
        let others: Vec<ManagerEntry> = newer_updates(newer).skip(newer - unchanged).collect();
        expected.extend(describe(&others));
        assert_eq!(describe(&encoded(entries)), expected);
    }

    #[test]
    fn each_version_keeps_its_oldest_entry() {
        let entries: Vec<ManagerEntry> = (10..30).map(|second| entry(&format!("m v{second} {second}"))).collect();
        assert_eq!(encoded(entries.clone()), entries);
    }

    #[test]
    fn thousands_of_updates_are_merged() {
        let entries: Vec<ManagerEntry> =
            (10_000..30_000).map(|second| entry(&format!("m{second} v1 {second}"))).collect();
        let merged = encoded(entries);
        assert_eq!(merged.len(), MAX_UPDATE_MANAGERS);
        assert_eq!(merged[0].fields.paths().len(), 20_000 - (MAX_UPDATE_MANAGERS - 1));
    }

    #[rstest]
    #[case::time("a v1 01", "a v1 02", true)]
    #[case::manager("a v1 01", "b v1 01", false)]
    #[case::operation("a v1 01", "a/Apply v1 01", false)]
    #[case::subresource("a v1 01", "a@status v1 01", false)]
    #[case::version_of_an_update("a v1 01", "a v2 01", false)]
    #[case::version_of_an_apply("a/Apply v1 01", "a/Apply v2 01", true)]
    fn managers_are_identified_as_by_kube_apiserver(#[case] one: &str, #[case] other: &str, #[case] expected: bool) {
        assert_eq!(entry(one).manager_id() == entry(other).manager_id(), expected);
    }
}

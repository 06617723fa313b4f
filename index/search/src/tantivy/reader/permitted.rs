//! The documents of a segment that a caller may read. A decision is made once per distinct (cluster, resource,
//! namespace) and cached for the entire segment; when grants in a cluster change, only that cluster's documents are
//! decided again.

use super::permitted_cache::{CachedPermission, PermittedCache};
use crate::authorization::CallerPermissions;
use crate::authorization::decision::{ScopeDecision, decide};
use crate::document::columns::{Facet, SCOPE_SEPARATOR};
use crate::tantivy::doc_set::{DocSet, DocSetBuilder};
use crate::tantivy::reader::facet_counts::OrdinalCounts;
use crate::tantivy::segments::SegmentData;
use crate::tantivy::values::{FacetValues, NONE};
use crowsnest_apimachinery::names::ClusterName;
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The documents of a segment that a caller may read, including deleted ones, with their facet counts.
#[derive(Debug)]
pub struct PermittedDocs {
    pub docs: DocSet,
    facet_counts: RwLock<HashMap<Facet, OrdinalCounts>>,
}

impl PermittedDocs {
    fn new(docs: DocSet) -> Arc<Self> {
        Arc::new(Self { docs, facet_counts: RwLock::default() })
    }

    pub fn empty() -> Arc<Self> {
        Self::new(DocSet::empty())
    }

    /// Cached counts in the order of `facets`; `None` for a facet that was not counted yet.
    pub fn cached_counts(&self, facets: &[Facet]) -> Vec<Option<OrdinalCounts>> {
        let cached = self.facet_counts.read();
        facets.iter().map(|facet| cached.get(facet).cloned()).collect()
    }

    pub fn cache_counts(&self, counts: impl IntoIterator<Item = (Facet, OrdinalCounts)>) {
        self.facet_counts.write().extend(counts);
    }

    /// Facets with cached counts.
    pub fn facets(&self) -> Vec<Facet> {
        self.facet_counts.read().keys().copied().collect()
    }

    /// Approximate memory size in bytes.
    pub fn bytes(&self) -> usize {
        self.docs.bytes() + self.facet_counts.read().values().map(|counts| size_of_val(&**counts)).sum::<usize>()
    }
}

/// Returns the documents of a segment that a caller may read: from the cache, updated for the clusters whose rules
/// changed, or decided for the entire segment.
pub fn resolve_permitted(
    data: &SegmentData,
    values: &FacetValues,
    permissions: &Mutex<CallerPermissions>,
    cache: &PermittedCache,
) -> Arc<PermittedDocs> {
    let (cached, unlimited) = {
        let permissions = permissions.lock();
        (cache.get(&permissions, data.id()), permissions.is_unlimited())
    };
    let permitted = match cached {
        Some(cached) if cached.changed.is_empty() => return cached.permitted,
        _ if unlimited => PermittedDocs::new(DocSet::All),
        Some(cached) => update_changed(data, values, permissions, cached),
        None => {
            let decisions = decide_scopes(data, values, permissions, &|_| true);
            PermittedDocs::new(collect_readable(data, &decisions, &DocSet::empty()))
        }
    };
    cache.insert(&permissions.lock(), data.id(), &permitted);
    permitted
}

/// Updates a cached result for the changed clusters.
fn update_changed(
    data: &SegmentData,
    values: &FacetValues,
    permissions: &Mutex<CallerPermissions>,
    cached: CachedPermission,
) -> Arc<PermittedDocs> {
    let CachedPermission { permitted, changed } = cached;
    let changed: HashSet<&str> = changed.iter().map(ClusterName::as_str).collect();
    let decisions = decide_scopes(data, values, permissions, &|cluster| changed.contains(cluster));
    if decisions.is_empty() {
        return permitted;
    }
    let docs = collect_readable(data, &decisions, &permitted.docs);
    // Keeps the facet counts if nothing changed.
    if docs == permitted.docs { permitted } else { PermittedDocs::new(docs) }
}

/// Decides the scopes of the segment whose cluster passes `includes_cluster`. Returns decisions by the number of the
/// scope. The lock is held for one decision at a time.
fn decide_scopes(
    data: &SegmentData,
    values: &FacetValues,
    permissions: &Mutex<CallerPermissions>,
    includes_cluster: &dyn Fn(&str) -> bool,
) -> HashMap<u32, ScopeDecision> {
    let docs = 0..data.max_doc();
    let mut numbers: Vec<u32> = docs.map(|doc| data.column(Facet::Scope).first(doc)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let decide_scope = |number: u32| {
        let scope = values.column(Facet::Scope).text(number).cloned()?;
        if !includes_cluster(scope.split(SCOPE_SEPARATOR).next().unwrap_or_default()) {
            return None;
        }
        let decision = permissions.lock().cached_decision(&scope, decide);
        Some((number, decision))
    };
    numbers.into_iter().filter_map(decide_scope).collect()
}

/// Collects the documents that the decisions allow. Documents of a scope without a decision are taken from `before`.
fn collect_readable(data: &SegmentData, decisions: &HashMap<u32, ScopeDecision>, before: &DocSet) -> DocSet {
    let max_doc = data.max_doc();
    let mut builder = DocSetBuilder::new(max_doc, u64::MAX);
    let mut last = (NONE, decisions.get(&NONE));
    for doc in 0..max_doc {
        let scope = data.column(Facet::Scope).first(doc);
        // Consecutive documents often have the same scope.
        if scope != last.0 {
            last = (scope, decisions.get(&scope));
        }
        let may_read = match last.1 {
            Some(ScopeDecision::Yes) => true,
            Some(ScopeDecision::Named(names)) => {
                data.names.get(data.column(Facet::Name).first(doc)).is_some_and(|name| names.contains(name))
            }
            Some(ScopeDecision::No) => false,
            // In a first decision, `before` is empty: documents without a scope are visible to no one.
            None => before.contains(doc),
        };
        if may_read {
            builder.add(&[doc]);
        }
    }
    builder.build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorization::RbacRules;
    use crate::document::Document;
    use crate::tantivy::TextIndex;
    use crowsnest_apimachinery::user::UserInfo;
    use crowsnest_store::fixtures::stored;
    use crowsnest_store::metrics::Metrics;
    use crowsnest_store::record::ChangeKind;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    const CLUSTERS: [&str; 3] = ["member1", "member2", "member3"];
    const NAMESPACES: [&str; 2] = ["shop", "team"];

    /// An index of pods and services of every namespace in every cluster, in two segments, with distinct ids.
    fn text_index() -> Arc<TextIndex> {
        let text = TextIndex::in_memory().unwrap();
        let mut writer: tantivy::IndexWriter = text.writer(15_000_000).unwrap();
        writer.set_merge_policy(Box::new(tantivy::indexer::NoMergePolicy));
        let mut id = 0;
        for name in ["a", "b"] {
            for (cluster, namespace, kind) in all_scopes() {
                id += 1;
                let object =
                    json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": namespace, "name": name}});
                let document = Document::from_object(&stored(cluster, id, &object)).unwrap();
                writer.add_document(document.to_tantivy(&text.columns)).unwrap();
            }
            writer.commit().unwrap();
        }
        text.reload(crowsnest_store::Seq(0), &|_, _, _| {}).unwrap();
        text
    }

    /// Cluster, namespace and kind of all documents with one name.
    fn all_scopes() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        let namespaces = CLUSTERS.into_iter().flat_map(|cluster| NAMESPACES.map(|namespace| (cluster, namespace)));
        namespaces.flat_map(|(cluster, namespace)| ["Pod", "Service"].map(|kind| (cluster, namespace, kind)))
    }

    /// Ids of the documents that a user may read.
    fn readable_ids(
        text: &TextIndex,
        cache: &PermittedCache,
        rbac_rules: &Arc<RbacRules>,
        user: &str,
    ) -> BTreeSet<u64> {
        let (snapshot, caller) = (text.snapshot(), Mutex::new(rbac_rules.for_caller(&UserInfo::new(user, ["staff"]))));
        let mut ids = BTreeSet::new();
        for segment in &snapshot.segments {
            let permitted = resolve_permitted(&segment.data, &snapshot.values, &caller, cache);
            let readable = (0..segment.data.max_doc()).filter(|doc| permitted.docs.contains(*doc));
            ids.extend(readable.filter_map(|doc| segment.data.ids.first(doc)));
        }
        ids
    }

    /// A role or binding; without a namespace, a cluster-scoped one.
    fn object(kind: &str, namespace: &str, name: &str, rest: Value) -> Value {
        let kind = if namespace.is_empty() { format!("Cluster{kind}") } else { kind.to_owned() };
        let mut metadata = json!({"name": name});
        if !namespace.is_empty() {
            metadata["namespace"] = namespace.into();
        }
        let mut object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata});
        object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        object
    }

    fn role(namespace: &str, resources: &[&str], names: &[&str]) -> Value {
        let rules = json!([{"verbs": ["list"], "apiGroups": [""], "resources": resources, "resourceNames": names}]);
        object("Role", namespace, "reader", json!({"rules": rules}))
    }

    fn binding(namespace: &str, name: &str, subject: &str) -> Value {
        let kind = if namespace.is_empty() { "ClusterRole" } else { "Role" };
        let subject_kind = if subject == "staff" { "Group" } else { "User" };
        object(
            "RoleBinding",
            namespace,
            name,
            json!({"roleRef": {"kind": kind, "name": "reader"}, "subjects": [{"kind": subject_kind, "name": subject}]}),
        )
    }

    fn apply(rbac_rules: &RbacRules, cluster: &str, object: &Value, change: ChangeKind) {
        let object = stored(cluster, 1, object);
        rbac_rules.apply(&object.record, &object.body, change);
    }

    #[test]
    fn decisions_of_other_clusters_stay_cached() {
        let (text, metrics) = (text_index(), Arc::new(Metrics::default()));
        let rbac_rules = Arc::new(RbacRules::new(Arc::clone(&metrics)));
        for cluster in CLUSTERS {
            apply(&rbac_rules, cluster, &role("shop", &["pods"], &[]), ChangeKind::Added);
            apply(&rbac_rules, cluster, &binding("shop", "ann", "ann"), ChangeKind::Added);
        }
        let mut previous_verdicts = 0;
        // Number of objects that ann may read, and number of decisions that were not cached.
        let mut readable_and_decisions = || {
            let readable = readable_ids(&text, &text.permitted, &rbac_rules, "ann").len();
            let before = std::mem::replace(&mut previous_verdicts, metrics.verdicts.get());
            (readable, previous_verdicts - before)
        };
        let (all, of_one) = (all_scopes().count() as u64, all_scopes().count() as u64 / 3);
        assert_eq!(readable_and_decisions(), (6, all));
        assert_eq!(readable_and_decisions(), (6, 0));
        // A grant to another user.
        apply(&rbac_rules, "member1", &binding("shop", "bob", "bob"), ChangeKind::Added);
        assert_eq!(readable_and_decisions(), (6, 0));
        apply(&rbac_rules, "member1", &binding("shop", "ann", "ann"), ChangeKind::Deleted);
        assert_eq!(readable_and_decisions(), (4, of_one));
        apply(&rbac_rules, "member2", &role("shop", &["pods", "services"], &[]), ChangeKind::Modified);
        assert_eq!(readable_and_decisions(), (6, of_one));
        // A cluster without documents.
        apply(&rbac_rules, "member9", &role("shop", &["pods"], &[]), ChangeKind::Added);
        apply(&rbac_rules, "member9", &binding("shop", "ann", "ann"), ChangeKind::Added);
        assert_eq!(readable_and_decisions(), (6, 0));
    }

    /// Any change of a role or binding in a cluster.
    fn change() -> impl Strategy<Value = (&'static str, Value, ChangeKind)> {
        let namespace = prop::sample::select(vec!["", "shop", "team"]);
        let some: [&'static [&'static str]; 4] = [&["pods"], &["services"], &["pods", "services"], &[]];
        let named: [&'static [&'static str]; 2] = [&[], &["a"]];
        let (resources, names) = (prop::sample::select(some.to_vec()), prop::sample::select(named.to_vec()));
        let subject = prop::sample::select(vec!["ann", "bob", "staff", "other"]);
        let roles = (namespace.clone(), resources, names)
            .prop_map(|(namespace, role_resources, names)| role(namespace, role_resources, names));
        let bindings = (namespace, prop::sample::select(vec!["one", "two"]), subject)
            .prop_map(|(namespace, name, subject)| binding(namespace, name, subject));
        let change = prop::sample::select(vec![ChangeKind::Added, ChangeKind::Modified, ChangeKind::Deleted]);
        (prop::sample::select(CLUSTERS.to_vec()), prop_oneof![roles, bindings], change)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// For any sequence of changes and reads, cached decisions equal new ones.
        #[test]
        fn cached_decisions_equal_new_ones(steps in prop::collection::vec((change(), any::<(bool, bool)>()), 1..24)) {
            let (text, rbac_rules) = (text_index(), Arc::new(RbacRules::default()));
            let mut objects: HashMap<(&str, String), Value> = HashMap::new();
            for ((cluster, object, change), (by_ann, by_bob)) in steps {
                apply(&rbac_rules, cluster, &object, change);
                let metadata = &object["metadata"];
                let key = (cluster, format!("{}/{}/{}", object["kind"], metadata["namespace"], metadata["name"]));
                match change {
                    ChangeKind::Deleted => drop(objects.remove(&key)),
                    _ => drop(objects.insert(key, object)),
                }
                let fresh = Arc::new(RbacRules::default());
                for ((cluster, _), object) in &objects {
                    apply(&fresh, cluster, object, ChangeKind::Added);
                }
                for user in [("ann", by_ann), ("bob", by_bob)].into_iter().filter(|user| user.1).map(|user| user.0) {
                    let expected = readable_ids(&text, &PermittedCache::default(), &fresh, user);
                    prop_assert_eq!(readable_ids(&text, &text.permitted, &rbac_rules, user), expected, "{} of {:?}", user, objects);
                }
            }
        }
    }
}

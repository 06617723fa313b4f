//! The documents of a segment that a caller may read. A decision is made once per distinct (cluster, resource,
//! namespace) and cached for the whole segment; when grants in a cluster change, only that cluster's documents are
//! decided again.

use super::memory::{Known, PermittedMemory};
use crate::authorization::CallerRights;
use crate::authorization::decision::{ScopeDecision, decide};
use crate::document::columns::{Facet, SCOPE_SEPARATOR};
use crate::tantivy::doc_set::{DocSet, Marks};
use crate::tantivy::reader::facet_counts::OrdinalCounts;
use crate::tantivy::segments::Parts;
use crate::tantivy::values::{NONE, Values};
use crowsnest_apimachinery::names::ClusterName;
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The documents of a segment that a caller may read, including deleted ones, with their facet counts.
#[derive(Debug)]
pub struct Permitted {
    pub docs: DocSet,
    tallies: RwLock<HashMap<Facet, OrdinalCounts>>,
}

impl Permitted {
    fn new(docs: DocSet) -> Arc<Self> {
        Arc::new(Self { docs, tallies: RwLock::default() })
    }

    pub fn nothing() -> Arc<Self> {
        Self::new(DocSet::none())
    }

    /// Facet counts, if cached.
    pub fn tallies(&self, facets: &[Facet]) -> Vec<Option<OrdinalCounts>> {
        let tallies = self.tallies.read();
        facets.iter().map(|facet| tallies.get(facet).cloned()).collect()
    }

    pub fn counted(&self, tallies: impl IntoIterator<Item = (Facet, OrdinalCounts)>) {
        self.tallies.write().extend(tallies);
    }

    /// Facets with cached counts.
    pub fn facets(&self) -> Vec<Facet> {
        self.tallies.read().keys().copied().collect()
    }

    /// Approximate memory size in bytes.
    pub fn bytes(&self) -> usize {
        self.docs.bytes() + self.tallies.read().values().map(|tally| size_of_val(&**tally)).sum::<usize>()
    }
}

/// The documents of a segment that a caller may read.
pub fn permitted(
    parts: &Parts,
    values: &Values,
    rights: &Mutex<CallerRights>,
    memory: &PermittedMemory,
) -> Arc<Permitted> {
    let (known, unlimited) = {
        let rights = rights.lock();
        (memory.get(&rights, parts.id()), rights.is_unlimited())
    };
    let permitted = match known {
        Some(known) if known.changed.is_empty() => return known.permitted,
        _ if unlimited => Permitted::new(DocSet::All),
        Some(known) => renewed(parts, values, rights, known),
        None => Permitted::new(readable(parts, &verdicts(parts, values, rights, &|_| true), &DocSet::none())),
    };
    memory.insert(&rights.lock(), parts.id(), &permitted);
    permitted
}

/// Updates an earlier decision for the changed clusters.
fn renewed(parts: &Parts, values: &Values, rights: &Mutex<CallerRights>, known: Known) -> Arc<Permitted> {
    let Known { permitted, changed } = known;
    let changed: HashSet<&str> = changed.iter().map(ClusterName::as_str).collect();
    let verdicts = verdicts(parts, values, rights, &|cluster| changed.contains(cluster));
    if verdicts.is_empty() {
        return permitted;
    }
    let docs = readable(parts, &verdicts, &permitted.docs);
    // Keeps the facet counts if nothing changed.
    if docs == permitted.docs { permitted } else { Permitted::new(docs) }
}

/// Decisions for the scopes of some clusters in the segment, by number. The lock is held only for one decision at a
/// time.
fn verdicts(
    parts: &Parts,
    values: &Values,
    rights: &Mutex<CallerRights>,
    of: &dyn Fn(&str) -> bool,
) -> HashMap<u32, ScopeDecision> {
    let docs = 0..parts.max_doc();
    let mut numbers: Vec<u32> = docs.map(|doc| parts.column(Facet::Scope).first(doc)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let decided = |number: u32| {
        let scope = values.of(Facet::Scope).text(number).cloned()?;
        if !of(scope.split(SCOPE_SEPARATOR).next().unwrap_or_default()) {
            return None;
        }
        let decided = rights.lock().decided(&scope, decide);
        Some((number, decided))
    };
    numbers.into_iter().filter_map(decided).collect()
}

/// Documents allowed by the decisions; without a decision, as before.
fn readable(parts: &Parts, verdicts: &HashMap<u32, ScopeDecision>, before: &DocSet) -> DocSet {
    let max_doc = parts.max_doc();
    let mut marks = Marks::new(max_doc, u64::MAX);
    let mut last = (NONE, verdicts.get(&NONE));
    for doc in 0..max_doc {
        let scope = parts.column(Facet::Scope).first(doc);
        // Consecutive documents often have the same scope.
        if scope != last.0 {
            last = (scope, verdicts.get(&scope));
        }
        let may_read = match last.1 {
            Some(ScopeDecision::Yes) => true,
            Some(ScopeDecision::Named(names)) => {
                parts.names.get(parts.column(Facet::Name).first(doc)).is_some_and(|name| names.contains(name))
            }
            Some(ScopeDecision::No) => false,
            // Documents without a scope are visible to no one.
            None => before.has(doc),
        };
        if may_read {
            marks.add(&[doc]);
        }
    }
    marks.done()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authorization::Rights;
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

    /// Pods and services of every namespace in every cluster, distributed over two segments, with distinct ids.
    fn indexed() -> Arc<TextIndex> {
        let text = TextIndex::in_memory().unwrap();
        let mut writer: tantivy::IndexWriter = text.writer(15_000_000).unwrap();
        writer.set_merge_policy(Box::new(tantivy::indexer::NoMergePolicy));
        let mut id = 0;
        for name in ["a", "b"] {
            for (cluster, namespace, kind) in everywhere() {
                id += 1;
                let object =
                    json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": namespace, "name": name}});
                let document = Document::of(&stored(cluster, id, &object)).unwrap();
                writer.add_document(document.to_tantivy(&text.columns)).unwrap();
            }
            writer.commit().unwrap();
        }
        text.reload(crowsnest_store::Seq(0), &|_, _, _| {}).unwrap();
        text
    }

    fn everywhere() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
        let places = CLUSTERS.into_iter().flat_map(|cluster| NAMESPACES.map(|namespace| (cluster, namespace)));
        places.flat_map(|(cluster, namespace)| ["Pod", "Service"].map(|kind| (cluster, namespace, kind)))
    }

    /// Ids of the documents that a user may read.
    fn seen(text: &TextIndex, memory: &PermittedMemory, rights: &Arc<Rights>, user: &str) -> BTreeSet<u64> {
        let (snapshot, caller) = (text.snapshot(), Mutex::new(rights.of(&UserInfo::new(user, ["staff"]))));
        let mut seen = BTreeSet::new();
        for segment in &snapshot.segments {
            let docs = permitted(&segment.parts, &snapshot.values, &caller, memory);
            let readable = (0..segment.parts.max_doc()).filter(|doc| docs.docs.has(*doc));
            seen.extend(readable.filter_map(|doc| segment.parts.ids.first(doc)));
        }
        seen
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

    fn apply(rights: &Rights, cluster: &str, object: &Value, change: ChangeKind) {
        let object = stored(cluster, 1, object);
        rights.apply(&object.record, &object.body, change);
    }

    #[test]
    fn decisions_of_other_clusters_stay_cached() {
        let (text, metrics) = (indexed(), Arc::new(Metrics::default()));
        let rights = Arc::new(Rights::new(Arc::clone(&metrics)));
        for cluster in CLUSTERS {
            apply(&rights, cluster, &role("shop", &["pods"], &[]), ChangeKind::Added);
            apply(&rights, cluster, &binding("shop", "ann", "ann"), ChangeKind::Added);
        }
        let mut made = 0;
        // Number of objects that ann may read, and of new decisions.
        let mut seen_and_decided = || {
            let seen = seen(&text, &text.permitted, &rights, "ann").len();
            let before = std::mem::replace(&mut made, metrics.verdicts.get());
            (seen, made - before)
        };
        let (all, of_one) = (everywhere().count() as u64, everywhere().count() as u64 / 3);
        assert_eq!(seen_and_decided(), (6, all));
        assert_eq!(seen_and_decided(), (6, 0));
        // Concerns another user.
        apply(&rights, "member1", &binding("shop", "bob", "bob"), ChangeKind::Added);
        assert_eq!(seen_and_decided(), (6, 0));
        apply(&rights, "member1", &binding("shop", "ann", "ann"), ChangeKind::Deleted);
        assert_eq!(seen_and_decided(), (4, of_one));
        apply(&rights, "member2", &role("shop", &["pods", "services"], &[]), ChangeKind::Modified);
        assert_eq!(seen_and_decided(), (6, of_one));
        // A cluster without documents.
        apply(&rights, "member9", &role("shop", &["pods"], &[]), ChangeKind::Added);
        apply(&rights, "member9", &binding("shop", "ann", "ann"), ChangeKind::Added);
        assert_eq!(seen_and_decided(), (6, 0));
    }

    /// A change of the rules of a cluster.
    fn step() -> impl Strategy<Value = (&'static str, Value, ChangeKind)> {
        let namespace = prop::sample::select(vec!["", "shop", "team"]);
        let some: [&'static [&'static str]; 4] = [&["pods"], &["services"], &["pods", "services"], &[]];
        let named: [&'static [&'static str]; 2] = [&[], &["a"]];
        let (resources, names) = (prop::sample::select(some.to_vec()), prop::sample::select(named.to_vec()));
        let subject = prop::sample::select(vec!["ann", "bob", "staff", "nobody"]);
        let roles = (namespace.clone(), resources, names).prop_map(|(namespace, of, names)| role(namespace, of, names));
        let bindings = (namespace, prop::sample::select(vec!["one", "two"]), subject)
            .prop_map(|(namespace, name, subject)| binding(namespace, name, subject));
        let change = prop::sample::select(vec![ChangeKind::Added, ChangeKind::Modified, ChangeKind::Deleted]);
        (prop::sample::select(CLUSTERS.to_vec()), prop_oneof![roles, bindings], change)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// For any sequence of changes and reads, cached decisions equal new ones.
        #[test]
        fn cached_decisions_equal_new_ones(steps in prop::collection::vec((step(), any::<(bool, bool)>()), 1..24)) {
            let (text, rights) = (indexed(), Arc::new(Rights::default()));
            let mut there: HashMap<(&str, String), Value> = HashMap::new();
            for ((cluster, object, change), (by_ann, by_bob)) in steps {
                apply(&rights, cluster, &object, change);
                let metadata = &object["metadata"];
                let key = (cluster, format!("{}/{}/{}", object["kind"], metadata["namespace"], metadata["name"]));
                match change {
                    ChangeKind::Deleted => drop(there.remove(&key)),
                    _ => drop(there.insert(key, object)),
                }
                let fresh = Arc::new(Rights::default());
                for ((cluster, _), object) in &there {
                    apply(&fresh, cluster, object, ChangeKind::Added);
                }
                for user in [("ann", by_ann), ("bob", by_bob)].into_iter().filter(|user| user.1).map(|user| user.0) {
                    let expected = seen(&text, &PermittedMemory::default(), &fresh, user);
                    prop_assert_eq!(seen(&text, &text.permitted, &rights, user), expected, "{} of {:?}", user, there);
                }
            }
        }
    }
}

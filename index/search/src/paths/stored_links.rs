//! Objects and their links as the graph of the fleet stores them: only what edges depend on, because a search may visit
//! hundreds of thousands of objects.

use super::links::{Link, Links, Target};
use crate::document::columns::Key;
use bytes::Bytes;
use crowsnest_apimachinery::references::{CustomRule, SELECTING_KINDS};
use crowsnest_apimachinery::selector::Selector;
use crowsnest_query::path::EdgeType;
use crowsnest_store::{BodyMode, Error, Object, Record, RecordKey};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// The cluster and namespace of an object.
pub(super) type NamespaceRef<'r> = (&'r str, &'r str);

/// The links that a step follows, by the part of an object that contains them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NeededLinks {
    /// Links to owners and to the namespace, which the record contains.
    OfRecord,
    /// Also those of selectors of Pods, which the bodies of [`SELECTING_KINDS`] contain.
    WithSelectors,
    /// All except those that the bodies of Pods contain.
    ExceptOfPods,
    All,
}

/// An object of the graph.
pub(super) struct Node {
    pub id: u64,
    pub key: RecordKey,
    pub kind: Arc<str>,
    /// The uid of an object of the control plane, by which its copies name it; empty in members.
    pub template_uid: Box<str>,
    /// Labels of a Pod; selectors match no other objects.
    labels: Box<[(Arc<str>, Box<str>)]>,
    pub links: NodeLinks,
    /// True if the links in the body were read.
    has_links_of_body: bool,
}

/// Keys and links of an object.
pub(super) struct NodeLinks {
    /// The keys by which other objects refer to the object.
    pub own_keys: Box<[u64]>,
    pub links: Box<[NodeLink]>,
}

/// A [`Link`] without the name of its target: paths find the other ends by their keys.
pub(super) struct NodeLink {
    pub edge: EdgeType,
    pub forward: bool,
    pub target: NodeTarget,
    /// Shared by the links of a batch of objects.
    pub via: Arc<str>,
    pub column: Option<Key>,
}

/// A [`Target`] in less memory.
pub(super) enum NodeTarget {
    Key(u64),
    Pods(Box<Selector>),
}

impl NeededLinks {
    /// The links that are edges of these types. With rules for Pods, their bodies may contain edges of further types.
    pub fn of_types(types: &BTreeSet<EdgeType>, rules: &[CustomRule]) -> Self {
        let of_type = |edge: &EdgeType| match edge {
            EdgeType::Contains | EdgeType::Owns => Self::OfRecord,
            EdgeType::Selects => Self::WithSelectors,
            EdgeType::About | EdgeType::RoleRef | EdgeType::RoutesTo | EdgeType::Subject => Self::ExceptOfPods,
            EdgeType::PropagatedTo | EdgeType::RunsOn | EdgeType::Uses => Self::All,
        };
        match types.iter().map(of_type).max().unwrap_or(Self::OfRecord) {
            Self::ExceptOfPods if rules.iter().any(|rule| rule.applies_to("", "Pod")) => Self::All,
            needed => needed,
        }
    }

    /// How objects are read first. The bodies of some may be needed as well: see [`Node::lacks`].
    pub fn body_mode(self) -> BodyMode {
        if self == Self::All { BodyMode::Read } else { BodyMode::Skip }
    }
}

impl Node {
    /// True if the body has to be read for these links.
    pub fn lacks(&self, needed: NeededLinks) -> bool {
        let states_in_body = match needed {
            NeededLinks::OfRecord => false,
            NeededLinks::WithSelectors => SELECTING_KINDS.contains(&self.group_kind()),
            NeededLinks::ExceptOfPods => !self.is_pod(),
            NeededLinks::All => true,
        };
        states_in_body && !self.has_links_of_body
    }

    pub fn namespace(&self) -> NamespaceRef<'_> {
        (self.key.cluster().as_str(), &*self.key.namespace)
    }

    pub fn group_kind(&self) -> (&str, &str) {
        (&*self.key.resource().group, &*self.kind)
    }

    pub fn is_pod(&self) -> bool {
        self.group_kind() == ("", "Pod")
    }

    /// True if the object is a Pod whose labels match.
    pub fn is_selected_by(&self, selector: &Selector) -> bool {
        let value = |key: &str| self.labels.iter().find(|(name, _)| **name == *key).map(|(_, value)| &**value);
        self.is_pod() && selector.matches_with(value)
    }
}

/// Creates the nodes of objects, whose bodies were read according to `body_mode`, and copies their records if `keep_records`
/// is set.
pub(super) fn read_nodes(
    objects: &[Object],
    body_mode: BodyMode,
    rules: &[CustomRule],
    keep_records: bool,
) -> Result<Vec<(Node, Option<Object>)>, Error> {
    let mut texts = SharedTexts::default();
    let read = |object: &Object| {
        let record = &object.record;
        // Copied first, because links decode the header of the record, which few objects need later.
        let copy = keep_records.then(|| Object { record: Arc::new(Record::clone(record)), body: Bytes::new() });
        let Links { own_keys, links } = match body_mode {
            BodyMode::Read => Links::from_object(object, rules)?,
            BodyMode::Skip => Links::from_record(record)?,
        };
        let links = links.into_iter().map(|link| node_link(link, &mut texts)).collect();
        let may_be_template = record.key.cluster().is_control_plane();
        let mut node = Node {
            id: record.id,
            key: RecordKey { namespace: texts.share(&record.key.namespace), ..record.key.clone() },
            kind: Arc::clone(&record.kind),
            template_uid: if may_be_template { record.uid.as_str().into() } else { Box::default() },
            labels: Box::default(),
            links: NodeLinks { own_keys: own_keys.into(), links },
            has_links_of_body: body_mode == BodyMode::Read,
        };
        if node.is_pod() {
            node.labels =
                record.labels.iter().map(|(name, value)| (texts.share(name), value.as_str().into())).collect();
        }
        Ok((node, copy))
    };
    objects.iter().map(read).collect()
}

/// A link as the graph stores it.
fn node_link(link: Link, texts: &mut SharedTexts) -> NodeLink {
    let Link { edge, forward, target, via, column, named: _ } = link;
    let target = match target {
        Target::Key(key) => NodeTarget::Key(key),
        Target::Pods(selector) => NodeTarget::Pods(Box::new(selector)),
    };
    NodeLink { edge, forward, target, via: texts.share(&via), column }
}

/// Texts of which equal ones are stored once.
#[derive(Default)]
struct SharedTexts(HashSet<Arc<str>>);

impl SharedTexts {
    fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(shared) = self.0.get(text) {
            return Arc::clone(shared);
        }
        let shared: Arc<str> = text.into();
        self.0.insert(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::names::CONTROL_PLANE;
    use crowsnest_store::fixtures::stored;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn pod(id: u64, name: &str) -> Object {
        let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u1"});
        let metadata = json!({"name": name, "namespace": "shop", "uid": name, "ownerReferences": [owner],
            "labels": {"app": "web"}});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n1"}, "metadata": metadata});
        stored("member1", id, &pod)
    }

    fn fields(node: &Node) -> Vec<Arc<str>> {
        node.links.links.iter().map(|link| Arc::clone(&link.via)).collect()
    }

    #[test]
    fn nodes_share_equal_texts() {
        let nodes = read_nodes(&[pod(1, "web-0"), pod(2, "web-1")], BodyMode::Read, &[], true).unwrap();
        let (first, second) = (fields(&nodes[0].0), fields(&nodes[1].0));
        assert!(
            first.contains(&"metadata.ownerReferences".into()) && first.contains(&"spec.nodeName".into()),
            "{first:?}"
        );
        assert_eq!(first, second);
        assert!(first.iter().zip(&second).all(|(left, right)| Arc::ptr_eq(left, right)));
        assert!(Arc::ptr_eq(&nodes[0].0.key.namespace, &nodes[1].0.key.namespace));
        let label = |nth: usize| &nodes[nth].0.labels[0];
        assert!(Arc::ptr_eq(&label(0).0, &label(1).0));
        assert!(nodes.iter().all(|(_, object)| object.as_ref().unwrap().body.is_empty()));
        assert!(size_of::<NodeLink>() <= 40 && size_of::<Node>() <= 200);
    }

    #[rstest]
    #[case::pod(pod(1, "web-0"), &[])]
    #[case::service(
        stored("member1", 1, &json!({"apiVersion": "v1", "kind": "Service", "spec": {"selector": {"app": "web"}},
            "metadata": {"name": "web", "namespace": "shop"}})),
        &[NeededLinks::WithSelectors, NeededLinks::ExceptOfPods]
    )]
    #[case::config_map(
        stored("member1", 1, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web", "namespace": "shop"}})),
        &[NeededLinks::ExceptOfPods]
    )]
    fn bodies_are_read_for_links_that_only_they_state(#[case] object: Object, #[case] others: &[NeededLinks]) {
        use NeededLinks::{All, ExceptOfPods, OfRecord, WithSelectors};
        let all = [OfRecord, WithSelectors, ExceptOfPods, All];
        let lacking = |body_mode| -> Vec<NeededLinks> {
            let (node, kept) = read_nodes(std::slice::from_ref(&object), body_mode, &[], false).unwrap().remove(0);
            assert!(kept.is_none());
            all.into_iter().filter(|needed| node.lacks(*needed)).collect()
        };
        assert_eq!(lacking(BodyMode::Skip), [others, &[All]].concat());
        assert!(lacking(BodyMode::Read).is_empty());
    }

    #[test]
    fn rules_for_pods_add_edges_of_their_bodies() {
        let rule = |kind: &str| -> CustomRule {
            let target = json!({"group": "acme.io", "kind": "Route"});
            let rule = json!({"kind": kind, "path": "spec.route", "target": target, "relation": "ROUTES_TO"});
            serde_json::from_value(rule).unwrap()
        };
        let needed = |rules: &[CustomRule]| NeededLinks::of_types(&[EdgeType::Owns, EdgeType::RoutesTo].into(), rules);
        assert_eq!(needed(&[rule("Route")]), NeededLinks::ExceptOfPods);
        assert_eq!(needed(&[rule("Pod")]), NeededLinks::All);
    }

    #[rstest]
    #[case::equal("app=web", true)]
    #[case::exists("app", true)]
    #[case::different("app=db", false)]
    #[case::absent("tier=web", false)]
    #[case::not_equal("app!=db,!tier", true)]
    #[case::everything("", true)]
    fn selectors_match_pods_only(#[case] selector: &str, #[case] expected: bool) {
        let labelled = |kind: &str| {
            let metadata = json!({"name": "web-0", "namespace": "shop", "labels": {"app": "web"}});
            let object = stored("member1", 1, &json!({"apiVersion": "v1", "kind": kind, "metadata": metadata}));
            read_nodes(&[object], BodyMode::Skip, &[], false).unwrap().remove(0).0
        };
        let selector = Selector::parse(selector).unwrap();
        assert_eq!(labelled("Pod").is_selected_by(&selector), expected);
        assert!(!labelled("ConfigMap").is_selected_by(&selector));
    }

    /// The links of each type that are read without the body equal those that are read with it.
    #[rstest]
    #[case::pod(pod(1, "web-0"))]
    #[case::slice(stored("member1", 1, &json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": "web-x", "namespace": "shop", "uid": "u2",
            "ownerReferences": [{"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "u1"}]}})))]
    #[case::binding(stored(CONTROL_PLANE, 1, &json!({"apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
        "metadata": {"name": "web-deployment", "namespace": "shop", "uid": "u2"}, "spec": {"resource": {"uid": "u3"}}})))]
    fn records_contain_owners_and_namespaces(#[case] object: Object) {
        let of_mode = |body_mode| read_nodes(std::slice::from_ref(&object), body_mode, &[], false).unwrap().remove(0).0;
        let (with_body, without_body) = (of_mode(BodyMode::Read), of_mode(BodyMode::Skip));
        assert_eq!(without_body.links.own_keys, with_body.links.own_keys);
        let links = |node: &Node| -> Vec<Value> {
            let in_record = |link: &&NodeLink| NeededLinks::of_types(&[link.edge].into(), &[]) == NeededLinks::OfRecord;
            let link = |link: &NodeLink| {
                let NodeTarget::Key(key) = &link.target else { return Value::Null };
                json!([link.edge, link.forward, *key, &*link.via])
            };
            node.links.links.iter().filter(in_record).map(link).collect()
        };
        assert!(!links(&with_body).is_empty());
        assert_eq!(links(&without_body), links(&with_body));
    }
}

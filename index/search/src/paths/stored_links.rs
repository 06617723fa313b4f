//! Objects and their links as the graph of the fleet stores them: without bodies, because a search may visit hundreds of
//! thousands of objects.

use super::links::{Link, Links, Target};
use crate::document::columns::Key;
use bytes::Bytes;
use crowsnest_apimachinery::references::CustomRule;
use crowsnest_query::path::EdgeType;
use crowsnest_store::{Error, Object, Record};
use std::collections::HashSet;
use std::sync::Arc;

/// An object of the graph, without its body.
pub(super) struct Node {
    pub object: Object,
    pub links: NodeLinks,
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
    pub target: Target,
    /// Shared by the links of a batch of objects.
    pub via: Arc<str>,
    pub column: Option<Key>,
}

/// Reads the links of objects.
pub(super) fn read_nodes(objects: &[Object], rules: &[CustomRule]) -> Result<Vec<Node>, Error> {
    let mut fields = HashSet::new();
    let node = |object: &Object| {
        // A copy, because links decode the header of the record, which few nodes need later.
        let record = Arc::new(Record::clone(&object.record));
        let Links { own_keys, links } = Links::from_object(object, rules)?;
        let links = links.into_iter().map(|link| node_link(link, &mut fields)).collect();
        Ok(Node {
            object: Object { record, body: Bytes::new() },
            links: NodeLinks { own_keys: own_keys.into(), links },
        })
    };
    objects.iter().map(node).collect()
}

/// A link as the graph stores it. Links whose field is among `fields` share its text.
fn node_link(link: Link, fields: &mut HashSet<Arc<str>>) -> NodeLink {
    let Link { edge, forward, target, via, column, named: _ } = link;
    let via = match fields.get(via.as_str()) {
        Some(field) => Arc::clone(field),
        None => {
            let field: Arc<str> = via.into();
            fields.insert(Arc::clone(&field));
            field
        }
    };
    NodeLink { edge, forward, target, via, column }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_store::fixtures::stored;
    use serde_json::json;

    #[test]
    fn nodes_have_no_bodies_and_share_the_names_of_fields() {
        let pod = |id: u64, name: &str| {
            let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u1"});
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n1"},
                "metadata": {"name": name, "namespace": "shop", "uid": name, "ownerReferences": [owner]}});
            stored("member1", id, &pod)
        };
        let nodes = read_nodes(&[pod(1, "web-0"), pod(2, "web-1")], &[]).unwrap();
        let fields =
            |node: &Node| -> Vec<Arc<str>> { node.links.links.iter().map(|link| Arc::clone(&link.via)).collect() };
        let (first, second) = (fields(&nodes[0]), fields(&nodes[1]));
        assert!(
            first.contains(&"metadata.ownerReferences".into()) && first.contains(&"spec.nodeName".into()),
            "{first:?}"
        );
        assert_eq!(first, second);
        assert!(first.iter().zip(&second).all(|(left, right)| Arc::ptr_eq(left, right)));
        assert!(nodes.iter().all(|node| node.object.body.is_empty()));
        let (size, of_link) = (size_of::<NodeLink>(), size_of::<Link>());
        assert!(size <= 64 && size < of_link, "{size} of {of_link} bytes");
    }
}

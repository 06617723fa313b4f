//! Links of an object: the edges that its own fields declare, in both orientations. Has no side effects.

use crate::document::columns::Key;
use crowsnest_api::constants::annotation;
use crowsnest_api::propagation::{WORKS, binding_in_annotations, read_propagation, shared_key};
use crowsnest_api::references::find_references;
use crowsnest_apimachinery::names::{CONTROL_PLANE, ObjectKey};
use crowsnest_apimachinery::references::{
    CustomRule, Reference, Relation, SELECTING_KINDS, find_custom_references, group_of_reference, pod_selection,
};
use crowsnest_apimachinery::selector::Selector;
use crowsnest_query::path::EdgeType;
use crowsnest_store::{Error, Object, Record};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Edges that an object declares, and the keys by which other objects refer to it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Links {
    pub own_keys: Vec<u64>,
    pub links: Vec<Link>,
}

/// An edge that a field of an object declares.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    pub edge: EdgeType,
    /// True: the edge begins at the object with the field. False: it ends there.
    pub forward: bool,
    pub target: Target,
    pub via: String,
    /// Column of the text index with the key of the target.
    pub(crate) column: Option<Key>,
    /// The object at the other end as the field names it; None for Pods and for objects without a name of their own.
    pub named: Option<NamedObject>,
}

/// An object of a cluster that another one names.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedObject {
    pub cluster: String,
    /// An owner without a stated namespace has that of its dependent, even if its kind is cluster-scoped.
    pub object: ObjectKey,
    /// The uid that the object must have; empty for any.
    pub uid: String,
}

/// The other end of a link.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// The objects with this key.
    Key(u64),
    /// Pods with matching labels, in the namespace and cluster of the object with the field.
    Pods(Selector),
}

impl Links {
    /// The links of an object, with references by users' rules.
    pub fn from_object(object: &Object, rules: &[CustomRule]) -> Result<Self, Error> {
        let record = &object.record;
        let group = &*record.key.resource().group;
        let mut reader = LinkReader::new(record)?;
        let references = find_references(group, &record.kind, &*object.body);
        references.iter().for_each(|reference| reader.add_reference(reference, Some(Key::Uses)));
        if rules.iter().any(|rule| rule.applies_to(group, &record.kind)) {
            let tree: Value = object.parse()?;
            let references = find_custom_references(rules, group, &record.kind, &tree);
            references.iter().for_each(|reference| reader.add_reference(reference, None));
        }
        reader.add_event_objects()?;
        reader.add_propagation(group, &object.body);
        reader.add_annotations(group, object);
        if SELECTING_KINDS.contains(&(group, &*record.kind))
            && let Some(selection) = pod_selection(group, &record.kind, &object.parse()?)
        {
            let target = Target::Pods(selection.selector);
            reader.add(EdgeType::Selects, true, target, selection.field_path, None);
        }
        Ok(reader.links)
    }

    /// The links of an object to its namespace and owners, which need no body, and its own keys.
    pub(crate) fn from_record(record: &Record) -> Result<Self, Error> {
        Ok(LinkReader::new(record)?.links)
    }
}

struct LinkReader<'o> {
    record: &'o Record,
    cluster: &'o str,
    links: Links,
}

impl<'o> LinkReader<'o> {
    /// A reader that has added the own keys of a record, and the links to its namespace and owners.
    fn new(record: &'o Record) -> Result<Self, Error> {
        let group = &*record.key.resource().group;
        let mut reader = Self { record, cluster: record.key.cluster().as_str(), links: Links::default() };
        reader.add_own_keys(group);
        reader.add_owners(group)?;
        Ok(reader)
    }

    fn add(&mut self, edge: EdgeType, forward: bool, target: Target, via: impl Into<String>, column: Option<Key>) {
        self.links.links.push(Link { edge, forward, target, via: via.into(), column, named: None });
    }

    /// Adds a link to an object of the same cluster by its uid.
    fn add_uid(&mut self, edge: EdgeType, forward: bool, uid: &str, via: &str, column: Option<Key>) {
        if !uid.is_empty() {
            self.add(edge, forward, Target::Key(Key::from_uid(self.cluster, uid)), via, column);
        }
    }

    /// Sets the name of the object at the other end of the last link.
    fn set_target_name(&mut self, cluster: &str, object: ObjectKey, uid: &str) {
        if let Some(link) = self.links.links.last_mut() {
            link.named = Some(NamedObject { cluster: cluster.to_owned(), object, uid: uid.to_owned() });
        }
    }

    /// Adds a link to an object of the same cluster by its name.
    fn add_object(&mut self, edge: EdgeType, forward: bool, object: &ObjectKey, via: &str, column: Option<Key>) {
        self.add(edge, forward, Target::Key(Key::from_object(self.cluster, object)), via, column);
        self.set_target_name(self.cluster, object.clone(), "");
    }

    /// Adds the object's own keys, and the link to its namespace.
    fn add_own_keys(&mut self, group: &str) {
        let record = self.record;
        let (namespace, name) = (&*record.key.namespace, &*record.key.name);
        self.links.own_keys.push(Key::from_object(self.cluster, &ObjectKey::new(group, &record.kind, namespace, name)));
        if !record.uid.is_empty() {
            self.links.own_keys.push(Key::from_uid(self.cluster, &record.uid));
        }
        let shared = shared_key(group, &record.kind, namespace);
        self.links.own_keys.extend(shared.map(|object| Key::from_object(self.cluster, &object)));
        if !namespace.is_empty() {
            let namespace = ObjectKey::new("", "Namespace", "", namespace);
            self.add_object(EdgeType::Contains, false, &namespace, "metadata.namespace", None);
        }
    }

    fn add_owners(&mut self, group: &str) -> Result<(), Error> {
        const VIA: &str = "metadata.ownerReferences";
        let record = self.record;
        let is_slice = (group, &*record.kind) == ("discovery.k8s.io", "EndpointSlice");
        for owner in record.owners()?.iter().filter(|owner| !owner.uid.is_empty()) {
            let group = group_of_reference(&owner.api_version, &owner.kind);
            let object = ObjectKey::new(group, &owner.kind, &record.key.namespace, &owner.name);
            self.add_uid(EdgeType::Owns, false, &owner.uid, VIA, Some(Key::Owner));
            self.set_target_name(self.cluster, object.clone(), &owner.uid);
            if is_slice && owner.kind == "Service" {
                self.add_uid(EdgeType::RoutesTo, false, &owner.uid, VIA, None);
                self.set_target_name(self.cluster, object, &owner.uid);
            }
        }
        Ok(())
    }

    fn add_reference(&mut self, reference: &Reference, column: Option<Key>) {
        let (edge, forward) = match reference.relation {
            Relation::Uses => (EdgeType::Uses, true),
            Relation::RoutesTo => (EdgeType::RoutesTo, true),
            Relation::RoutedBy => (EdgeType::RoutesTo, false),
            Relation::Subject => (EdgeType::Subject, true),
            Relation::RoleRef => (EdgeType::RoleRef, true),
            Relation::RunsOn => (EdgeType::RunsOn, true),
        };
        self.add_object(edge, forward, &reference.object, &reference.field_path(), column);
    }

    /// Adds the objects that an event is about.
    fn add_event_objects(&mut self) -> Result<(), Error> {
        let printed = self.record.printed_object()?;
        let objects = printed.about.iter().map(|about| (about, "involvedObject"));
        for (about, via) in objects.chain(printed.related.iter().map(|related| (related, "related"))) {
            match about.uid.as_str() {
                "" => self.add_object(EdgeType::About, true, &about.key(), via, Some(Key::About)),
                uid => {
                    self.add_uid(EdgeType::About, true, uid, via, Some(Key::About));
                    self.set_target_name(self.cluster, about.key(), uid);
                }
            }
        }
        Ok(())
    }

    /// Adds the template of a binding or Work, the copies of a Work or quota, and the bindings that a quota limits.
    fn add_propagation(&mut self, group: &str, body: &[u8]) {
        let Some(propagation) = read_propagation(group, &self.record.kind, body) else { return };
        let fields = propagation.fields;
        if !propagation.template_uid.is_empty() {
            self.add_uid(EdgeType::PropagatedTo, false, &propagation.template_uid, fields.template, Some(Key::About));
            if let Some(object) = propagation.template_object {
                self.set_target_name(self.cluster, object, &propagation.template_uid);
            }
        }
        for copy in propagation.copies {
            let target = Target::Key(Key::from_object(&copy.cluster, &copy.object));
            self.add(EdgeType::PropagatedTo, true, target, fields.copies, Some(Key::About));
            self.set_target_name(&copy.cluster, copy.object, "");
        }
        if let Some(limited) = propagation.limited {
            let target = Target::Key(Key::from_object(self.cluster, &limited));
            self.add(EdgeType::About, true, target, fields.limited, Some(Key::About));
        }
    }

    /// Adds the template that the annotations of a copy in a member name, and the binding that those of a Work name.
    fn add_annotations(&mut self, group: &str, object: &Object) {
        let is_work = WORKS.contains(group, &self.record.kind);
        let is_copy = self.cluster != CONTROL_PLANE;
        if !is_work && !is_copy {
            return;
        }
        let annotations = annotations(object);
        let named = |key: &str| annotations.get(key).and_then(|value| value.as_deref()).unwrap_or_default();
        let template = named(annotation::RESOURCE_TEMPLATE_UID);
        if is_copy && !template.is_empty() {
            let target = Target::Key(Key::from_uid(CONTROL_PLANE, template));
            let via = format!("metadata.annotations[{}]", annotation::RESOURCE_TEMPLATE_UID);
            self.add(EdgeType::PropagatedTo, false, target, via, None);
            let record = self.record;
            let (group, key) = (&record.key.resource().group, &record.key);
            // A copy has the name of its template.
            let object = ObjectKey::new(group, &record.kind, &key.namespace, &key.name);
            self.set_target_name(CONTROL_PLANE, object, template);
        }
        if is_work && let Some(binding) = binding_in_annotations(named) {
            self.add_object(EdgeType::PropagatedTo, false, &binding, "metadata.annotations", None);
        }
    }
}

type Annotations<'a> = BTreeMap<Cow<'a, str>, Option<Cow<'a, str>>>;

fn annotations(object: &Object) -> Annotations<'_> {
    #[derive(Deserialize)]
    struct Metadata<'a> {
        #[serde(borrow, default)]
        annotations: Option<Annotations<'a>>,
    }
    let metadata = object.metadata().and_then(|text| serde_json::from_str::<Metadata<'_>>(text).ok());
    metadata.and_then(|metadata| metadata.annotations).unwrap_or_default()
}

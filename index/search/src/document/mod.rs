//! The searchable form of an object. It is created from the record and the body, written to an engine, and evaluated
//! directly to explain hits. Columns and terms are the same in every engine.

pub mod columns;
pub mod manifest;
mod redacted_object;
pub mod tokens;

pub use redacted_object::RedactedObject;

use crate::document::columns::{Facet, Key, Keyword, Number, scope_of};
use crate::document::manifest::{Extraction, ManifestText, extract_from_json, extract_from_tree};
use bytes::Bytes;
use crowsnest_api::constants::annotation::JOURNAL_CAUSE;
use crowsnest_api::constants::label::MANAGED;
use crowsnest_api::propagation::{
    BINDING_ANNOTATIONS, MemberCopy, NameAnnotations, POLICY_ANNOTATIONS, Propagation, PropagationState,
    WORK_ANNOTATIONS, read_propagation, shared_key,
};
use crowsnest_api::references::find_referenced_objects;
use crowsnest_apimachinery::names::ObjectKey;
use crowsnest_apimachinery::printers::{InvolvedObject, MessagePosition, PrintedObject};
use crowsnest_apimachinery::references::group_of_reference;
use crowsnest_store::{Error, Object, Record, Version};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Maximum length in bytes of an indexed annotation value.
const MAX_ANNOTATION_BYTES: usize = 256;
/// `has:` value of objects whose manifest text was truncated.
pub const CONTENT_TRUNCATED: &str = "content.cut";
/// `is:` value of deleted objects.
pub const DELETED: &str = "deleted";

/// Columns of annotations that name the policy, binding or Work of an object.
const PROPAGATION: [(Keyword, &[NameAnnotations]); 3] =
    [(Keyword::Policy, POLICY_ANNOTATIONS), (Keyword::Binding, BINDING_ANNOTATIONS), (Keyword::Work, WORK_ANNOTATIONS)];

/// Value of the annotation with the cause of a journal event.
#[derive(Deserialize)]
struct JournalCause {
    #[serde(rename = "ref")]
    reference: Option<InvolvedObject>,
}

/// An object in its searchable form.
#[derive(Debug, Clone, Default)]
pub struct Document {
    /// Record id.
    pub id: u64,
    /// Values of text columns, in original case.
    pub keywords: Vec<(Keyword, String)>,
    pub numbers: Vec<(Number, i64)>,
    pub facets: Vec<(Facet, String)>,
    pub keys: Vec<(Key, u64)>,
    /// The message that explains the status, from the printed columns.
    message: Option<String>,
    group_kind: (String, String),
    /// The object's JSON.
    body: Bytes,
    /// Parsed forms of the body, each parsed at most once, on demand: the complete tree, all text, or only messages.
    tree: OnceLock<Value>,
    manifest_text: OnceLock<ManifestText>,
    messages: OnceLock<Vec<String>>,
}

impl Document {
    /// Creates the document of an object. Values of Secrets are never searchable, even if the store contains them.
    pub fn from_object(object: &Object) -> Result<Self, Error> {
        Self::from_redacted(&RedactedObject::new(object)?)
    }

    /// Creates the document of an object from which values of Secrets are removed already.
    pub fn from_redacted(object: &RedactedObject<'_>) -> Result<Self, Error> {
        let object: &Object = object;
        let record = &object.record;
        let printed = record.printed_object()?;
        let mut document = Self { id: record.id, body: object.body.clone(), ..Self::default() };
        let gvr = record.key.resource();
        let (namespace, name) = (&*record.key.namespace, &*record.key.name);
        document.add_keyword(Keyword::Kind, &record.kind);
        document.facets.push((Facet::Kind, qualified_kind(&gvr.group, &record.kind)));
        document.add_keyword(Keyword::Group, &gvr.group);
        document.add_keyword(Keyword::ApiVersion, &gvr.api_version());
        document.add_keyword(Keyword::Name, name);
        document.add_keyword(Keyword::Namespace, namespace);
        if !namespace.is_empty() {
            document.add_keyword(Keyword::Qualified, &format!("{namespace}/{name}"));
        }
        document.add_keyword(Keyword::Uid, &record.uid);
        document.add_keyword(Keyword::Cluster, record.key.cluster().as_str());
        for owner in record.owners()? {
            let group = group_of_reference(&owner.api_version, &owner.kind);
            document.add_reference(Keyword::Owner, &ObjectKey::new(group, &owner.kind, "", &owner.name));
        }
        let options = [
            (Keyword::Node, &printed.node),
            (Keyword::Status, &printed.status),
            (Keyword::Phase, &printed.phase),
            (Keyword::Type, &printed.type_),
        ];
        for (keyword, value) in options {
            document.add_keyword(keyword, value.as_deref().unwrap_or_default());
        }
        printed.ips.iter().for_each(|ip| document.add_keyword(Keyword::Ip, ip));
        printed.reasons.iter().for_each(|reason| document.add_keyword(Keyword::Reason, reason));
        for (type_, status) in &printed.conditions {
            document.add_keyword(Keyword::Condition, &format!("{type_}={status}"));
        }
        printed.images.iter().for_each(|image| document.add_image(image));
        for used in find_referenced_objects(&gvr.group, &record.kind, &*object.body) {
            document.add_reference(Keyword::Uses, &used);
            document.keys.push((Key::Uses, Key::from_object(record.key.cluster().as_str(), &used)));
        }
        for about in printed.about.iter().chain(&printed.related) {
            document.add_reference(Keyword::About, &about.key());
        }
        for (key, value) in &record.labels {
            document.add_keyword(Keyword::Label, &format!("{key}={value}"));
            document.add_keyword(Keyword::LabelKey, key);
        }
        document.add_annotations(object);
        if let Some(propagation) = read_propagation(&gvr.group, &record.kind, &*object.body) {
            document.add_propagation(record, &propagation);
        }
        derive_states(record, printed).into_iter().for_each(|state| document.add_keyword(Keyword::Is, state));
        document.message = printed.message.clone().filter(|message| !message.is_empty());
        document.group_kind = (gvr.group.to_string(), record.kind.to_string());
        document.add_numbers(record, printed);
        document.add_keys(record, printed)?;
        document.facets.push((Facet::Scope, scope_of(&record.key)));
        Ok(document)
    }

    /// Creates the document of an earlier version of an object, or of a deleted object.
    pub fn from_version(version: &Version) -> Result<Self, Error> {
        let document = Self::from_object(&version.object)?;
        Ok(document.with_deletion_of(version))
    }

    /// Adds the state `deleted` and the time of the deletion, if the version ended by a deletion.
    pub(crate) fn with_deletion_of(mut self, version: &Version) -> Self {
        if version.deleted {
            self.add_keyword(Keyword::Is, DELETED);
            self.numbers.push((Number::Deleted, version.ended_at / 1000));
        }
        self
    }

    /// Adds the clusters, states and overrides of a binding, Work or quota, and the keys of its template and of the objects
    /// that it creates in members.
    fn add_propagation(&mut self, record: &Record, propagation: &Propagation) {
        let columns = [
            (Keyword::On, &propagation.clusters),
            (Keyword::Evicting, &propagation.evicting_clusters),
            (Keyword::Health, &propagation.health),
            (Keyword::Override, &propagation.overrides),
        ];
        columns
            .into_iter()
            .for_each(|(keyword, values)| values.iter().for_each(|value| self.add_keyword(keyword, value)));
        propagation.states.iter().for_each(|state| self.add_keyword(Keyword::Is, word_of_state(*state)));
        let (cluster, namespace) = (record.key.cluster().as_str(), &*record.key.namespace);
        if !propagation.template_uid.is_empty() {
            self.keys.push((Key::About, Key::from_uid(cluster, &propagation.template_uid)));
        }
        let copy_key = |copy: &MemberCopy| (Key::About, Key::from_object(&copy.cluster, &copy.object));
        self.keys.extend(propagation.copies.iter().map(copy_key));
        let limited = propagation.limited.as_ref();
        self.keys.extend(limited.map(|object| (Key::About, Key::from_object(cluster, object))));
        let shared = shared_key(&record.key.resource().group, &record.kind, namespace);
        self.keys.extend(shared.map(|object| (Key::Own, Key::from_object(cluster, &object))));
    }

    /// Adds the object's own keys and those of referenced objects.
    fn add_keys(&mut self, record: &Record, printed: &PrintedObject) -> Result<(), Error> {
        let cluster = record.key.cluster().as_str();
        let (namespace, name) = (&*record.key.namespace, &*record.key.name);
        let mut add = |column: Key, key: u64| self.keys.push((column, key));
        let object_key = ObjectKey::new(&record.key.resource().group, &record.kind, namespace, name);
        add(Key::Own, Key::from_object(cluster, &object_key));
        if !record.uid.is_empty() {
            add(Key::Own, Key::from_uid(cluster, &record.uid));
        }
        record.owners()?.iter().for_each(|owner| add(Key::Owner, Key::from_uid(cluster, &owner.uid)));
        for about in printed.about.iter().chain(&printed.related) {
            let key = match about.uid.as_str() {
                "" => Key::from_object(cluster, &about.key()),
                uid => Key::from_uid(cluster, uid),
            };
            self.keys.push((Key::About, key));
        }
        Ok(())
    }

    /// Adds a reference with and without its group and namespace.
    fn add_reference(&mut self, keyword: Keyword, object: &ObjectKey) {
        let ObjectKey { group, kind, namespace, name } = object;
        let qualified = (!group.is_empty()).then(|| qualified_kind(group, kind));
        for kind in [Some(&**kind), qualified.as_deref()].into_iter().flatten() {
            self.add_keyword(keyword, &format!("{kind}/{name}"));
            if let Some(namespace) = namespace {
                self.add_keyword(keyword, &format!("{kind}/{namespace}/{name}"));
            }
        }
    }

    fn add_keyword(&mut self, keyword: Keyword, value: &str) {
        if value.is_empty() {
            return;
        }
        self.keywords.push((keyword, value.to_owned()));
        let facet = match keyword {
            Keyword::Cluster => Facet::Cluster,
            Keyword::Namespace => Facet::Namespace,
            Keyword::Status => Facet::Status,
            Keyword::Node => Facet::Node,
            Keyword::Reason => Facet::Reason,
            Keyword::Image => Facet::Image,
            Keyword::Type => Facet::Type,
            Keyword::LabelKey => Facet::LabelKey,
            Keyword::Name => Facet::Name,
            _ => return,
        };
        self.facets.push((facet, value.to_owned()));
    }

    fn add_image(&mut self, image: &str) {
        self.add_keyword(Keyword::Image, image);
        let (name, digest) = match image.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (image, None),
        };
        self.add_keyword(Keyword::Digest, digest.unwrap_or_default());
        let last = name.rsplit('/').next().unwrap_or(name);
        match last.split_once(':') {
            Some((_, tag)) => self.add_keyword(Keyword::ImageTag, tag),
            // Default tag of an image reference.
            None if digest.is_none() => self.add_keyword(Keyword::ImageTag, "latest"),
            None => {}
        }
    }

    fn add_annotations(&mut self, object: &Object) {
        #[derive(Deserialize)]
        struct Metadata<'a> {
            #[serde(borrow, default)]
            annotations: Option<BTreeMap<Cow<'a, str>, Option<Cow<'a, str>>>>,
        }
        let Some(metadata) = object.metadata() else { return };
        let Ok(metadata) = serde_json::from_str::<Metadata<'_>>(metadata) else { return };
        let annotations = metadata.annotations.unwrap_or_default();
        let annotation = |key: &str| annotations.get(key).and_then(|value| value.as_deref()).unwrap_or_default();
        for (keyword, sources) in PROPAGATION {
            for &NameAnnotations { namespace, name } in sources {
                let (namespace, name) = (namespace.map(annotation).unwrap_or_default(), annotation(name));
                self.add_keyword(keyword, name);
                if !namespace.is_empty() && !name.is_empty() {
                    self.add_keyword(keyword, &format!("{namespace}/{name}"));
                }
            }
        }
        if let Some(cause) = annotations.get(JOURNAL_CAUSE).and_then(|value| value.as_deref())
            && let Ok(JournalCause { reference: Some(reference) }) = serde_json::from_str(cause)
        {
            self.add_reference(Keyword::Cause, &reference.key());
        }
        for (key, value) in annotations {
            self.add_keyword(Keyword::AnnotationKey, &key);
            let value = value.unwrap_or_default();
            if value.len() <= MAX_ANNOTATION_BYTES {
                self.add_keyword(Keyword::Annotation, &format!("{key}={value}"));
            }
        }
    }

    fn add_numbers(&mut self, record: &Record, printed: &PrintedObject) {
        let all = [
            (Number::Restarts, printed.restarts),
            (Number::Replicas, printed.desired.filter(|_| !is_pod(record))),
            (Number::Ready, printed.ready),
            (Number::Count, printed.count),
            (Number::Created, record.created),
            (Number::Changed, Some(record.changed_at / 1000)),
            (Number::LastSeen, printed.last_seen),
            (Number::CpuRequest, printed.cpu_request),
            (Number::CpuLimit, printed.cpu_limit),
            (Number::MemoryRequest, printed.memory_request),
            (Number::MemoryLimit, printed.memory_limit),
        ];
        self.numbers.extend(all.into_iter().filter_map(|(number, value)| Some((number, value?))));
        self.numbers.extend(printed.exit_codes.iter().map(|code| (Number::Exit, *code)));
    }

    /// Values in which bare words are searched by substring. Addresses and ids are found by prefix in the manifest text.
    /// `with_slash` includes qualified names, for words that contain a slash.
    pub fn bare_word_values(&self, with_slash: bool) -> impl Iterator<Item = (Keyword, &str)> {
        let has_bare_words = move |keyword: Keyword| match keyword {
            Keyword::Group | Keyword::ApiVersion | Keyword::Annotation | Keyword::AnnotationKey | Keyword::Is => false,
            Keyword::Policy | Keyword::Binding | Keyword::Work | Keyword::Override => false,
            Keyword::On | Keyword::Evicting | Keyword::Health | Keyword::Cause => false,
            Keyword::Uid | Keyword::Ip | Keyword::Digest => false,
            Keyword::Qualified => with_slash,
            _ => true,
        };
        let is_searched = move |keyword: Keyword, value: &str| match keyword {
            Keyword::Owner | Keyword::Uses | Keyword::About => is_bare_word_reference(keyword, value),
            keyword => has_bare_words(keyword),
        };
        let keywords = self.keywords.iter().filter(move |(keyword, value)| is_searched(*keyword, value));
        // A qualified name is reported as a match of the name.
        let reported = |keyword: Keyword| if keyword == Keyword::Qualified { Keyword::Name } else { keyword };
        keywords.map(move |(keyword, value)| (reported(*keyword), value.as_str()))
    }

    /// All messages, beginning with the one that explains the status. If [`Self::content`] is needed as well, call it
    /// first, so that the manifest is parsed once.
    pub fn messages(&self) -> &[String] {
        match self.manifest_text.get() {
            Some(manifest_text) => &manifest_text.messages,
            None => self.messages.get_or_init(|| self.extract(Extraction::Messages).messages),
        }
    }

    /// Keys and values of the manifest, one per line.
    pub fn content(&self) -> &str {
        &self.manifest_text().content
    }

    /// The manifest as a JSON tree, for queries of field paths. Later reads use this tree.
    pub fn tree(&self) -> &Value {
        self.tree.get_or_init(|| serde_json::from_slice(&self.body).unwrap_or_default())
    }

    fn manifest_text(&self) -> &ManifestText {
        self.manifest_text.get_or_init(|| self.extract(Extraction::All))
    }

    fn extract(&self, extraction: Extraction) -> ManifestText {
        let (group, kind) = &self.group_kind;
        let position = MessagePosition::root(group, kind);
        let manifest_text = match self.tree.get() {
            Some(tree) if !tree.is_null() => extract_from_tree(tree, position, extraction),
            _ => extract_from_json(&self.body, position, extraction),
        };
        let Some(first) = &self.message else { return manifest_text };
        let others = manifest_text.messages.into_iter().filter(|message| message != first);
        ManifestText { messages: [first.clone()].into_iter().chain(others).collect(), ..manifest_text }
    }

    /// Names of the columns that have a value, for queries such as `field:*`, and [`CONTENT_TRUNCATED`] if it applies.
    pub fn present_columns(&self) -> impl Iterator<Item = &'static str> {
        let mut columns: Vec<&'static str> = self.keywords.iter().map(|(keyword, _)| keyword.name()).collect();
        columns.extend(self.numbers.iter().map(|(number, _)| number.name()));
        columns.extend(self.manifest_text().is_truncated.then_some(CONTENT_TRUNCATED));
        columns.sort_unstable();
        columns.dedup();
        columns.into_iter()
    }
}

/// The kind with its group, such as `Deployment.apps`; without a group for the core group, such as `Pod`.
pub(crate) fn qualified_kind(group: &str, kind: &str) -> String {
    if group.is_empty() { kind.to_owned() } else { format!("{kind}.{group}") }
}

/// True if bare words are searched in this form of a reference: without a group, and with a namespace only for the
/// objects of events. The node of a pod is excluded, because it has a column of its own.
fn is_bare_word_reference(keyword: Keyword, reference: &str) -> bool {
    let Some((kind, object)) = reference.split_once('/') else { return false };
    let is_node = keyword == Keyword::Uses && kind == "Node";
    !kind.contains('.') && !is_node && (keyword == Keyword::About || !object.contains('/'))
}

fn is_pod(record: &Record) -> bool {
    (&*record.key.resource().group, &*record.kind) == ("", "Pod")
}

/// Value of `is:` for a state of a binding or Work.
fn word_of_state(state: PropagationState) -> &'static str {
    match state {
        PropagationState::Unscheduled => "unscheduled",
        PropagationState::Evicting => "evicting",
        PropagationState::ApplyFailed => "drifted",
        PropagationState::Conflict => "conflicting",
        PropagationState::Failover => "failover",
    }
}

/// Values of `is:` that are derived from the object alone.
fn derive_states(record: &Record, printed: &PrintedObject) -> Vec<&'static str> {
    let mut states = Vec::new();
    if record.deleting.is_some() {
        states.push("terminating");
    }
    if record.labels.get(MANAGED).is_some_and(|value| value == "true") {
        states.push("managed");
    }
    let status = printed.status.as_deref().unwrap_or_default();
    if status == "Suspended" {
        states.push("suspended");
    }
    let lacks_ready = matches!((printed.ready, printed.desired), (Some(ready), Some(desired)) if ready < desired);
    let is_unhealthy = match (&*record.key.resource().group, &*record.kind) {
        ("", "Pod") => !matches!(status, "Completed" | "Succeeded") && (lacks_ready || status != "Running"),
        ("batch", "Job") => status == "Failed",
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => lacks_ready,
        ("", "Node") => !status.starts_with("Ready"),
        ("" | "events.k8s.io", "Event") => false,
        _ => status.starts_with("Not") || matches!(status, "Failed" | "Error" | "Lost"),
    };
    if is_unhealthy && record.deleting.is_none() {
        states.push("unhealthy");
    }
    states
}
